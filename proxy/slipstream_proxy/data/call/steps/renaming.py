"""Replies name the model as the client does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from slipstream.shared.tenant_names import engine_name
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

    def __init__(self, tenant: str = "") -> None:
        """``tenant``: whose adapters these are."""
        self._tenant = tenant
        self._engine = self._client = ""
        self._names: Names | None = None
        """Of the latest call: the next one mostly has the same."""

    def choose(self, call: Call) -> bool:
        engine, client = call.route.adapter, call.asked.model
        if self._tenant and call.asked.target.kind != "upstream":
            engine = engine_name(engine, self._tenant)
        if engine != client:
            if self._names is None or engine != self._engine or client != self._client:
                self._engine, self._client, self._names = engine, client, names_of(engine, client)
            call.route.rename(self._names)
        return True

    def event(self, call: Call, event: bytes) -> bytes | None:
        names, reply = call.route.names, call.reply
        if names is None:
            return event
        if reply.start and event.startswith(reply.start):
            return reply.shown_start + event[len(reply.start) :]
        before, found, _ = event.partition(names[0])
        if found:
            reply.begin_events(before + found, before + names[1])
        return _renamed(event, names)

    def response_body(self, call: Call, status: int, body: bytes) -> bytes:
        names = call.route.names
        if names is None:
            return body
        return _renamed(body, names) if status == 200 else body.replace(names[4], names[5])


def _renamed(text: bytes, names: Names) -> bytes:
    compact, client, spaced, client_spaced, engines, clients = names
    before, found, behind = text.partition(compact)  # costs less than ``replace``, which counts first
    changed = b"%b%b%b" % (before, client, behind) if found else text.replace(spaced, client_spaced, 1)
    if changed is text and b'"error"' in text:  # an error in a stream
        changed = text.replace(engines, clients)
    return changed
