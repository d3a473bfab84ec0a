"""Which episodes are compared, when a run is over, and whether they are recent and alike enough.

Groups form as episodes end, and are ready for the trainer when each has its reward. How long agents pause between calls
tells a run that is over from one that waits for a slow tool.

A run that is too old to be trained on, the control arm's for one, still counts in its group's baseline: its reward is
as good as the others'. So a group is lost only if nothing in it can be trained on.

An untagged episode has two hashes in ``alike``: of its system prompt and tools, and of the first message after them.
Runs whose first message keeps coming back are runs of one task, so they are compared with each other alone. Where first
messages do not come back, groups form from all runs under the same system prompt and tools.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import NamedTuple

from slipstream.contract import EXPLORE_TAG, SIBLINGS_TAG, GroupKind, Split
from slipstream_proxy.store.tables.driver import IN, Driver, Tx
from slipstream_proxy.store.tables.rows import (
    EPISODE_COLUMNS,
    EPISODE_FIELDS,
    EpisodeRow,
    GroupRow,
    dump,
    load,
    name_of,
)
from slipstream_proxy.store.tables.schema import DayTables
from slipstream_proxy.store.tables.tallies import get_meta, set_meta
from slipstream_proxy.store.values import RecordedCall, Rules

PAUSE_QUANTILE = 0.98
PAUSE_FACTOR = 4.0
"""An episode is over after this many times the ``PAUSE_QUANTILE`` of its agent's pauses."""
MIN_KNOWN_PAUSES = 8
"""Pauses that must be known before they count."""
UNKNOWN_PACE_TIMEOUT_S = 60.0
"""Seconds for an untagged episode while its agent's pace is not known."""
LEAST_PACE = 20.0
"""Seconds at least."""
WELL_KNOWN, LEAST_TAGGED = 100, 120.0
"""Seconds at least for a tagged episode until so many pauses are known. It has nothing but a slow tool to wait for,
and a tool that is seldom slow is met late."""
LONGEST_FACTOR = 1.5
"""A tagged episode waits this many times the longest pause of the last ``PACE_MEMORY_S`` seconds, too."""
PACE_MEMORY_S = 3600.0
MAX_PAUSES = 512
MAX_AGENTS = 4096
SEED_CALLS = 4000
"""Calls that a start reads to learn the pace again."""


class Agent(NamedTuple):
    """Calls of one key and model have one pace."""

    key: str
    model: str


