"""What exact capture needs of the engine, and the client must not see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream_proxy.data.call.step import CallStep
from slipstream_proxy.data.episode.prompts import asking
from slipstream_proxy.dialects.token_arrays import ASKED, cut, cut_event
from slipstream_proxy.parse_weight import too_heavy

if TYPE_CHECKING:
    from slipstream_proxy.data.call.call import ActiveCall
    from slipstream_proxy.data.engines.live import LiveView
    from slipstream_proxy.data.engines.models import ModelMap
    from slipstream_proxy.data.episode.prompts import PromptMemory
    from slipstream_proxy.dialects.base import Injected
    from slipstream_proxy.json_types import JsonObject


class Capture(CallStep):
    """Maps the model, asks for token ids and log-probabilities, and hides them from a client that did not ask."""

    def __init__(self, models: ModelMap, live: LiveView, prompts: PromptMemory) -> None:
        self._models = models
        self._live = live
        self._prompts = prompts

    def request(self, call: ActiveCall) -> bool:
        payload = call.payload
        asked = payload.get("model") if payload is not None else None
        call.model = asked if isinstance(asked, str) and asked else self._models.default
        call.target = self._models.of(call.model)
        call.adapter = call.target.model
        if payload is None or (asked is not None and not isinstance(asked, str)):
            call.note = "too heavy a request" if payload is None and too_heavy(call.body) else "unreadable request"
            call.payload = None
        elif call.target.kind != "upstream":
            injected = self._inject(call, payload)
            if injected.back is not None:
                call.back, call.plain = injected.back, payload
            call.payload, call.note = injected.body, injected.note
            call.hide = injected.hide or None
            if injected.hide.packed and call.episode is not None:
                call.prefixes = self._prompts.of(call.episode)
                injected.body[ASKED] = asking(call.prefixes)
        return False

    def _inject(self, call: ActiveCall, payload: JsonObject) -> Injected:
        hides = call.dialect.name == "chat" and payload.get("include_reasoning") is False
        if not hides or self._live.parses:
            return call.dialect.inject(payload, packed=self._live.packed)
        del payload["include_reasoning"]  # without a parser the engine hides nothing, and gives ids all the same
        injected = call.dialect.inject(payload, packed=self._live.packed)
        injected.body["include_reasoning"] = False
        return injected

    def event(self, call: ActiveCall, event: bytes) -> bytes | None:
        hide = call.hide
        if hide is None or call.back is not None:
            return event  # a translator makes new events of it, and needs the length of the prompt
        return cut_event(event) if hide.packed else call.dialect.event(event, hide)

    def response_body(self, call: ActiveCall, status: int, body: bytes) -> bytes:
        hide = call.hide
        if hide is None or call.back is not None or status != 200:
            return body
        return cut(body) if hide.packed else call.dialect.whole(body, hide)
