"""An engine with a script, which answers as vLLM's chat route does: one tool call, and then a sentence.

A token is a byte of the text, so that each prompt begins with the one before it where its messages do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from aiohttp import web

COMMAND = "echo hello > hello.txt"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
SHELLS = (
    *("Bash", "bash", "exec_command", "shell_command", "shell", "run_shell_command", "run_commands"),
    *("execute_command", "run_terminal_command", "terminal", "exec"),
)
"""What agents call their shell."""
ENDS = ("attempt_completion", "submit_and_exit", "submit", "finish")
"""What they call the tool that ends a run, where they have one."""
DONE = "I wrote hello into hello.txt."
EDIT = f"{DONE}\n\nhello.txt\n```\nhello\n```\n"
"""For Aider, which has no tools and takes whole files."""
SUMMARY = "The user wants the file hello.txt with the text hello in it."
PIECE = 7
"""Bytes of a streamed event's text."""


def dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def rendered(body: dict[str, Any]) -> list[int]:
    """The prompt's ids: the tools, and then each message."""
    parts = [dump(body.get("tools")), *(dump(m) for m in body["messages"]), "assistant:"]
    return list("\n".join(parts).encode("utf-8", "surrogatepass"))


def _argument(name: str, schema: dict[str, Any], command: str) -> Any:
    kind = schema.get("type")
    if name in ("command", "cmd", "commands"):
        return (["bash", "-lc", command] if name == "command" else [command]) if kind == "array" else command
    if "enum" in schema:
        return schema["enum"][0]
    return {"boolean": False, "integer": 10, "number": 10, "array": [], "object": {}}.get(str(kind), "write the file")


def _call(tool: dict[str, Any], command: str, number: int) -> dict[str, Any]:
    schema = tool["function"].get("parameters") or {}
    known = schema.get("properties") or {}
    wanted = [*(n for n in ("command", "cmd", "commands") if n in known), *schema.get("required", ())]
    arguments = {name: _argument(name, known.get(name, {}), command) for name in dict.fromkeys(wanted)}
    function = {"name": tool["function"]["name"], "arguments": dump(arguments)}
    return {"id": f"chatcmpl-tool-{number:016x}", "type": "function", "function": function}


def script(body: dict[str, Any], number: int) -> dict[str, Any]:
    """The reply to a request: its message."""
    tools = {t["function"]["name"]: t for t in body.get("tools") or ()}
    results = [m for m in body["messages"] if m.get("role") == "tool"]
    told = dump(body["messages"])
    shell = next((tools[name] for name in SHELLS if name in tools), None)
    if not tools:
        return {"content": EDIT if "hello.txt" in told and "```" in told else SUMMARY}
    if not results and shell is not None and "hello.txt" in told:
        return {"content": None, "tool_calls": [_call(shell, COMMAND, number)]}
    end = next((tools[name] for name in ENDS if name in tools), None)
    if results and end is not None:
        return {"content": None, "tool_calls": [_call(end, "", number)]}
    if results and len(tools) == 1 and shell is not None and "COMPLETE_TASK" in told:
        return {"content": None, "tool_calls": [_call(shell, SUBMIT, number)]}
    return {"content": DONE}


class Answered(NamedTuple):
    """A chat request as it came, and the bytes that its client would have got without a proxy."""

    body: dict[str, Any]
    plain: bytes