class Pace:
    """``limit``: ``episodes.idle_timeout``, which nothing exceeds."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.seeded = False
        self._pauses: OrderedDict[Agent, deque[float]] = OrderedDict()
        self._known: dict[Agent, float] = {}
        self._answers: dict[Agent, deque[float]] = {}
        """Seconds that its latest calls took: a call is known when it has its answer, and none is idle meanwhile."""
        self._usual_answers: dict[Agent, float] = {}
        self._long: dict[Agent, deque[tuple[float, float]]] = {}
        """(when it ended, its seconds) of the pauses beyond ``LEAST_PACE`` that no later one surpassed."""

    def note(self, agent: Agent, pause: float, at: float) -> None:
        """Seconds from the end of a call to the start of the next one of its episode.

        ``at``: that start, in seconds since the epoch.
        """
        if agent not in self._pauses:
            self._pauses[agent] = deque(maxlen=MAX_PAUSES)
            if len(self._pauses) > MAX_AGENTS:
                gone = self._pauses.popitem(last=False)[0]
                self._known.pop(gone, None)
                self._long.pop(gone, None)
                self._answers.pop(gone, None)
                self._usual_answers.pop(gone, None)
        self._pauses[agent].append(max(0.0, pause))
        self._known.pop(agent, None)
        if pause * LONGEST_FACTOR > LEAST_PACE:
            long = self._long.setdefault(agent, deque(maxlen=MAX_PAUSES))
            while long and long[0][0] <= at - PACE_MEMORY_S:
                long.popleft()
            while long and long[-1][1] <= pause:
                long.pop()
            long.append((at, pause))

    def answered(self, agent: Agent, seconds: float) -> None:
        """A call took so long."""
        if agent in self._pauses:
            self._answers.setdefault(agent, deque(maxlen=MAX_PAUSES)).append(max(0.0, seconds))
            self._usual_answers.pop(agent, None)

    def seed(self, tx: Tx, days: DayTables) -> None:
        """Learn from the newest calls that are stored."""
        self.seeded = True
        for table in days.tables(tx)[-1:]:
            sql = f"SELECT eid, coalesce(trained, model), ts, ts + seconds FROM {table} ORDER BY ts DESC LIMIT ?"
            self._learn(reversed(tx.all(sql, (SEED_CALLS,))))

    def _learn(self, calls: Iterable[tuple[str, str, float, float]]) -> None:
        ends: dict[str, float] = {}
        for eid, model, start, end in calls:
            if eid in ends:
                self.note(Agent(name_of(eid)[0], model), start - ends[eid], start)
            self.answered(Agent(name_of(eid)[0], model), end - start)
            ends[eid] = max(end, ends.get(eid, 0.0))

    def idle_after(self, agent: Agent, now: float, *, untagged: bool) -> float:
        """Seconds without a call after which an episode of this agent is over."""
        known = self._typical(agent)
        if known is None:
            return min(UNKNOWN_PACE_TIMEOUT_S, self.limit) if untagged else self.limit
        least = LEAST_PACE
        if not untagged:
            least = max(LEAST_PACE, LONGEST_FACTOR * self._longest(agent, now))
            if len(self._pauses[agent]) < WELL_KNOWN:
                least = max(least, LEAST_TAGGED)
        if (answer := self._usual_answers.get(agent)) is None:  # it is asked for each open episode
            answer = self._usual_answers[agent] = quantile(tuple(self._answers.get(agent, ())))
        return min(max(least, PAUSE_FACTOR * known) + answer, self.limit)

    def _longest(self, agent: Agent, now: float) -> float:
        """Of the pauses that ended in the last ``PACE_MEMORY_S`` seconds; 0 where all were short.

        Changes nothing, as another thread may note pauses meanwhile.
        """
        recent = (pause for at, pause in tuple(self._long.get(agent, ())) if at > now - PACE_MEMORY_S)
        return next(recent, 0.0)  # each one is longer than those after it

    def _typical(self, agent: Agent) -> float | None:
        if agent not in self._known:
            pauses = tuple(self._pauses.get(agent, ()))
            if len(pauses) < MIN_KNOWN_PAUSES:
                return None
            self._known[agent] = quantile(pauses)
        return self._known[agent]


def quantile(seconds: Sequence[float], share: float = PAUSE_QUANTILE) -> float:
    """What this share of them are not longer than; 0: there is none."""
    return sorted(seconds)[math.ceil(share * len(seconds)) - 1] if seconds else 0.0


STALE_STATE = "stale"
"""State of a group that is too old, and reason of a call that is. The group's cause is what it waited for longest."""
FORMING_STAGE, REWARD_STAGE, JUDGE_STAGE, TRAINER_STAGE = "forming", "reward", "judge", "trainer"
ROLLED_BACK = "rolled_back"
NOTHING_TRAINABLE_CAUSE = "nothing_trainable"
DELETED_CAUSE = "deleted"
EQUAL_REWARDS_CAUSE = "equal_rewards"
SKIPPED_CAUSE = "skipped"
CORRECTED_CAUSE = "corrected"
"""Cause of a trained group whose rewards are others by now than those that it was trained with."""
WORDS_GROUP_PREFIX = "words-"
"""How the ids of groups begin that are one episode and what a user said about it. The reward's id comes after it."""
DISTILLED_GROUP = "distilled"
"""The group of batches' members that were imitated: their group was not trained on by its rewards."""
IN_WORDS = f"(starts_with(grp, '{WORDS_GROUP_PREFIX}') OR grp = '{DISTILLED_GROUP}')"
"""Whether a member is in its batch with what a user said about it, or to be imitated: without its group."""
MAX_VERSIONS_BEHIND = 2**31
"""Versions that a run may be behind where its age does not count."""


