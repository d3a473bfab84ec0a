"""A server that speaks vLLM's protocol as far as the data plane needs it: ids and log-probabilities when asked, null when not.

Its text is a function of the request, so that a bare and an injected request get the same reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from aiohttp import web
from aiohttp.typedefs import Handler
from tests.support.sleeping import Sleeping

log = logging.getLogger("fake engine")
WORDS = ["Hello", " wor", "ld", ' "]},', '"finish_reason":', " ünï", " ✓"]


def dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class FakeEngine:
    """``seen``: bodies and headers of the calls. ``aborted`` counts streams whose client went away."""

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, Any], dict[str, str]]] = []
        self.raw: list[bytes] = []
        self.aborted = 0
        self.models = {"tiny"}
        self.delay = 0.0
        self.die_after: int | None = None
        self.fail_with: int | None = None
        self.hold: asyncio.Event | None = None
        self.sleeping = Sleeping()
        self.parser = False
        """A reasoning or tool parser: it hides ids and log-probabilities from calls with ``include_reasoning: false``."""
        self.sampling: dict[str, float] = {}
        """What it samples with where a call says nothing. Of it only a temperature shows without the plugin."""
        self.up = True
        """False: /health answers 503."""
        self.texts: dict[int, str] = {}
        """Token → its text, for /detokenize. None is known where this is empty, as of an engine without the route."""
        self.url = ""
        self._runner: web.AppRunner | None = None
        self._port = 0

    async def start(self, port: int = 0) -> Self:
        """On ``port``, else where it was before, else on a free one."""
        app = web.Application(client_max_size=2**28, middlewares=[self._checked])
        self.sleeping.add(app)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_post("/v1/messages", self.messages)
        app.router.add_post("/v1/embeddings", self.embeddings)
        app.router.add_get("/v1/models", self.list_models)
        app.router.add_post("/v1/load_lora_adapter", self.admin)
        app.router.add_post("/v1/unload_lora_adapter", self.admin)
        app.router.add_post("/detokenize", self.detokenize)
        app.router.add_get("/health", self.health)
        self.add_more(app)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1, logger=log)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port or self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"
        return self

    def add_more(self, app: web.Application) -> None:
        """Routes that another kind of engine has."""

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @web.middleware
    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """A field of the wrong type, or a missing one, is the client's mistake."""
        try:
            return await handler(request)
        except (TypeError, ValueError, LookupError, AttributeError) as e:
            return self.error(400, f"the body is refused: {e!r}")

    def known(self) -> set[str]:
        """Models that it serves."""
        return self.models

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.up else 503)

    async def admin(self, request: web.Request) -> web.Response:
        assert not await request.json(), "an admin route was reached"
        return self.error(400, "lora_name is missing")  # the proxy asks whether there is the route

    def told_of(self, model: str) -> dict[str, Any]:
        """What else ``/v1/models`` says of it."""
        return {}

    async def list_models(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "object": "list",
                "data": [
                    {"id": m, "object": "model", "owned_by": "vllm", "max_model_len": 4096, **self.told_of(m)}
                    for m in sorted(self.known())
                ],
            }
        )

    async def embeddings(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.seen.append((body, dict(request.headers)))
        return web.json_response({"object": "list", "model": body["model"], "data": [{"embedding": [0.5]}]}, dumps=dump)

    async def _body(self, request: web.Request) -> dict[str, Any] | web.Response:
        await self.sleeping.wait()
        raw = await request.read()
        self.raw.append(raw)
        try:
            body = json.loads(raw)
        except ValueError:
            return self.error(400, "the body is no JSON")
        if not isinstance(body, dict):
            return self.error(400, "the body is no object")
        self.seen.append((body, dict(request.headers)))
        if self.fail_with:
            return self.error(self.fail_with, "told to fail")
        if body.get("model") not in (None, *self.known()):
            return self.error(404, f"The model `{body['model']}` does not exist.")
        if self.delay:
            await asyncio.sleep(self.delay)
        return body

    def error(self, status: int, message: str) -> web.Response:
        return web.json_response(
            {"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}},
            status=status,
            dumps=dump,
        )

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        if isinstance(body, web.Response):
            return body
        hidden = self.parser and body.get("include_reasoning") is False
        ids, lps = bool(body.get("return_token_ids")) and not hidden, bool(body.get("logprobs")) and not hidden
        words = [*WORDS, " " + str(len(body.get("messages", [])))]
        prompt = list(range(10, 14))
        if not body.get("stream"):
            if self.hold:
                await self.hold.wait()
            choices = [
                {
                    "index": i,
                    "message": {"role": "assistant", "content": "".join(words), "refusal": None, "reasoning": None},
                    "logprobs": {"content": [lp(w, body) for w in words]} if lps else None,
                    "finish_reason": "stop",
                    "stop_reason": None,
                    "token_ids": list(range(len(words))) if ids else None,
                    "routed_experts": None,
                }
                for i in range(body.get("n") or 1)
            ]
            return web.json_response(
                {
                    "id": "chatcmpl-1",
                    "object": "chat.completion",
                    "created": 1,
                    "model": body.get("model") or "tiny",
                    "choices": choices,
                    "service_tier": None,
                    "usage": {"prompt_tokens": 4, "completion_tokens": len(words), "total_tokens": 4 + len(words)},
                    "prompt_logprobs": None,
                    "prompt_token_ids": prompt if ids else None,
                    "kv_transfer_params": None,
                },
                dumps=dump,
            )
        return await self._stream(request, body, words, prompt, ids=ids, lps=lps)

    async def _stream(self, request, body, words, prompt, *, ids, lps):
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        base = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": body.get("model") or "tiny",
        }
        try:
            await response.write(
                sse(
                    {
                        **base,
                        "choices": [
                            {
                                "index": 0,
                                "delta": {"role": "assistant", "content": ""},
                                "logprobs": None,
                                "finish_reason": None,
                            }
                        ],
                        "prompt_token_ids": prompt if ids else None,
                    }
                )
            )
            for i, word in enumerate(words):
                if self.die_after == i:
                    request.transport.abort()
                    return response
                if self.hold and i == 1:
                    await self.hold.wait()
                if self.delay:
                    await asyncio.sleep(self.delay)
                last = i == len(words) - 1
                hidden = word == " wor"  # as tool mark-up: nothing for a client, but tokens
                if hidden and not ids and not lps:
                    continue
                choice = {
                    "index": 0,
                    "delta": {} if hidden else {"content": word},
                    "logprobs": {"content": [lp(word, body)]} if lps else None,
                    "finish_reason": "stop" if last else None,
                }
                if last:
                    choice["stop_reason"] = None
                choice["token_ids"] = [i] if ids else None
                await response.write(sse({**base, "choices": [choice]}))
            if (body.get("stream_options") or {}).get("include_usage"):
                await response.write(
                    sse(
                        {
                            **base,
                            "choices": [],
                            "usage": {
                                "prompt_tokens": 4,
                                "completion_tokens": len(words),
                                "total_tokens": 4 + len(words),
                            },
                        }
                    )
                )
            await response.write(b"data: [DONE]\n\n")
            await response.write_eof()
        except (asyncio.CancelledError, ConnectionError):
            self.aborted += 1
            raise
        return response

    async def detokenize(self, request: web.Request) -> web.Response:
        ids = (await request.json())["tokens"]
        if not self.texts:
            raise web.HTTPNotFound
        return web.json_response({"prompt": "".join(self.texts.get(i, "\ufffd") for i in ids)})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        if isinstance(body, web.Response):
            return body
        ids, lps = bool(body.get("return_token_ids")), body.get("logprobs") is not None
        likely = self.likely(body.get("model")) / (body.get("temperature") or self.sampling.get("temperature", 1.0))
        logprobs = (
            {"text_offset": [0], "token_logprobs": [likely], "tokens": ["x"], "top_logprobs": [{"x": likely}]}
            if lps
            else None
        )
        choice = {
            "index": 0,
            "text": "x",
            "logprobs": logprobs,
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": [7] if ids else None,
            "prompt_logprobs": None,
            "prompt_token_ids": [1, 2] if ids else None,
        }
        return web.json_response(
            {
                "id": "cmpl-1",
                "object": "text_completion",
                "created": 1,
                "model": body.get("model") or "tiny",
                "choices": [choice],
                "usage": {"prompt_tokens": 2},
            },
            dumps=dump,
        )

    def likely(self, model: str | None) -> float:
        """The log-probability of a completion's one token."""
        return -0.5

    async def messages(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        if isinstance(body, web.Response):
            return body
        return web.json_response(
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": body["model"],
                "content": [{"type": "text", "text": "hi"}],
                "stop_reason": "end_turn",
            },
            dumps=dump,
        )


class LoraEngine(FakeEngine):
    """With vLLM's adapter routes, and a record of what the control plane asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.adapters: dict[str, str] = {}
        """Name → path it was loaded from, which ``/v1/models`` tells as ``root``."""
        self.keep_all = False
        """Unloading answers 500."""
        self.refuse: dict[str, int] = {}
        """Adapter → status that loading it is answered with; 0: 503, after some seconds."""
        self.takes_none: str | None = None
        """``no routes``: started without VLLM_ALLOW_RUNTIME_LORA_UPDATING. ``no LoRA``: without --enable-lora. It answers
        as vLLM 0.32 does."""
        self.unmounted = False
        """The folder of adapters is not there."""
        self.plugin = False
        """It has Slipstream's."""
        self.use: dict[str, dict[str, float]] = {}
        """Tenant → what the plugin counted."""
        self.version = "0.32.0"
        self.calls: list[tuple[str, str]] = []
        """``load``, ``unload`` or ``warm``, and the model."""
        self.ignored: set[str] = set()
        """Adapters that are loaded and change nothing. Their louder twins' names end with theirs."""
        self.faint: set[str] = set()
        """Adapters of which only the louder twin changes anything."""

    def known(self) -> set[str]:
        return self.models | self.adapters.keys()

    def told_of(self, model: str) -> dict[str, Any]:
        return {"root": self.adapters[model], "parent": "tiny"} if model in self.adapters else {"root": "/models/tiny"}

    def restart(self, takes_none: str | None = None) -> None:
        """It forgets its adapters, as a vLLM that was started again."""
        self.adapters.clear()
        self.takes_none = takes_none

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if body.get("logprobs") is None:
            self.calls.append(("warm", body.get("model")))
        return await super().completions(request)

    def likely(self, model: str | None) -> float:
        used = model in self.adapters and model not in self.faint and not any(model.endswith(n) for n in self.ignored)
        return -0.75 if used else -0.5

    def add_more(self, app: web.Application) -> None:
        app.router.add_get("/slipstream", self.hello)
        app.router.add_get("/slipstream/adapters", self.told_use)
        app.router.add_get("/version", self.told_version)

    async def hello(self, request: web.Request) -> web.Response:
        return (
            web.json_response({"packed": 1, "sampling": self.sampling})
            if self.plugin
            else web.json_response({"detail": "Not Found"}, status=404)
        )

    async def told_use(self, request: web.Request) -> web.Response:
        return web.json_response({"owners": self.use})

    async def told_version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.version})

    async def admin(self, request: web.Request) -> web.Response:
        if self.takes_none == "no routes":
            return web.json_response({"detail": "Not Found"}, status=404)
        body = await request.json()
        name, load = body["lora_name"], request.path.endswith("/load_lora_adapter")
        self.calls.append(("load" if load else "unload", name))
        if load and self.takes_none == "no LoRA":
            why = "Worker failed with error 'LoRA is not enabled. Use --enable-lora to enable LoRA.'"
            return self.error(500, f"Call to add_lora method failed: {why}")
        if load and name in self.refuse:
            status = self.refuse[name]
            if not status:
                await asyncio.sleep(3.0)
            return self.error(status or 503, "no")
        if not load and self.keep_all:
            return self.error(500, "no")
        if load == (name in self.adapters):
            return self.error(400 if load else 404, f"{name} is {'already' if load else 'not'} loaded")
        if load and (self.unmounted or not (Path(body["lora_path"]) / "adapter_config.json").exists()):
            return self.error(404, f"Loading lora {name} failed: No adapter found for {body['lora_path']}")
        if load:
            self.adapters[name] = body["lora_path"]
        else:
            del self.adapters[name]
        return web.Response(text="Success")


@contextlib.contextmanager
def beside(engine: FakeEngine) -> Iterator[FakeEngine]:
    """The engine in a thread of its own, for tests that wait."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(engine.start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield engine
    finally:
        asyncio.run_coroutine_threadsafe(engine.stop(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


def lp(word: str, body: dict[str, Any]) -> dict[str, Any]:
    top = [{"token": word, "logprob": -0.25, "bytes": list(word.encode())}] * (body.get("top_logprobs") or 0)
    return {"token": word, "logprob": -0.25, "bytes": list(word.encode()), "top_logprobs": top}


def sse(value: Any) -> bytes:
    return f"data: {dump(value)}\n\n".encode()


@pytest.fixture(scope="module", name="engine")
def inbox_engine() -> Iterator[LoraEngine]:
    """It serves the inbox model, and takes adapters."""
    engine = LoraEngine()
    engine.models = {"inbox"}
    with beside(engine):
        yield engine
