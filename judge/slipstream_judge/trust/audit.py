"""Is the judge still right? A second model judges a share of the groups; agents' own rewards are compared as well."""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from slipstream.contract import Group, RewardSource, Score
from slipstream.settings import JudgeConfig
from slipstream_judge.compare.group import GroupJudge
from slipstream_judge.model.metrics import JudgeMetrics
from slipstream_judge.trust.stats import pearson, spearman

log = logging.getLogger(__name__)


def chosen(group: str, share: float) -> bool:
    """The same groups for every copy of the judge, and about ``share`` of them."""
    return int.from_bytes(hashlib.sha256(f"audit:{group}".encode()).digest()[:8], "big") < share * 2**64


def agreement(a: Sequence[Score], b: Sequence[Score]) -> float | None:
    """Rank correlation over the episodes that both scored; 1 where both see no difference; None for fewer than two."""
    other = {s.episode: s.value for s in b}
    both = [(s.value, other[s.episode]) for s in a if s.episode in other]
    if len(both) < 2:
        return None
    if all(x == y for column in zip(*both, strict=True) for x, y in pairwise(column)):
        return 1.0
    found = spearman([x for x, _ in both], [y for _, y in both])
    return 0.0 if found is None else found  # one sees a difference and the other none


class Auditor:
    def __init__(self, judge: JudgeConfig, second: GroupJudge | None, metrics: JudgeMetrics) -> None:
        self.judge, self.second, self.metrics = judge, second, metrics
        self.recent: deque[float] = deque(maxlen=200)
        self.pairs: deque[tuple[float, float]] = deque(maxlen=1000)

    async def audit(self, group: Group, scores: Sequence[Score], deadline: float) -> float | None:
        """Judge once more with the second model, if the group is one of the share.

        Returns the agreement. Never raises.
        """
        if self.second is None or not chosen(group.id, self.judge.audit_share):
            return None
        try:
            judged = await self.second.score(group, deadline, votes=[0])
        except Exception as e:
            self.metrics.audits.labels("failed").inc()
            log.warning("audit of group %s failed: %s", group.id, type(e).__name__)
            return None
        found = agreement(scores, judged.scores)
        self.metrics.audits.labels("done").inc()
        if found is not None:
            self.recent.append(found)
            self.metrics.agreement.set(fmean(self.recent))
        return found

    def compare(self, group: Group, scores: Sequence[Score]) -> None:
        """Keep (judge's score, agent's reward) less their means in the group, and the recent correlation."""
        given = {
            e.episode.id: r.value
            for e in group.episodes
            for r in e.rewards
            if r.source == RewardSource.AGENT and r.call is None and not e.context
        }
        both = [(s.value, given[s.episode]) for s in scores if s.episode in given]
        if len(both) < 2:
            return
        ours, theirs = fmean(a for a, _ in both), fmean(b for _, b in both)
        self.pairs.extend((a - ours, b - theirs) for a, b in both)
        found = pearson([a for a, _ in self.pairs], [b for _, b in self.pairs])
        self.metrics.agent_pairs.set(len(self.pairs))
        if found is not None:
            self.metrics.agent_correlation.set(found)
