"""Answers that people wrote in place of the agent's: ``meta.edited`` of a reward with source ``human``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slipstream.contract import CallRecord, Reward
from slipstream_proxy.json_types import JsonObject

EDITED = "edited"
EDITED_CALL = "edited_call"


class Edit(NamedTuple):
    call: CallRecord
    text: str
    value: float
    """What the agent's own answer was given."""

    @property
    def message(self) -> JsonObject:
        return {"role": "assistant", "content": self.text}


def edits_of(calls: Sequence[CallRecord], rewards: Sequence[Reward], last: CallRecord | None) -> list[Edit]:
    """The latest edit of each call, in the order of the calls. ``last``: the call that an edit of no call is of.

    A score of the whole episode names the call of its edit in ``meta.edited_call``.
    """
    by_id = {c.id: c for c in calls}
    found: dict[str, Edit] = {}
    for reward in rewards:
        text = reward.meta.get(EDITED)
        named = reward.call or reward.meta.get(EDITED_CALL)
        call = last if named is None else by_id.get(str(named))
        if reward.source == "human" and isinstance(text, str) and text.strip() and call is not None:
            found[call.id] = Edit(call, text, reward.value)
    return sorted(found.values(), key=lambda e: e.call.number)