class Engine:
    """``seen``: the chat requests, as they came; ``answered``: by ``X-Request-Id``. ``others``: (method, path) of what it
    has no route for.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        self.seen: list[dict[str, Any]] = []
        self.answered: dict[str, Answered] = {}
        self.others: list[tuple[str, str]] = []

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**28)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/messages/count_tokens", self.count)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", self.health)
        app.router.add_route("*", "/{rest:.*}", self.other)
        return app

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def other(self, request: web.Request) -> web.Response:
        self.others.append((request.method, request.path))
        error = {"message": f"no {request.path}", "type": "NotFoundError", "param": None, "code": 404}
        return web.json_response({"error": error}, status=404)

    async def models(self, request: web.Request) -> web.Response:
        card = {"id": self.model, "object": "model", "owned_by": "vllm", "max_model_len": 1_000_000}
        return web.json_response({"object": "list", "data": [card]})

    async def count(self, request: web.Request) -> web.Response:
        """As a template that takes system messages anywhere, and has four tokens around each message."""
        body = await request.json()
        texts = [body["system"]] if body.get("system") else []
        texts += [m["content"] for m in body["messages"]]
        off = (
            body.get("thinking") == {"type": "disabled"}
            or (body.get("chat_template_kwargs") or {}).get("enable_thinking") is False
        )
        return web.json_response({"input_tokens": sum(4 + len(t) for t in texts) + (6 if off else 0)})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(body)
        number, call = len(self.seen), request.headers.get("x-request-id", "")
        plain = {name: value for name, value in body.items() if name not in ("return_token_ids", "logprobs")}
        self.answered[call] = Answered(body, b"".join(self.reply(plain, number)))
        if not body.get("stream"):
            return web.Response(body=next(self.reply(body, number)), content_type="application/json")
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for event in self.reply(body, number):
            await response.write(event)
        await response.write_eof()
        return response

    def reply(self, body: dict[str, Any], number: int) -> Iterator[bytes]:
        """The whole reply, or the events of a stream."""
        message = script(body, number)
        prompt, ids = rendered(body), list(dump(message).encode())
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        usage = {"prompt_tokens": len(prompt), "total_tokens": len(prompt) + len(ids), "completion_tokens": len(ids)}
        base = {"id": f"chatcmpl-{number:016x}", "created": 1_700_000_000, "model": body.get("model") or self.model}
        asked = bool(body.get("return_token_ids"))
        logprobs = {"content": [_logprob(i) for i in ids]} if body.get("logprobs") else None
        if not body.get("stream"):
            choice = {
                "index": 0,
                "message": {"role": "assistant", "refusal": None, "reasoning": None, "tool_calls": [], **message},
                "logprobs": logprobs,
                "finish_reason": finish,
                "stop_reason": None,
                "token_ids": ids if asked else None,
            }
            whole = {**base, "object": "chat.completion", "choices": [choice], "usage": usage}
            yield dump({**whole, "prompt_logprobs": None, "prompt_token_ids": prompt if asked else None}).encode()
            return
        options = body.get("stream_options") or {}
        always = {"usage": usage} if options.get("continuous_usage_stats") else {}
        deltas = [{"role": "assistant", "content": ""}, *_deltas(message)]
        for n, delta in enumerate(deltas):
            last = n == len(deltas) - 1
            choice = {
                "index": 0,
                "delta": delta,
                "logprobs": logprobs if last else None,
                "finish_reason": finish if last else None,
                **({"stop_reason": None} if last else {}),
                "token_ids": ids if asked and last else None,
            }
            event = {**base, "object": "chat.completion.chunk", "choices": [choice], **always}
            yield _event(event | ({"prompt_token_ids": prompt if asked else None} if n == 0 else {}))
        if options.get("include_usage"):
            yield _event({**base, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"


def _logprob(token: int) -> dict[str, Any]:
    return {"token": f"token_id:{token}", "logprob": -0.5, "bytes": [token], "top_logprobs": []}


def _event(event: dict[str, Any]) -> bytes:
    return b"data: " + dump(event).encode() + b"\n\n"


def _deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A message in pieces."""
    text = message.get("content") or ""
    for at in range(0, len(text), PIECE):
        yield {"content": text[at : at + PIECE]}
    for n, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        begun = {"name": function["name"], "arguments": ""}
        yield {"tool_calls": [{"id": call["id"], "type": "function", "index": n, "function": begun}]}
        for at in range(0, len(function["arguments"]), PIECE):
            yield {"tool_calls": [{"index": n, "function": {"arguments": function["arguments"][at : at + PIECE]}}]}
