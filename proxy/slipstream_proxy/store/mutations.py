"""Mutations out of the spool: what the control API accepted, applied in order.

``Mutation.data`` by ``op`` (key: the API key's id, episode: the client's id). All are idempotent, by mutation id and by
what they hold:

- ``reward``  ``{"key", "episode", "reward": RewardIn}``
- ``done``    ``{"key", "episode"}``
- ``delete``  ``{"key": id | None, "episode"}``, or of many ``{"episodes": [[key, episode]]}``
- ``scores``  ``{"group", "scores": ScoresIn, "key": optional}``: like ``judging.score``, which may have run before
  (then it changes nothing)
- ``ack``     ``{"batch", "ack": BatchAck, "members": batches.members(batch)}``: like ``batches.ack``, which may have
  run before
- ``adapter`` ``Adapter``;  ``event`` ``Event``;  ``audit`` ``AuditEntry``;  ``cache`` ``CacheEntry``
- ``pin``     ``{"key", "episode", "model", "adapter", "arm", "chances": optional}``
- ``episode`` ``{"key", "episode", "days", "text"}``: an exported episode as JSON text, and the days of its calls
- ``blank``   ``{}``: stands where a record was that is forgotten
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from slipstream.contract import Adapter, AuditEntry, BatchAck, CacheEntry, Event, RewardIn, ScoresIn
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.records import Mutation
from slipstream_proxy.store.adapters import AdapterTable
from slipstream_proxy.store.audit import AuditLog
from slipstream_proxy.store.batches import BatchQueue
from slipstream_proxy.store.cache import CacheTable
from slipstream_proxy.store.changes import Changes
from slipstream_proxy.store.deletion import Deletion
from slipstream_proxy.store.driver import Tx
from slipstream_proxy.store.events import EventLog
from slipstream_proxy.store.judge_queue import JudgeQueue
from slipstream_proxy.store.restore import EpisodeRestore
from slipstream_proxy.store.rewards import RewardTable
from slipstream_proxy.store.rows import PinRow, RewardRow, eid_of

NAMED = ("reward", "done", "episode")
"""Mutations that name an episode by ``key`` and ``episode``."""


@dataclass(slots=True)
class MutationReplay:
    rewards: RewardTable
    judging: JudgeQueue
    batches: BatchQueue
    adapters: AdapterTable
    events: EventLog
    audit: AuditLog
    cache: CacheTable
    deletion: Deletion
    restore: EpisodeRestore

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
                    changes.gone.update(dict.fromkeys(eid_of(*name) for name in data["episodes"]))
                else:
                    changes.gone.update(dict.fromkeys(self.deletion.eids(tx, data["key"], data["episode"])))
            case "scores":
                scores = ScoresIn.model_validate(data["scores"])
                for row in self.judging.replay(tx, data["group"], scores, item.at, key=data.get("key")):
                    changes.rewards.append(row)
                    changes.rewarded.add(row.eid)
            case "ack":
                ack = BatchAck.model_validate(data["ack"])
                self.batches.replay(tx, data["batch"], ack, data.get("members"), item.at)
            case "adapter":
                self.adapters.replay(tx, Adapter.model_validate(data))
            case "event":
                self.events.append(tx, Event.model_validate({**data, "at": data.get("at") or item.at}))
            case "audit":
                self.audit.append(tx, AuditEntry.model_validate(data))
            case "cache":
                entry = CacheEntry.model_validate(data)
                self.cache.write(tx, entry.key, entry.value, entry.at or item.at)
            case "pin":
                eid = eid_of(data["key"], data["episode"])
                pin = (data["model"], data["adapter"], data["arm"])
                changes.pins[eid] = PinRow(eid, *pin, item.at, chances=data.get("chances") or "")
            case "blank":
                pass  # what stood here is forgotten
            case other:
                raise ValueError(f"a mutation of an unknown kind: {other}")

    def _done(self, changes: Changes, item: Mutation, eid: str) -> None:
        if eid in changes.gone:
            return
        if eid in changes.eps:
            changes.done[eid] = None
        else:
            changes.early.setdefault(eid, item.at)

    def _reward(self, changes: Changes, item: Mutation, eid: str, reward: RewardIn) -> None:
        ep = changes.eps.get(eid)
        if (ep is not None and ep.state == "deleted") or eid in changes.gone:
            return
        if reward.key is not None:
            if (eid, reward.key) in changes.idem:
                return
            changes.idem.add((eid, reward.key))
        changes.rewards.append(RewardRow.of(item.id, eid, reward, item.at))
        changes.rewarded.add(eid)
        if reward.done:
            self._done(changes, item, eid)