class Loss(NamedTuple):
    """What becomes of a group that no trainer will have: its state, and why."""

    state: str
    cause: str


@dataclass(slots=True)
class Freshness:
    versions: dict[str, int]
    """Adapter → its version; what is not there is the base, 0."""
    live: int
    most: int
    """Versions behind the live one that are still trained on."""
    taken_back: set[str]

    def staleness(self, adapter: str | None) -> int:
        return max(0, self.live - self.versions.get(adapter or "", 0))

    def trainable(self, adapter: str | None) -> bool:
        return self.staleness(adapter) <= self.most

    def loss(self, members: Sequence[EpisodeRow], waited_for: str) -> Loss | None:
        """None: there is something to train on. ``waited_for``: what a stale group waited for longest."""
        used = {a for ep in members for a in load(ep.adapters)}
        if not members:
            return Loss("dropped", DELETED_CAUSE)
        if used & self.taken_back:
            return Loss("dropped", ROLLED_BACK)
        if not used:
            return Loss("dropped", NOTHING_TRAINABLE_CAUSE)
        return None if any(self.trainable(a) for a in used) else Loss(STALE_STATE, waited_for)

    def any_age(self) -> Freshness:
        """The same for runs whose age does not count: the recorded log-probabilities weigh their tokens."""
        return replace(self, most=MAX_VERSIONS_BEHIND)

    def stale_runs(self, members: Sequence[EpisodeRow]) -> int:
        """Runs of which no call is trained on, because they are too old."""
        return sum(
            bool(used) and not any(self.trainable(a) for a in used) for used in (load(ep.adapters) for ep in members)
        )


class Times(NamedTuple):
    """When a group began to form, was complete and had its rewards; under which lease the judge scored it last."""

    created: float
    completed: float | None
    ready_at: float | None
    judge_last: str | None

    def longest(self, now: float) -> str:
        """What the group has waited for longest."""
        completed = now if self.completed is None else self.completed
        ready = now if self.ready_at is None else self.ready_at
        spans = {
            FORMING_STAGE: completed - self.created,
            JUDGE_STAGE if self.judge_last else REWARD_STAGE: ready - completed,
            TRAINER_STAGE: now - ready,
        }
        return max(spans, key=lambda name: spans[name])


def taken_back(tx: Tx) -> set[str]:
    return {name for (name,) in tx.all("SELECT name FROM t_adapters WHERE state IN ('rolled_back', 'refused')")}


def freshness_of(tx: Tx, model: str, most: int) -> Freshness:
    """By the adapters that the store knows. The newest that serves counts as the live one."""
    rows = tx.all("SELECT name, version, state FROM t_adapters WHERE model = ?", (model,))
    live = max((version for _, version, state in rows if state in ("live", "candidate")), default=0)
    return Freshness({name: version for name, version, _ in rows}, live, most, taken_back(tx))


class LineageRow(NamedTuple):
    """A batch that an episode was in, and what became of it."""

    eid: str
    batch: str
    advantage: float | None
    state: str
    adapter: str | None


def lineage_of(tx: Tx, eids: Collection[str], *, words: bool = True) -> dict[str, list[LineageRow]]:
    """Each episode's batches, oldest first. ``words``: also those that only had what a user said about it."""
    found: dict[str, list[LineageRow]] = defaultdict(list)
    # Apart: for a join DuckDB reads all members, and not the index.
    which = "" if words else f"AND NOT {IN_WORDS}"
    sql = f"SELECT eid, batch, advantage FROM t_members WHERE eid {IN} {which}"
    members = tx.all(sql, (list(eids),)) if eids else []
    ids = list({batch for _, batch, _ in members})
    sql = f"SELECT id, state, adapter, created FROM t_batches WHERE id {IN}"
    batches = {batch: rest for batch, *rest in (tx.all(sql, (ids,)) if ids else [])}
    for eid, batch, advantage in sorted((m for m in members if m[1] in batches), key=lambda m: batches[m[1]][2]):
        state, adapter, _ = batches[batch]
        found[eid].append(LineageRow(eid, batch, advantage, state, adapter))
    return found


