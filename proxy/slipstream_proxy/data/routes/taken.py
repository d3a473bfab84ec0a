"""Rewards, people's labels, end marks and feedback that a worker takes by itself while the control plane does not
answer.

They become the records that the control plane would write, in a spool file of the worker's. The store applies them when
the control plane is back, in the order they came; one that it got as well has the same id, and counts once. What cannot
be checked here waits for the control plane.

Not compiled: pydantic's models cannot be, and it runs while the control plane is away only.
"""

from __future__ import annotations

import logging
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, NamedTuple

from pydantic import ValidationError

from slipstream import contract as c
from slipstream_proxy.log.ids import new_id
from slipstream_proxy.log.records import Kind, Mutation
from slipstream_proxy.log.spool import SpoolWriter
from slipstream_proxy.redaction import Redaction, redacted_body

if TYPE_CHECKING:
    from slipstream.config import Config
    from slipstream_proxy.json_types import JsonObject
    from slipstream_proxy.keys import Keys

log = logging.getLogger(__name__)

ENDING_SCOPES: Final = (c.KeyScope.INFERENCE, c.KeyScope.REWARD, c.KeyScope.ADMIN)
"""Scopes that may say that a run of their own is over."""
LABELLER_SCOPES: Final = frozenset((c.SCOPE_OF_SOURCE[c.RewardSource.HUMAN], c.KeyScope.ADMIN))
"""Scopes that may write rewards as a person."""
CONTROL_AWAY_TEXT: Final = "the control plane is away just now: this is written down, and counts once it is back"


class EndingRequest(NamedTuple):
    """One request about the end of an episode."""

    what: str
    """``rewards``, ``feedback`` or ``done``."""
    key: str
    episode: str
    body: bytes
    caller: JsonObject
    """``x-slipstream-auth``."""
    named: str | None
    """The key that ``?key=`` names."""
    begun: bool
    """The worker knows a call of the episode."""


class TakenChange(NamedTuple):
    op: str
    data: JsonObject
    ends: bool
    audited: c.AuditEntry | None = None
    """What goes into the audit log with it."""


class TakenRewards:
    """One worker's. ``spool`` opens its file at the first of them."""

    def __init__(self, config: Config, number: int, redaction: Redaction | None, keys: Keys) -> None:
        self._config, self._redaction, self._keys = config, redaction, keys
        self._judged = {name.lower() for name in (config.judge.name, *config.judge.names)}
        self._spool = SpoolWriter(
            config.spool_dir,
            f"taken{number}",
            segment_bytes=config.proxy.segment_bytes,
            durability=config.proxy.durability,
        )
        self.count = 0

    def change(self, asked: EndingRequest) -> TakenChange | None:
        """What would be written down. None: it is wrong, or the control plane alone can say whether it may be."""
        name: JsonObject = {"key": asked.key, "episode": asked.episode}
        if not self._is_own(asked):
            return None
        try:
            if asked.what == "done":
                if asked.body.strip():
                    c.DoneIn.model_validate_json(asked.body, strict=True)
                return TakenChange("done", name, ends=True)
            reward = self._reward(asked)
        except Exception as e:  # whatever ``proxy.redact`` raises, too
            if not isinstance(e, ValidationError):
                log.warning("a reward waits for the control plane: %s", type(e).__name__)
            return None
        label = reward.source == c.RewardSource.HUMAN and not LABELLER_SCOPES.isdisjoint(asked.caller["scopes"])
        if not label and (reward.source.lower() in c.SCOPE_OF_SOURCE or reward.name.lower() in self._judged):
            return None
        ends = reward.ends({name for name, weight in self._config.reward.weights.items() if weight})
        kept = reward.model_copy(update={"done": ends}).model_dump(mode="json")
        change = TakenChange("reward", {**name, "reward": kept}, ends)
        return change._replace(audited=self._label(asked, reward)) if label else change

    def _label(self, asked: EndingRequest, reward: c.RewardIn) -> c.AuditEntry:
        """As the control plane notes it (``control.api.routes.rewards``)."""
        key: str = asked.caller["key"]
        detail = {"name": reward.name, "value": reward.value, "key": asked.key, "edited": "edited" in reward.meta}
        entry = {"id": new_id(), "at": time.time(), "key": key, "name": self._keys.name_of(key), "action": "label"}
        return c.AuditEntry.model_validate({**entry, "target": asked.episode, "detail": detail})

    def _is_own(self, asked: EndingRequest) -> bool:
        scopes = set(asked.caller["scopes"])
        if asked.what != "done" and scopes.isdisjoint(c.TEACHER_SCOPES) and not self._config.reward.by_agents:
            return False
        if asked.named is not None and asked.named != asked.caller["key"]:
            return not scopes.isdisjoint(c.SCORER_SCOPES)
        if asked.what == "done" and scopes.isdisjoint(ENDING_SCOPES):
            return False
        return asked.begun or c.KeyScope.INFERENCE in scopes or asked.caller["key"] == "-"

    def _reward(self, asked: EndingRequest) -> c.RewardIn:
        kind = c.RewardIn if asked.what == "rewards" else c.FeedbackIn
        body = redacted_body(self._redaction, kind.model_validate_json(asked.body, strict=True))
        if isinstance(body, c.FeedbackIn):
            return body.reward("user")
        assert isinstance(body, c.RewardIn)
        if body.name in (c.WORDS_REWARD, c.THUMBS_REWARD) and "words" in body.meta:
            raise ValueError("feedback in a reward's form")
        return body

    async def keep(self, id: str, change: TakenChange, *, begun: bool) -> c.RewardAck | None:
        """None: the spool cannot be written."""
        if not await self._spool.put(Kind.MUTATION, asdict(Mutation(id, change.op, time.time(), change.data))):
            return None
        if change.audited is not None:
            entry = change.audited.model_dump(mode="json")
            if not await self._spool.put(Kind.MUTATION, asdict(Mutation(f"{id}-audit", "audit", time.time(), entry))):
                log.error(
                    "the label of %s by key %s is not in the audit log", change.audited.target, change.audited.key
                )
        self.count += 1
        if self.count == 1:
            log.warning("the control plane does not answer: rewards and end marks are kept in the spool meanwhile")
        return c.RewardAck(stored=True, known=begun, fix=CONTROL_AWAY_TEXT, done=change.ends)

    async def close(self) -> None:
        await self._spool.close()
