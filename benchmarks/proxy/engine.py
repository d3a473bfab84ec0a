"""A stand-in for vLLM that can be killed: health, adapters in and out, and chat streams of one event each ``gap`` seconds, with ids when asked.
A request with ``max_tokens`` gets that many events, without a gap.

python benchmarks/proxy/engine.py PORT TOKENS GAP_SECONDS
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from aiohttp import web

BASE = "m"


class Engine:
    def __init__(self, tokens: int, gap: float) -> None:
        self.tokens, self.gap = tokens, gap
        self.adapters: dict[str, str] = {}

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**26)
        app.router.add_get("/health", self.health)
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/load_lora_adapter", self.load)
        app.router.add_post("/v1/unload_lora_adapter", self.unload)
        app.router.add_post("/v1/completions", self.warm)
        app.router.add_post("/v1/chat/completions", self.chat)
        return app

    async def health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def models(self, _: web.Request) -> web.Response:
        cards: list[dict[str, Any]] = [{"id": BASE, "root": BASE}]
        cards += [{"id": name, "root": path} for name, path in self.adapters.items()]
        return web.json_response({"object": "list", "data": cards})

    async def load(self, request: web.Request) -> web.Response:
        body = await request.json()
        if not (Path(body["lora_path"]) / "adapter_config.json").exists():
            return web.json_response({"error": {"message": "no adapter there"}}, status=404)
        self.adapters[body["lora_name"]] = body["lora_path"]
        return web.Response(text="Success")

    async def unload(self, request: web.Request) -> web.Response:
        known = self.adapters.pop((await request.json())["lora_name"], None)
        return web.Response(status=200 if known else 404)

    def knows(self, name: str) -> bool:
        return name == BASE or name in self.adapters

    async def warm(self, request: web.Request) -> web.Response:
        name = (await request.json())["model"]
        return web.json_response({"choices": [{"text": "x"}]}, status=200 if self.knows(name) else 404)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        name = body["model"]
        if not self.knows(name):
            return web.json_response({"error": {"message": f"The model `{name}` does not exist."}}, status=404)
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        injected = body.get("return_token_ids") is True
        tokens, gap = (body["max_tokens"], 0.0) if "max_tokens" in body else (self.tokens, self.gap)
        for n in range(tokens):
            await response.write(event(name, n, last=n == tokens - 1, injected=injected))
            await asyncio.sleep(gap)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def event(name: str, n: int, *, last: bool, injected: bool) -> bytes:
    """As vLLM writes them."""
    token = {"token": " word", "logprob": -0.125, "bytes": [32, 119, 111, 114, 100], "top_logprobs": []}
    choice: dict[str, Any] = {
        "index": 0,
        "delta": {"content": " word"},
        "logprobs": {"content": [token]} if injected else None,
    }
    choice |= {"finish_reason": "stop" if last else None, "token_ids": [1000 + n] if injected else None}
    value = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": name, "choices": [choice]}
    if n == 0:
        value["prompt_token_ids"] = list(range(500, 532)) if injected else None
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def main() -> None:
    port, tokens, gap = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    engine = Engine(tokens, gap)
    web.run_app(engine.app(), host="127.0.0.1", port=port, print=None, handler_cancellation=True, access_log=None)


if __name__ == "__main__":
    main()
