"""Replies name the model as the client does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from slipstream_proxy.data.call.step import CallStep
from slipstream_proxy.dialects.base import dumps

if TYPE_CHECKING:
    from slipstream_proxy.data.call.parts import Call, Names

_known: Final[dict[tuple[str, str], Names]] = {}


def names_of(engine: str, client: str) -> Names:
    """What replaces what in a reply."""
    found = _known.get((engine, client))
    if found is None:
        ours, theirs = dumps(engine), dumps(client)
        compact, spaced = b'"model":', b'"model": '
        found = (compact + ours, compact + theirs, spaced + ours, spaced + theirs, ours[1:-1], theirs[1:-1])
        if len(_known) < 1024 and len(client) < 256:
            _known[(engine, client)] = found
    return found


class Renaming(CallStep):
    """Puts the client's name of the model in place of the adapter's."""

    def choose(self, call: Call) -> bool:
        if call.route.adapter != call.asked.model:
            call.route.rename(names_of(call.route.adapter, call.asked.model))
        return True

    def event(self, call: Call, event: bytes) -> bytes | None:
        return event if call.route.names is None else _renamed(event, call.route.names)

    def response_body(self, call: Call, status: int, body: bytes) -> bytes:
        names = call.route.names
        if names is None:
            return body
        return _renamed(body, names) if status == 200 else body.replace(names[4], names[5])


def _renamed(text: bytes, names: Names) -> bytes:
    compact, client, spaced, client_spaced, engines, clients = names
    changed = text.replace(compact, client, 1)
    if changed is text:
        changed = text.replace(spaced, client_spaced, 1)
    if changed is text and b'"error"' in text:  # an error in a stream
        changed = text.replace(engines, clients)
    return changed
