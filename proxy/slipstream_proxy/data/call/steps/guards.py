"""Requests that an engine does not survive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream_proxy.data.call.step import CallStep
from slipstream_proxy.data.wire.errors import RequestRefused

if TYPE_CHECKING:
    from slipstream_proxy.data.call.parts import Call


class CpuGuard(CallStep):
    """A vLLM on a CPU ends at a request with ``prompt_logprobs``, and all other calls with it (0.32)."""

    def request(self, call: Call) -> bool:
        payload = call.route.payload
        if payload is not None and payload.get("prompt_logprobs") is not None and call.asked.target.kind != "upstream":
            message = "prompt_logprobs: this engine runs on a CPU, where it does not survive them; leave the field out"
            raise RequestRefused(400, message, param="prompt_logprobs")
        return False
