"""What people are asked to label, how far they agree with each other and with the judge."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import combinations
from typing import NamedTuple

from pydantic import JsonValue

from slipstream import contract as c
from slipstream.contract import Reward
from slipstream.shared.intervals import wilson
from slipstream_labelling.contract import Comment, Comments, LabelCase, LabelCases
from slipstream_proxy.store.read.groups import votes_of
from slipstream_proxy.store.store import Store
from slipstream_proxy.store.tables.driver import IN, Row, Tx, given
from slipstream_proxy.store.tables.rows import (
    EPISODE_COLUMNS,
    EpisodeRow,
    eid_of,
    load,
)
from slipstream_proxy.store.tables.tallies import own_runs

LOOKED_AT = 2000
"""Finished episodes, the newest, among which the most uncertain are looked for."""

UNSCORED_UNCERTAINTY = 0.5
"""Uncertainty of an episode that nobody has scored."""

MIDDLE_UNCERTAINTY = 0.4
"""Uncertainty of a score in the middle of the range."""


def range_of(rewards: Sequence[Reward]) -> tuple[float, float]:
    """The lowest and the highest value that was given."""
    values = [r.value for r in rewards]
    return (min(values), max(values)) if values else (0.0, 1.0)


def uncertainty_of(rewards: Sequence[Reward], low: float, high: float) -> tuple[float, str]:
    """From 0 to 1, and why. ``rewards``: of one episode; ``low``, ``high``: the range of all."""
    whole = {(r.name, r.source): r for r in rewards if r.call is None}
    if not whole:
        return UNSCORED_UNCERTAINTY, "nobody has scored it"
    spread = (high - low) or 1.0
    found = []
    for reward in whole.values():
        votes = votes_of(reward)
        if len(votes) > 1:
            deviation = statistics.pstdev(votes)
            found.append((min(1.0, 2 * deviation / spread), f"the votes differ: {', '.join(f'{v:g}' for v in votes)}"))
        place = (reward.value - low) / spread
        text = f"{reward.source} gave {reward.value:g}, in the middle of {low:g} to {high:g}"
        found.append((MIDDLE_UNCERTAINTY * (1 - abs(2 * place - 1)), text))
    lowest = min(whole.values(), key=lambda r: r.value)
    highest = max(whole.values(), key=lambda r: r.value)
    if lowest.source != highest.source:
        text = f"{highest.source} gave {highest.value:g}, {lowest.source} {lowest.value:g}"
        found.append((min(1.0, (highest.value - lowest.value) / spread), text))
    best = max(found, key=lambda f: f[0])
    return best if best[0] > 0 else (0.0, "all agree")


UNLABELLED_CONDITION = "NOT EXISTS (SELECT 1 FROM t_rewards h WHERE h.eid = t_episodes.eid AND h.source = 'human')"

NOT_BY = """NOT EXISTS (SELECT 1 FROM t_audit a WHERE a.action = 'label' AND a.target = t_episodes.id
    AND coalesce(a.key, '-') = ?)"""


def agreement_of(rows: Collection[Row], owner: str | None) -> c.LabelAgreement | None:
    """Of all labels in order: episode, whose key said it, what was said. ``owner``: whose episodes; None: all."""
    said: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for episode, who, text in rows:
        told = load(text, {})
        if owner in (None, told.get("key")) and isinstance(told.get("value"), int | float):
            said[str(told.get("key")), episode, str(told.get("name"))][who or "-"] = float(told["value"])
    shared = {run: of for run, of in said.items() if len(of) > 1}
    pairs = [abs(a - b) for of in shared.values() for a, b in combinations(of.values(), 2)]
    if not pairs:
        return None
    same = sum(d == 0 for d in pairs) / len(pairs)
    low, high = wilson(same, len(pairs))
    people = {who for of in shared.values() for who in of}
    return c.LabelAgreement(
        runs=len({run[:2] for run in shared}),
        people=len(people),
        pairs=len(pairs),
        same=same,
        low=low,
        high=high,
        distance=statistics.fmean(pairs),
    )


class Saying(NamedTuple):
    """An entry of the audit log that is about an episode."""

    id: str
    at: float
    key: str | None
    name: str | None
    detail: dict[str, JsonValue]

    @property
    def comment(self) -> Comment:
        by = self.name or (None if self.key == "-" else self.key)
        return Comment(id=self.id, at=self.at, by=by, **{n: self.detail.get(n) for n in ("text", "to")})


SAYINGS_SQL = "SELECT target, id, ts, key, name, data FROM t_audit WHERE action IN ('assign', 'comment')"


def sayings(rows: Collection[Row]) -> dict[str, list[Saying]]:
    """Episode (key/id) → what people said of it, oldest first."""
    found: dict[str, list[Saying]] = defaultdict(list)
    for target, number, at, key, name, text in rows:
        detail = load(text, {})
        found[eid_of(str(detail.get("key")), target)].append(Saying(number, at, key, name, detail))
    return found


def assignee(said: Collection[Saying]) -> str | None:
    """Who is to label it, by the latest word on that."""
    return next((str(s.detail["to"]) or None for s in reversed([*said]) if s.detail.get("to") is not None), None)


class LabelQueue:
    """Which episodes a person's label would tell most about: where votes, sources or nobody agree."""

    def __init__(self, store: Store) -> None:
        self.db = store.db
        self.rewards = store.rewards

    def read(
        self,
        key: str | None,
        task: str | None = None,
        split: str | None = None,
        adapter: str | None = None,
        limit: int = 20,
        second: str | None = None,
        assigned: str | None = None,
    ) -> LabelCases:
        """The most uncertain of the newest finished episodes that no person has labelled. ``second``: those that people
        with other keys than this one have. ``assigned``: those that this person is to label.
        """
        tests, params = given(("key = ?", key), ("task = ?", task), ("split = ?", split), ("adapter = ?", adapter))
        if second is not None:
            tests += [f"NOT {UNLABELLED_CONDITION}", NOT_BY]
            params.append(second)
        tests += [
            "state = 'done'",
            "calls > 0",
            "error IS NULL",
            *own_runs(split),
            *([UNLABELLED_CONDITION] if second is None else []),
        ]
        with self.db.read() as tx:
            people = {eid: assignee(said) for eid, said in sayings(tx.all(f"{SAYINGS_SQL} ORDER BY ts, id")).items()}
            if assigned is not None:
                tests.append(f"eid {IN}")
                params.append([eid for eid, name in people.items() if name and name.lower() == assigned.lower()])
            sql = f"""SELECT {EPISODE_COLUMNS} FROM t_episodes WHERE {" AND ".join(tests)}
                ORDER BY started DESC, eid DESC LIMIT ?"""
            eps = [EpisodeRow(*row) for row in tx.all(sql, (*params, LOOKED_AT))]
            rewards = self.rewards.of(tx, eps)
            labelled = """SELECT count(*) FROM t_episodes WHERE state <> 'deleted'
                AND eid IN (SELECT eid FROM t_rewards WHERE source = 'human')"""
            agreement = _agreement(tx, key)
            ((count,),) = tx.all(labelled if key is None else labelled + " AND key = ?", [] if key is None else [key])
        low, high = range_of([r for of in rewards.values() for r in of])
        ranked = [(*uncertainty_of(rewards[ep.eid], low, high), ep) for ep in eps]
        ranked.sort(key=lambda r: -r[0])  # of equal ones the newest stays first
        cases = [
            LabelCase(
                episode=ep.public(),
                uncertainty=score,
                why=why,
                assigned=people.get(ep.eid),
                rewards=rewards[ep.eid],
            )
            for score, why, ep in ranked[:limit]
        ]
        return LabelCases(cases=cases, looked_at=len(eps), labelled=count, agreement=agreement)

    def comments(self, key: str, episode: str) -> Comments:
        with self.db.read() as tx:
            rows = tx.all(f"{SAYINGS_SQL} AND target = ? ORDER BY ts, id", (episode,))
        said = sayings(rows).get(eid_of(key, episode), [])
        return Comments(comments=[s.comment for s in said], assigned=assignee(said))


def agreement(store: Store) -> c.LabelAgreement | None:
    """Of all people, about all runs. None: no two have labelled the same one."""
    with store.db.read() as tx:
        return _agreement(tx, None)


def _agreement(tx: Tx, owner: str | None) -> c.LabelAgreement | None:
    return agreement_of(tx.all("SELECT target, key, data FROM t_audit WHERE action = 'label' ORDER BY ts, id"), owner)