def trained_groups(tx: Tx, groups: Collection[str]) -> list[str]:
    """Those of these groups with an episode that a batch was trained on."""
    sql = f"SELECT eid, grp FROM t_episodes WHERE grp {IN}"
    grp_of: dict[str, str] = dict(tx.all(sql, (list(groups),))) if groups else {}
    rows = lineage_of(tx, list(grp_of), words=False)
    return sorted({grp_of[eid] for eid, of in rows.items() if any(row.state == "trained" for row in of)})


def trained_times(tx: Tx, groups: Collection[str]) -> dict[str, int]:
    """Group → batches that were trained on it with the rewards that its episodes have now."""
    if not groups:
        return {}
    sql = f"SELECT eid, grp, reward FROM t_episodes WHERE grp {IN} AND state <> 'deleted'"
    now = {eid: (grp, reward) for eid, grp, reward in tx.all(sql, (list(groups),))}
    sql = f"SELECT batch, eid, reward FROM t_members WHERE eid {IN} AND NOT {IN_WORDS}"
    members = tx.all(sql, (list(now),)) if now else []
    batches = list({batch for batch, _, _ in members})
    sql = f"SELECT id FROM t_batches WHERE state = 'trained' AND id {IN}"
    trained = {batch for (batch,) in tx.all(sql, (batches,))} if batches else set()
    sizes = Counter(grp for grp, _ in now.values())
    same = Counter(
        # a batch of an older store does not say with which reward it was leased
        (now[eid][0], batch)
        for batch, eid, reward in members
        if batch in trained and reward in (None, now[eid][1])
    )
    return dict(Counter(grp for (grp, _), n in same.items() if n == sizes[grp]))


RETRAINABLE_STATES = ("ready", "stale", "trained", "skipped")
"""States of groups that may be trained on again."""
AGAIN_ASKED = "train again"
"""In ``t_meta``: since when, and how often, groups were asked to be trained on again."""


class TrainingAgain(NamedTuple):
    """How far training on stored groups is. ``passes``: that were asked for since the line was empty last."""

    since: float | None
    passes: int
    left: int
    groups: int
    """That are left."""


def training_again(tx: Tx) -> TrainingAgain:
    asked = load(get_meta(tx, AGAIN_ASKED), {})
    sql = """SELECT count(*), coalesce(sum(again), 0) FROM t_groups
        WHERE again > 0 AND state IN ('ready', 'leased', 'waiting_reward')"""
    ((groups, left),) = tx.all(sql)
    return TrainingAgain(asked.get("since"), max(int(asked.get("passes", 0)), int(left)), int(left), int(groups))


def adapters_of(tx: Tx, batches: Collection[str]) -> set[str]:
    """Adapters that were trained on one of these batches, by the trainer's acks and by the adapters' own lists."""
    return {adapter for found in adapters_by_batch(tx, batches).values() for adapter in found}


def adapters_by_batch(tx: Tx, batches: Collection[str]) -> dict[str, set[str]]:
    """The same of each batch."""
    found: dict[str, set[str]] = {batch: set() for batch in batches}
    if not batches:
        return found
    sql = f"SELECT id, adapter FROM t_batches WHERE state = 'trained' AND id {IN}"
    for batch, adapter in tx.all(sql, (list(batches),)):
        if adapter:
            found[batch].add(adapter)
    for name, body in tx.all("SELECT name, body FROM t_adapters"):
        for batch in found.keys() & load(body)["batches"]:
            found[batch].add(name)
    return found


HASH_CHARS = 16
"""Characters of each of the two hashes."""
RECENT_EPISODES = 64
"""Episodes of one likeness that are looked back on."""
MIN_TASK_RUNS = 3
"""Runs with the same first message, among the recent ones, that make it a task."""
TASK_RUN_SHARE = 8
"""They must also be one in so many of the recent ones, or their group would take too long to fill."""
MAX_CLUSTERS = 1024
"""Likenesses that are kept in memory."""

