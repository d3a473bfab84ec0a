"""An engine with Slipstream's plugin, as far as capture goes: the plugin's own code packs what it samples.

A prompt's ids are the letters of its messages, so that a conversation that goes on has a prompt that goes on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from aiohttp import web
from tests.support.fake_engine import FakeEngine, dump

from slipstream_vllm import capture, packing


def prompt_of(body: dict[str, Any]) -> list[int]:
    """Each message's letters between a 1 and a 2; a 3 and a 4 say that the assistant speaks next."""
    ids: list[int] = []
    for message in body["messages"]:
        ids += [1, *map(ord, message["role"] + (message["content"] or "")), 2]
    return [*ids, 3, 4]


def entry_of(ids: Sequence[int], known: Iterable[packing.Known] = ()) -> Any:
    """A prompt's entry in the member as JSON has it: index, base64, ids left out, ids that the digest tells, digest."""
    return json.loads(json.dumps(packing.prompt_entry(0, ids, known)))


class PackedEngine(FakeEngine):
    """``older``: its plugin knows nothing of prefixes. ``sent``: bytes of each prompt's ids as they were sent."""

    def __init__(self, *, older: bool = False) -> None:
        super().__init__()
        self.older = older
        self.sent: list[int] = []
        self.sampled: list[tuple[list[int], list[int], list[float]]] = []
        """Prompt, ids and log-probabilities of each call."""

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        if isinstance(body, web.Response):
            return body
        if not body.get(capture.CAPTURE_FIELD):
            return self.error(400, "the plugin was not asked")
        said = f"reply {len(self.sampled)} ]}},"
        prompt, ids = prompt_of(body), [ord(c) for c in said]
        logprobs = [-0.5 * (i % 7) for i in range(len(ids))]
        self.sampled.append((prompt, ids, logprobs))
        known = None if self.older else capture.known_prefixes(SimpleNamespace(model_extra=body))
        stream = capture.Stream(known)
        stream.prompts.append((0, prompt))
        if body.get("stream"):
            return await self._packed_stream(request, stream, said, ids, logprobs)
        stream.choices.append((0, ids, logprobs))
        packed = self._take(stream)
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        return web.json_response({"id": "chatcmpl-1", "choices": [choice], packing.PACKED_FIELD: packed}, dumps=dump)

    def _take(self, stream: capture.Stream) -> packing.Packed:
        packed = stream.take()
        assert packed is not None
        (entry,) = json.loads(json.dumps(packed["p"]))
        self.sent.append(len(entry[1]))
        return packed

    async def _packed_stream(
        self, request: web.Request, stream: capture.Stream, said: str, ids: list[int], logprobs: list[float]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        first = {
            "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}],
            packing.PACKED_FIELD: self._take(stream),
        }
        await response.write(f"data: {dump(first)}\n\n".encode())
        for i, letter in enumerate(said):
            if self.die_after == i:
                assert request.transport is not None
                request.transport.abort()
                return response
            if self.hold is not None and i == 1:
                await self.hold.wait()
            stream.choices.append((0, [ids[i]], [logprobs[i]]))
            end = "stop" if i == len(said) - 1 else None
            event = {"choices": [{"index": 0, "delta": {"content": letter}, "finish_reason": end}]}
            await response.write(capture.spliced(f"data: {dump(event)}\n\n", stream).encode())
            await asyncio.sleep(0)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def text_of(reply: bytes, *, stream: bool) -> str:
    """What a client sees of it."""
    if not stream:
        return str(json.loads(reply)["choices"][0]["message"]["content"])
    events = [json.loads(e[6:]) for e in reply.decode().split("\n\n") if e.startswith("data: {")]
    return "".join(e["choices"][0]["delta"]["content"] for e in events)
