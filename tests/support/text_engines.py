"""Servers that give no token ids, as they answer: Ollama, llama.cpp's server, LM Studio, and a hosted API. Each refuses the
fields that it does not know, as the strictest of them does.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from aiohttp import web

KNOWN = {"model", "messages", "stream", "temperature", "max_tokens", "tools", "stream_options"}


class TextEngine:
    """``bodies``: path and body of each POST, as they came."""

    owner = "library"
    product: ClassVar[dict[str, str]] = {}
    """Path → JSON of a GET that only this server answers."""
    formats: tuple[str, ...] = ()
    thoughts = "reasoning"

    def __init__(self, model: str = "inbox") -> None:
        self.model = model
        self.bodies: list[tuple[str, bytes]] = []

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        return app

    def nothing(self, path: str) -> web.Response:
        return web.Response(text="404 page not found", status=404)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path, raw = request.path, await request.read()
        if request.method == "GET":
            if path == "/v1/models":
                card = {"id": self.model, "object": "model", "created": 1, "owned_by": self.owner}
                return web.json_response({"object": "list", "data": [card]})
            return web.json_response(json.loads(self.product[path])) if path in self.product else self.nothing(path)
        self.bodies.append((path, raw))
        body = json.loads(raw)
        if path in self.formats:
            return self.refuse("model is required") if "model" not in body else web.json_response(MESSAGE)
        if path != "/v1/chat/completions":
            return self.nothing(path)
        if unknown := body.keys() - KNOWN:
            return self.refuse(f"Unrecognized request argument supplied: {', '.join(sorted(unknown))}")
        return await self.chat(request, body)

    def refuse(self, why: str) -> web.Response:
        error = {"message": why, "type": "invalid_request_error", "param": None, "code": None}
        return web.json_response({"error": error}, status=400)

    async def chat(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        said = {"role": "assistant", "content": f"you said {body['messages'][-1]['content']}", self.thoughts: "hm"}
        head = {"id": "chatcmpl-7", "created": 1, "model": self.model, "system_fingerprint": "fp"}
        if not body.get("stream"):
            choice = {"index": 0, "message": said, "finish_reason": "stop"}
            usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
            return web.json_response({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        for delta, end in ((said, None), ({"role": "assistant", "content": ""}, "stop")):
            chunk = {
                **head,
                "object": "chat.completion.chunk",
                "choices": [{"index": 0, "delta": delta, "finish_reason": end}],
            }
            await reply.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        await reply.write(b"data: [DONE]\n\n")
        return reply


class Ollama(TextEngine):
    """Of before it had routes for Anthropic's and OpenAI's newer formats."""

    product: ClassVar[dict[str, str]] = {"/api/version": '{"version": "0.9.6"}'}


class LlamaCpp(TextEngine):
    owner = "llamacpp"
    product: ClassVar[dict[str, str]] = {"/health": '{"status": "ok"}'}
    formats = ("/v1/messages",)
    thoughts = "reasoning_content"

    def nothing(self, path: str) -> web.Response:
        return web.json_response(
            {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}, status=404
        )


class LMStudio(TextEngine):
    owner = "organization_owner"

    def nothing(self, path: str) -> web.Response:
        return web.json_response({"error": f"Unexpected endpoint or method. (POST {path})"})


class Hosted(TextEngine):
    owner = "system"


MESSAGE = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "inbox", "stop_reason": "end_turn", "stop_sequence": None,
    "content": [{"type": "text", "text": "by its own route"}], "usage": {"input_tokens": 3, "output_tokens": 4},
}  # fmt: skip
