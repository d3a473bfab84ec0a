"""Which episodes a person's label would tell most about: where votes, sources or nobody agree."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from slipstream.contract import LabelCase, LabelCases, Reward
from slipstream_proxy.store.driver import Driver, given
from slipstream_proxy.store.rewards import RewardTable
from slipstream_proxy.store.rows import EPISODE_COLUMNS, EpisodeRow

LOOKED_AT = 2000
"""Finished episodes, the newest, among which the most uncertain are looked for."""
UNSCORED = 0.5
"""Uncertainty of an episode that nobody has scored."""
MIDDLE = 0.4
"""Uncertainty of a score in the middle of the range."""


def votes_of(reward: Reward) -> list[float]:
    """What each vote of a judge gave."""
    votes = reward.meta.get("values")
    return [float(v) for v in votes if isinstance(v, int | float)] if isinstance(votes, list) else []


def range_of(rewards: Sequence[Reward]) -> tuple[float, float]:
    """The lowest and the highest value that was given."""
    values = [r.value for r in rewards]
    return (min(values), max(values)) if values else (0.0, 1.0)


def uncertainty_of(rewards: Sequence[Reward], low: float, high: float) -> tuple[float, str]:
    """From 0 to 1, and why. ``rewards``: of one episode; ``low``, ``high``: the range of all."""
    whole = {(r.name, r.source): r for r in rewards if r.call is None}
    if not whole:
        return UNSCORED, "nobody has scored it"
    spread = (high - low) or 1.0
    found = []
    for reward in whole.values():
        votes = votes_of(reward)
        if len(votes) > 1:
            deviation = statistics.pstdev(votes)
            found.append((min(1.0, 2 * deviation / spread), f"the votes differ: {', '.join(f'{v:g}' for v in votes)}"))
        place = (reward.value - low) / spread
        text = f"{reward.source} gave {reward.value:g}, in the middle of {low:g} to {high:g}"
        found.append((MIDDLE * (1 - abs(2 * place - 1)), text))
    lowest = min(whole.values(), key=lambda r: r.value)
    highest = max(whole.values(), key=lambda r: r.value)
    if lowest.source != highest.source:
        text = f"{highest.source} gave {highest.value:g}, {lowest.source} {lowest.value:g}"
        found.append((min(1.0, (highest.value - lowest.value) / spread), text))
    best = max(found, key=lambda f: f[0])
    return best if best[0] > 0 else (0.0, "all agree")


UNLABELLED = "NOT EXISTS (SELECT 1 FROM t_rewards h WHERE h.eid = t_episodes.eid AND h.source = 'human')"


class LabelQueue:
    def __init__(self, db: Driver, rewards: RewardTable) -> None:
        self.db = db
        self.rewards = rewards

    def edited(self) -> list[str]:
        """Episodes (key/id) with an answer that a person wrote in place of the agent's."""
        sql = """SELECT DISTINCT eid FROM t_rewards WHERE source = 'human' AND strpos(meta, '"edited"') > 0"""
        with self.db.read() as tx:
            return [eid for (eid,) in tx.all(sql)]

    def read(
        self,
        key: str | None,
        task: str | None = None,
        split: str | None = None,
        adapter: str | None = None,
        limit: int = 20,
    ) -> LabelCases:
        """The most uncertain of the newest finished episodes that no person has labelled."""
        tests, params = given(("key = ?", key), ("task = ?", task), ("split = ?", split), ("adapter = ?", adapter))
        tests += ["state = 'done'", "calls > 0", UNLABELLED]
        sql = f"""SELECT {EPISODE_COLUMNS} FROM t_episodes WHERE {" AND ".join(tests)}
            ORDER BY started DESC, eid DESC LIMIT ?"""
        with self.db.read() as tx:
            eps = [EpisodeRow(*row) for row in tx.all(sql, (*params, LOOKED_AT))]
            rewards = self.rewards.of(tx, eps)
            labelled = """SELECT count(*) FROM t_episodes WHERE state <> 'deleted'
                AND eid IN (SELECT eid FROM t_rewards WHERE source = 'human')"""
            ((count,),) = tx.all(labelled if key is None else labelled + " AND key = ?", [] if key is None else [key])
        low, high = range_of([r for of in rewards.values() for r in of])
        ranked = [(*uncertainty_of(rewards[ep.eid], low, high), ep) for ep in eps]
        ranked.sort(key=lambda r: -r[0])  # of equal ones the newest stays first
        cases = [
            LabelCase(episode=ep.public(), uncertainty=score, why=why, rewards=rewards[ep.eid])
            for score, why, ep in ranked[:limit]
        ]
        return LabelCases(cases=cases, looked_at=len(eps), labelled=count)
