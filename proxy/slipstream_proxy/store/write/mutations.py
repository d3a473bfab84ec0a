"""Mutations out of the spool: what the control API accepted, applied in order.

``Mutation.data`` by ``op`` (key: the API key's id, episode: the client's id). All are idempotent, by mutation id and by
what they hold:

- ``reward``  ``{"key", "episode", "reward": RewardIn}``
- ``done``    ``{"key", "episode"}``
- ``delete``  ``{"key": id | None, "episode"}``, or of many ``{"episodes": [[key, episode]], "marks": [[key, mark]]}``;
  once no file holds these episodes, the marks alone (``rows.mark_of``)
- ``scores``  ``{"group", "scores": ScoresIn, "key": optional}``: ``judging.holds`` said that they are taken
- ``ack``     ``{"batch", "ack": BatchAck, "members": batches.takes(batch, ack)}``
- ``again``   ``{"groups": [id], "epochs"}``: groups to train on until they were so often; none: no group any more
- ``adapter`` ``Adapter``;  ``event`` ``Event``;  ``audit`` ``AuditEntry``
- ``cache``   ``{"key", "value", "at", "newest": optional}``: a value by its name. ``newest``, ``[prefix, count]``: of
  the names that begin so, only so many stay
- ``pin``     ``{"key", "episode", "model", "adapter", "arm", "chances": optional}``
- ``episode`` ``{"key", "episode", "days", "text"}``: an exported episode as JSON text, and the days of its calls
- ``case``    ``{"set", "version", "key", "episode", "text"}``: an episode's copy joins a set; ``uncase``, without the
  text: it leaves it; ``caseset`` ``{"set"}``: the set goes
- ``blank``   ``{}``: stands where a record was that is forgotten
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from slipstream.contract import (
    Adapter,
    AuditEntry,
    BatchAck,
    Event,
    RewardIn,
    ScoresIn,
    words_in,
)
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.log.records import Mutation, mark_of
from slipstream_proxy.store.learning.adapters import AdapterTable
from slipstream_proxy.store.learning.rewards import RewardTable
from slipstream_proxy.store.tables.driver import Tx
from slipstream_proxy.store.tables.rows import (
    Changes,
    PinRow,
    RewardRow,
    Written,
    eid_of,
)
from slipstream_proxy.store.tables.small import AuditLog, CacheTable, EventLog
from slipstream_proxy.store.write.batches import BatchQueue
from slipstream_proxy.store.write.cases import CaseTable
from slipstream_proxy.store.write.deletion import Deletion
from slipstream_proxy.store.write.judge_queue import JudgeQueue
from slipstream_proxy.store.write.restore import AT_ONCE, EpisodeRestore

RUN_MUTATIONS = ("reward", "done", "episode", "case")
"""Mutations that change a run, or what is kept of it, and name it by ``key`` and ``episode``."""
NAMING_MUTATIONS = (*RUN_MUTATIONS, "pin", "uncase")
"""All mutations that name an episode so: what forgetting looks through."""


def _is_gone(changes: Changes, eid: str) -> bool:
    """It was forgotten: before this batch of records, or in it."""
    ep = changes.eps.get(eid)
    return (ep is not None and ep.state == "deleted") or eid in changes.gone


@dataclass(slots=True)
class MutationReplay:
    rewards: RewardTable
    judging: JudgeQueue
    batches: BatchQueue
    adapters: AdapterTable
    events: EventLog
    audit: AuditLog
    cache: CacheTable
    cases: CaseTable
    deletion: Deletion
    restore: EpisodeRestore
    of_plugins: dict[str, Callable[[Tx, Mutation], None]] = field(default_factory=dict)
    """Kinds that plug-ins bring (``extensions.Extension.mutations``)."""

    def prepare(self, tx: Tx, changes: Changes, mutations: Collection[Mutation]) -> None:
        """Load the idempotency keys that this batch's rewards may meet."""
        keyed = [m.data for m in mutations if m.op == "reward" and m.data["reward"].get("key")]
        changes.idem = self.rewards.idempotency_keys(tx, [eid_of(d["key"], d["episode"]) for d in keyed])

    def apply(self, tx: Tx, changes: Changes, item: Mutation) -> None:
        data: JsonObject = item.data
        match item.op:
            case "reward":
                reward = RewardIn.model_validate(data["reward"])
                self._reward(changes, item, eid_of(data["key"], data["episode"]), reward)
            case "done":
                self._done(changes, item, eid_of(data["key"], data["episode"]))
            case "delete":
                if "episodes" in data:
                    names = data["episodes"] or data["marks"]
                    changes.gone.update(dict.fromkeys(eid_of(*name) for name in names))
                else:
                    changes.gone.update(dict.fromkeys(self.deletion.eids(tx, data["key"], data["episode"])))
            case "scores":
                scores = ScoresIn.model_validate(data["scores"])
                for row in self.judging.replay(tx, data["group"], scores, item.at, key=data.get("key")):
                    changes.written[row.id] = Written(item.boot, item.tick, item.at)
                    changes.rewards.append(row)
                    changes.rewarded.add(row.eid)
            case "ack":
                ack = BatchAck.model_validate(data["ack"])
                self.batches.replay(tx, data["batch"], ack, data.get("members"), item.at)
            case "again":
                changes.again.append((data["groups"], data["epochs"], item.at))
            case "adapter":
                self.adapters.replay(tx, Adapter.model_validate(data))
            case "event":
                self.events.append(tx, Event.model_validate({**data, "at": data.get("at") or item.at}))
            case "audit":
                self.audit.append(tx, AuditEntry.model_validate(data))
            case "cache":
                self.cache.write(tx, data["key"], data["value"], data.get("at") or item.at)
                if "newest" in data:
                    self.cache.trim(tx, *data["newest"])
            case "uncase":
                eid = eid_of(data["key"], data["episode"])
                if not _is_gone(changes, eid):
                    self.cases.remove(tx, data["set"], data["version"], eid, item.at)
            case "caseset":
                self.cases.drop(tx, data["set"])
            case "pin":
                eid = eid_of(data["key"], data["episode"])
                pin = (data["model"], data["adapter"], data["arm"])
                changes.pins[eid] = PinRow(eid, *pin, item.at, chances=data.get("chances") or "")
            case "blank":
                pass  # what stood here is forgotten
            case other if other in self.of_plugins:
                self.of_plugins[other](tx, item)
            case other:
                raise ValueError(f"a mutation of an unknown kind: {other}")

    def add_cases(self, tx: Tx, changes: Changes, items: Sequence[Mutation]) -> None:
        """Those that come one after the other are written together: by itself, each would be five statements."""
        for start in range(0, len(items), AT_ONCE):
            sets = defaultdict[tuple[str, int], dict[str, tuple[str, float]]](dict)
            for item in items[start : start + AT_ONCE]:
                changes.now = max(changes.now, item.at)
                data, eid = item.data, eid_of(item.data["key"], item.data["episode"])
                if not _is_gone(changes, eid):
                    sets[data["set"], data["version"]][eid] = data["text"], item.at
            for (name, version), copies in sets.items():
                self.cases.add(tx, name, version, copies)

    def _done(self, changes: Changes, item: Mutation, eid: str) -> None:
        if eid in changes.gone:
            return
        if eid in changes.eps:
            changes.done[eid] = None
        else:
            changes.early.setdefault(eid, item.at)

    def _reward(self, changes: Changes, item: Mutation, eid: str, reward: RewardIn) -> None:
        if _is_gone(changes, eid):
            changes.dropped.append((item.data["key"], mark_of(item.data["episode"])))
            return
        if reward.key is not None:
            if (eid, reward.key) in changes.idem:
                return
            changes.idem.add((eid, reward.key))
        changes.rewards.append(RewardRow.of(item.id, eid, reward, item.at))
        changes.written[item.id] = Written(item.boot, item.tick, item.at)
        changes.rewarded.add(eid)
        if words_in(reward.name, reward.meta):
            changes.words.add(eid)
        if reward.done:
            self._done(changes, item, eid)