Kind = tuple[str, str, str, str]
"""Key, model, split and likeness."""


def alike_of(call: RecordedCall) -> str:
    """Both hashes of an episode's first call."""
    messages = call.parsed.messages
    count = 0
    for message in messages:
        if not (isinstance(message, dict) and message.get("role") in ("system", "developer")):
            break
        count += 1
    return _hash([messages[:count], call.parsed.tools]) + _hash(messages[count : count + 1])


def _hash(value: object) -> str:
    return blake2b(dump(value).encode(), digest_size=HASH_CHARS // 2).hexdigest()


def likeness_of(alike: str) -> str:
    return alike[:HASH_CHARS]


class RecentRuns:
    """The first messages of the latest untagged episodes, by kind."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Kind, deque[str]] = OrderedDict()

    def recurs(self, tx: Tx, ep: EpisodeRow) -> bool:
        """Count this untagged episode, which has just ended. True: its first message is that of one task."""
        kind = (ep.key, ep.model, ep.split, likeness_of(ep.alike))
        recent = self._kinds.pop(kind, None)
        if recent is None:
            recent = self._load(tx, kind)
        self._kinds[kind] = recent
        if len(self._kinds) > MAX_CLUSTERS:
            self._kinds.popitem(last=False)
        recent.append(ep.alike)
        same = Counter(recent)[ep.alike]
        return same >= MIN_TASK_RUNS and same * TASK_RUN_SHARE >= len(recent)

    @staticmethod
    def _load(tx: Tx, kind: Kind) -> deque[str]:
        sql = f"""SELECT alike FROM t_episodes WHERE state = 'done' AND NOT grouped AND key = ? AND model = ?
            AND split = ? AND error IS NULL
            AND substr(alike, 1, {HASH_CHARS}) = ? ORDER BY ended DESC, eid LIMIT {RECENT_EPISODES}"""
        return deque([alike for (alike,) in tx.all(sql, kind)][::-1], maxlen=RECENT_EPISODES)


UNTRAINED_STATES = "'forming', 'waiting_reward', 'ready', 'eval'"
"""States of a group that no trainer has."""


class Line(NamedTuple):
    """The line of groups that an episode joins. ``bucket`` is its stable name."""

    bucket: str
    kind: str


def line_of(ep: EpisodeRow, *, recurs: bool = False) -> Line:
    """``recurs``: an untagged episode whose first message keeps coming back counts as a run of one task."""
    parts: tuple[str, ...]
    if ep.split == Split.SIBLING:
        kind, parts = "task", ("step", ep.key, ep.model, ep.id.partition("~")[0])
    elif ep.grouped:
        kind, parts = "task", ("task", ep.key, ep.model, ep.task or "", ep.split)
    elif recurs:
        kind, parts = "task", ("same", ep.key, ep.model, ep.alike, ep.split)
    else:
        kind, parts = "like", ("like", ep.key, ep.model, likeness_of(ep.alike), ep.split)
    if ep.split != Split.SIBLING and f'"{EXPLORE_TAG}"' in ep.tags and (how := load(ep.tags, {}).get(EXPLORE_TAG)):
        parts = (*parts, how)  # greedy runs are no measure of these, and none of them trains
    return Line(blake2b("\0".join(parts).encode(), digest_size=8).hexdigest(), kind)


def group_of(ep: EpisodeRow, line: Line, ordinal: int, state: str, created: float) -> GroupRow:
    """A group of a line, without members yet."""
    return GroupRow(
        id=f"g{line.bucket}-{ordinal}",
        bucket=line.bucket,
        ordinal=ordinal,
        kind=line.kind,
        key=ep.key,
        task=ep.task if ep.grouped else None,
        model=ep.model,
        split=ep.split,
        state=state,
        n=0,
        created=created,
    )


def joined_states(joined: Iterable[EpisodeRow], full: Collection[str]) -> dict[str, str]:
    """The states of the groups that these episodes have just joined. ``full``: those that are complete by it."""
    found: dict[str, str] = {}
    for ep in joined:
        if ep.grp is not None:
            complete = "eval" if ep.split == Split.EVAL else "waiting_reward"
            found[ep.grp] = complete if ep.grp in full else "forming"
    return found


def words_of(ep: EpisodeRow, reward: str, now: float) -> GroupRow:
    """An episode with what a user said about it. Such words come when they come, so its age does not count."""
    return _of_one(ep, f"{WORDS_GROUP_PREFIX}{reward}", GroupKind.WORDS, "ready", now)._replace(ready_at=now, kept=True)


def window_of(ep: EpisodeRow, now: float) -> GroupRow:
    """The window around a single episode, which only the judge sees."""
    name = f"w-{ep.eid.replace('/', '-')}"[:160]
    return _of_one(ep, name, "window", "window", now)._replace(completed=ep.ended)


def _of_one(ep: EpisodeRow, name: str, kind: str, state: str, now: float) -> GroupRow:
    """A group that is one episode."""
    return GroupRow(
        id=name,
        bucket="",
        ordinal=0,
        kind=kind,
        key=ep.key,
        task=None,
        model=ep.model,
        split=ep.split,
        state=state,
        n=1,
        created=now,
        single=ep.eid,
    )


class _LastGroup(NamedTuple):
    """A bucket's highest ordinal, and its unfinished group with its size (None: there is none)."""

    ordinal: int
    forming: str | None
    n: int | None


class GroupTable:
    def __init__(self, db: Driver, rules: Rules) -> None:
        self.db = db
        self.rules = rules
        self.recent = RecentRuns()
        self.unjudged: dict[tuple[str, ...], set[str]] = {}
        """Reward names that a judge asked for → groups that may lack one. A complete one that is not there has them."""

    def join(self, tx: Tx, ended: Collection[EpisodeRow], now: float) -> list[str]:
        """Episodes that have just ended join the forming group of their bucket; a full one is complete.

        → Groups that became complete.
        """
        lines: dict[Line, list[EpisodeRow]] = defaultdict(list)
        for ep in ended:
            if ep.grp is None and ep.trained_calls and ep.error is None and (ep.grouped or self.rules.ungrouped):
                lines[line_of(ep, recurs=not ep.grouped and self.recent.recurs(tx, ep))].append(ep)
        if not lines:
            return []
        last = self._last(tx, [line.bucket for line in lines])
        new: dict[str, GroupRow] = {}
        sizes: dict[str, int] = {}
        full: list[str] = []
        for line, eps in lines.items():
            ordinal, group, size = last.get(line.bucket, _LastGroup(-1, None, 0))
            most = self._size(eps[0])
            n = size or 0
            for ep in eps:
                if group is None:
                    ordinal, n = ordinal + 1, 0
                    row = group_of(ep, line, ordinal, "forming", ep.ended or now)
                    group = row.id
                    new[group] = row
                ep.grp = group
                n = sizes[group] = n + 1
                if n >= most:
                    full.append(group)
                    group = None
        tx.insert("t_groups", [row._replace(n=sizes[group]) for group, row in new.items()])
        tx.update("t_groups", ("id",), ("n",), [item for item in sizes.items() if item[0] not in new])
        return full

    def _size(self, ep: EpisodeRow) -> int:
        """Episodes that complete its group. A step's samples say how many they are."""
        said = load(ep.tags, {}).get(SIBLINGS_TAG, "") if ep.split == Split.SIBLING else ""
        return int(said) if said.isdecimal() else self.rules.group_size

    def changed(self, groups: Collection[str]) -> None:
        """They may have become complete, or their episodes may lack other rewards than before."""
        for lacking in self.unjudged.values():
            lacking.update(groups)

    def write_members(self, tx: Tx, eps: Collection[EpisodeRow]) -> None:
        """Write down which groups these episodes have joined. Apart from their other columns: an index has this one."""
        tx.update("t_episodes", ("eid",), ("grp",), [(ep.eid, ep.grp) for ep in eps if ep.grp is not None])

    def _last(self, tx: Tx, buckets: Collection[str]) -> dict[str, _LastGroup]:
        # There is at most one forming group of a bucket: the last one.
        sql = f"""SELECT bucket, max(ordinal), max(CASE WHEN state = 'forming' THEN id END),
            max(CASE WHEN state = 'forming' THEN n END) FROM t_groups WHERE bucket {IN} GROUP BY bucket"""
        return {bucket: _LastGroup(*rest) for bucket, *rest in tx.all(sql, (list(buckets),))}

    def complete(self, tx: Tx, groups: Collection[str], now: float) -> None:
        """Forming groups are complete. Groups of split ``eval`` are for the judge alone."""
        if groups:
            self.changed(groups)
            sql = f"""UPDATE t_groups SET state = CASE WHEN split = 'eval' THEN 'eval' ELSE 'waiting_reward' END,
                completed = ?
                WHERE state = 'forming' AND id {IN}"""
            tx.run(sql, (now, list(groups)))

    def next_aged(self, tx: Tx) -> float:
        """When the first of the forming groups has waited for ``groups.max_age``; infinite: there is none."""
        ((first,),) = tx.all("SELECT min(created) FROM t_groups WHERE state = 'forming' AND n >= 2")
        return math.inf if first is None else float(first) + self.rules.group_max_age

    def aged(self, tx: Tx, now: float) -> list[str]:
        """Forming groups of at least two that have waited longer than ``groups.max_age``."""
        sql = "SELECT id FROM t_groups WHERE state = 'forming' AND n >= 2 AND created < ?"
        return [group for (group,) in tx.all(sql, (now - self.rules.group_max_age,))]

    def states(self, tx: Tx, groups: Collection[str]) -> dict[str, str]:
        return dict(tx.all(f"SELECT id, state FROM t_groups WHERE id {IN}", (list(groups),))) if groups else {}

    def mark_ready(self, tx: Tx, groups: Collection[str], now: float, states: dict[str, str] | None = None) -> None:
        """Mark those of these groups as ready that are complete, with every episode done and rewarded.

        ``states``: as they are stored, where that is known.
        """
        self.changed(groups)
        states = self.states(tx, groups) if states is None else states
        if groups := [group for group in groups if states.get(group) == "waiting_reward"]:
            sql = f"""UPDATE t_groups SET state = 'ready', ready_at = ? WHERE state = 'waiting_reward' AND n > 0
                AND id {IN}
                AND id NOT IN (SELECT grp FROM t_episodes WHERE (reward IS NULL OR state = 'open') AND grp {IN})"""
            if not tx.run(sql, (now, list(groups), list(groups))):
                return
            # A group that was trained on before the store was rebuilt must not train again.
            trained = trained_groups(tx, groups)
            if trained:
                sql = f"UPDATE t_groups SET state = 'trained' WHERE state = 'ready' AND again = 0 AND id {IN}"
                tx.run(sql, (trained,))
                states.update(self.states(tx, trained))

    def mark_corrected(self, tx: Tx, groups: Collection[str], states: dict[str, str] | None = None) -> None:
        """Mark those of these groups that were trained on with other rewards than their episodes have now.

        ``states``: as they are stored, where that is known.
        """
        states = self.states(tx, groups) if states is None else states
        if trained := [group for group in groups if states.get(group) == "trained"]:
            times = trained_times(tx, trained)
            changed = [group for group in trained if not times.get(group)]
            tx.run(f"UPDATE t_groups SET cause = ? WHERE id {IN}", (CORRECTED_CAUSE, changed))
            sql = f"UPDATE t_groups SET cause = NULL WHERE cause = ? AND id {IN}"
            tx.run(sql, (CORRECTED_CAUSE, [group for group in trained if times.get(group)]))

    def hold(self, tx: Tx, group: str) -> bool:
        """An episode of the group goes on, and the group waits for it. False: it is too late for that."""
        # First the update: it waits for a trainer that is leasing the group just now.
        tx.run("UPDATE t_groups SET state = 'waiting_reward' WHERE id = ? AND state = 'ready'", (group,))
        return bool(tx.all(f"SELECT 1 FROM t_groups WHERE id = ? AND state IN ({UNTRAINED_STATES})", (group,)))

    def take_again(self, tx: Tx, groups: Sequence[str], epochs: int, now: float) -> None:
        """Those of these groups are ready that were trained on less than ``epochs`` times with their rewards. No group:
        none is trained on again any more.
        """
        before = training_again(tx)
        if groups:
            known = f"SELECT id FROM t_groups WHERE state IN ({', '.join(map(repr, RETRAINABLE_STATES))}) AND id {IN}"
            times = trained_times(tx, groups)
            rows = [(g, "ready", now, None, epochs - times.get(g, 0)) for (g,) in tx.all(known, (list(groups),))]
            columns = ("state", "ready_at", "cause", "again")
            tx.update("t_groups", ("id",), columns, [row for row in rows if row[-1] > 0])
        else:
            waiting = [g for (g,) in tx.all("SELECT id FROM t_groups WHERE again > 0 AND state = 'ready'")]
            trained = trained_groups(tx, waiting)
            tx.run(f"UPDATE t_groups SET state = 'trained' WHERE id {IN}", (trained,))
            tx.run("UPDATE t_groups SET again = 0 WHERE again > 0")
            self.mark_corrected(tx, trained)
        left = training_again(tx).left
        asked = before.passes if before.left else 0
        value = {"since": before.since if before.left else now, "passes": asked + left - before.left}
        set_meta(tx, AGAIN_ASKED, dump(value))

    def lose(self, tx: Tx, losses: Mapping[str, Loss]) -> None:
        """Groups that no trainer will have."""
        for loss in set(losses.values()):
            groups = [group for group, found in losses.items() if found == loss]
            sql = f"UPDATE t_groups SET state = ?, cause = ?, again = 0 WHERE id {IN}"
            tx.run(sql, (loss.state, loss.cause, groups))

    def leave(self, tx: Tx, eps: Collection[EpisodeRow]) -> None:
        """Episodes that are deleted leave their groups, and the judge's error, which may quote them, goes. A group of
        none is dropped, and its task is forgotten. A judge that has them just now loses its lease: of a window nobody
        knows any more which runs it shows.
        """
        leaving = Counter(ep.grp for ep in eps if ep.grp)
        groups = list(leaving)
        if groups:
            sizes = tx.all(f"SELECT id, n FROM t_groups WHERE id {IN}", (groups,))
            left = [(group, n - leaving[group], None) for group, n in sizes]
            tx.update("t_groups", ("id",), ("n", "failure"), left)
            sql = f"UPDATE t_groups SET state = 'dropped', cause = ?, task = NULL WHERE n <= 0 AND id {IN}"
            tx.run(sql, (DELETED_CAUSE, groups))
        if eps:
            tx.run(f"DELETE FROM t_groups WHERE single {IN}", ([ep.eid for ep in eps],))
            sql = f"""UPDATE t_groups SET judge_lease = NULL, judge_until = NULL, judge_worker = NULL
                WHERE judge_lease IS NOT NULL AND (id {IN} OR (kind = 'window' AND key {IN}))"""
            tx.run(sql, (groups, list({ep.key for ep in eps})))

    def members(self, tx: Tx, groups: Collection[str]) -> dict[str, list[EpisodeRow]]:
        """Each group's episodes, oldest first."""
        found: dict[str, list[EpisodeRow]] = defaultdict(list)
        if groups:
            sql = f"SELECT {EPISODE_COLUMNS} FROM t_episodes WHERE grp {IN} ORDER BY started, eid"
            for row in tx.all(sql, (list(groups),)):
                ep = EpisodeRow(*row)
                found[ep.grp or ""].append(ep)
        said = [group for group in groups if group.startswith(WORDS_GROUP_PREFIX)]
        if said:
            sql = f"""SELECT g.id, {", ".join(f"e.{name}" for name in EPISODE_FIELDS)} FROM t_groups g
                JOIN t_episodes e ON e.eid = g.single WHERE g.id {IN}"""
            for group, *fields in tx.all(sql, (said,)):
                found[group].append(EpisodeRow(*fields))
        return found
