"""Does a judge agree with itself? What costs no truth to know: the same runs in another order must get the same ranks.

A judge whose votes on the same runs do not agree cannot agree with the truth either: the correlation of its scores with
anything is at most the square root of theirs among each other (Spearman 1904, attenuation).
"""

from __future__ import annotations

import math
from collections import deque
from itertools import combinations
from statistics import fmean, stdev

from slipstream.contract import JudgeAgreement
from slipstream_judge.compare.group import Judged
from slipstream_judge.trust.stats import spearman

MIN_RANK_CORRELATION = 0.2
"""Mean rank correlation between votes below which scores are hardly more than chance."""
MIN_GOOD_GROUPS, MIN_BAD_GROUPS = 4, 16
"""Groups from which on a judge can be found good, and found bad."""
RECENT_GROUPS = 200


class Consistency:
    """The rank correlation between votes, over the latest groups in which both votes saw a difference."""

    def __init__(self) -> None:
        self._found: deque[float] = deque(maxlen=RECENT_GROUPS)
        self.equal = 0
        """Groups in which a vote saw no difference between runs."""

    def add(self, judged: Judged) -> None:
        """Votes out of the cache were counted when they were made."""
        if judged.usage.calls == 0 or len(judged.runs) < 2 or len(judged.votes) < 2:
            return
        runs = list(judged.runs)
        pairs = combinations([[vote.grades[run].score for run in runs] for vote in judged.votes], 2)
        found = [x for a, b in pairs if (x := spearman(a, b)) is not None]
        if found:
            self._found.append(fmean(found))
        else:
            self.equal += 1

    def agreement(self) -> JudgeAgreement:
        return JudgeAgreement(value=fmean(self._found) if self._found else None, pairs=len(self._found))

    def _margin(self) -> float:
        """Two standard errors."""
        n = len(self._found)
        return 2 * stdev(self._found) / math.sqrt(n) if n > 1 else math.inf

    @property
    def proven(self) -> bool:
        """Surely more than chance."""
        if len(self._found) < MIN_GOOD_GROUPS:
            return False
        mean = fmean(self._found)
        return mean >= MIN_RANK_CORRELATION and mean > self._margin()

    @property
    def by_chance(self) -> bool:
        """Surely below what can be used."""
        return len(self._found) >= MIN_BAD_GROUPS and fmean(self._found) + self._margin() < MIN_RANK_CORRELATION

    def doubt(self) -> str | None:
        """Why its scores are not used yet; None where they may be."""
        if self.proven:
            return None
        n = len(self._found)
        if self.equal + n >= MIN_BAD_GROUPS and n < MIN_GOOD_GROUPS:
            return f"it gave all runs of a group the same score in {self.equal} of {self.equal + n} groups"
        seen = f"its votes on the same runs in another order agree by {fmean(self._found):.2f}" if n else ""
        over = f" over {n} {'group' if n == 1 else 'groups'} (1 is full agreement, 0 is chance)" if n else ""
        if n < MIN_BAD_GROUPS:
            return (
                f"its scores are not used before its votes are known to agree; {seen or 'no group is measured'}{over}"
            )
        return f"{seen}{over}: its scores are hardly more than chance. Choose a larger model, or post rewards"
