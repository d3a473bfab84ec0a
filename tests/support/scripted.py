"""The fake engine with a script: it answers chat completions with the messages that a function returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web
from tests.support.fake_engine import FakeEngine, dump, sse

Script = Callable[[dict[str, Any]], dict[str, Any]]
"""The request's body → the assistant's message."""


class ScriptedEngine(FakeEngine):
    """Takes rewards, too, as a proxy does, where an agent is connected to it directly. `posts`: path and body."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script
        self.posts: list[tuple[str, Any]] = []
        self.models = {"model"}

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        if isinstance(body, web.Response):
            return body
        message = self.script(body)
        called = bool(message.get("tool_calls"))
        if body.get("stream"):
            return await self._stream_message(request, body, message)
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if called else "stop"}
        if body.get("return_token_ids"):
            tokens = [{"token": "x", "logprob": -0.25, "bytes": [120], "top_logprobs": []}]
            choice |= {"token_ids": [7], "logprobs": {"content": tokens}}
        usage = {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5}
        head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body["model"]}
        more = {"prompt_token_ids": [1, 2, 3, 4]} if body.get("return_token_ids") else {}
        return web.json_response({**head, "choices": [choice], "usage": usage, **more}, dumps=dump)

    async def _stream_message(
        self, request: web.Request, body: dict[str, Any], message: dict[str, Any]
    ) -> web.StreamResponse:
        """The message in one piece, after a first one that only says whose it is."""
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
        calls = [{"index": i, **call} for i, call in enumerate(message.get("tool_calls") or ())]
        delta = {k: v for k, v in message.items() if k != "role"} | ({"tool_calls": calls} if calls else {})
        choice = {"index": 0, "delta": delta, "finish_reason": "tool_calls" if calls else "stop"}
        begun: dict[str, Any] = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        more: dict[str, Any] = {}
        if body.get("return_token_ids"):
            tokens = [{"token": "x", "logprob": -0.25, "bytes": [120], "top_logprobs": []}]
            choice |= {"token_ids": [7], "logprobs": {"content": tokens}}
            more = {"prompt_token_ids": [1, 2, 3, 4]}
        await response.write(sse({**head, "choices": [begun], **more}))
        await response.write(sse({**head, "choices": [choice]}))
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5}
            await response.write(sse({**head, "choices": [], "usage": usage}))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response
