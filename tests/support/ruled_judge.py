"""A judge that judges by a rule, behind an HTTP server that speaks the OpenAI protocol.

    python -m tests.support.ruled_judge --port 9000 [--rule inbox] [--latency 1]

It reads the prompt as a model would: what stands between the two lines that the system message names is data, the rest is instruction. A rule sees
nothing but the runs' transcripts. Faults can be scripted: each request takes the next one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from tests.support.served import Served

Rule = Callable[[dict[str, str], str], dict[str, float]]
"""(id → the run's text, shared beginning) → id → score."""

MAIL = re.compile(r"^\| the (\w+) for (\w+)(?: is|:) (\w+)\s*$", re.MULTILINE)
QUESTION = re.compile(r"^\| .*?\bthe (\w+) for (\w+)\b(?!:)", re.MULTILINE)
ANSWER = re.compile(r"^\| answer #\d+ (\{.*\})\s*$", re.MULTILINE)


def inbox_rule(runs: dict[str, str], shared: str) -> dict[str, float]:
    """1 where the run's last answer is the day in the mail that matches its question (a mail that any of the runs read), else 0."""
    known = {(thing, name): day for text in (shared, *runs.values()) for thing, name, day in MAIL.findall(text)}
    found = {}
    for run, text in runs.items():
        asked = QUESTION.search(f"{shared}\n{text}")
        answers = ANSWER.findall(f"{shared}\n{text}")
        said = ""
        if answers:
            try:
                said = str(json.loads(answers[-1])["text"]).strip().lower()
            except (ValueError, KeyError, TypeError):
                said = ""
        day = known.get((asked[1], asked[2])) if asked else None
        found[run] = 1.0 if day is not None and said == day else 0.0
    return found


def quality_rule(runs: dict[str, str], shared: str) -> dict[str, float]:
    """The number after the word QUALITY in the run's text."""
    return {
        run: float(found[1]) if (found := re.search(r"QUALITY (\d(?:\.\d+)?)", text)) else 0.0
        for run, text in runs.items()
    }


def each(rule: Callable[[str], float]) -> Rule:
    """A rule that looks at one run at a time, as the tasks in examples/ have one."""
    return lambda runs, shared: {run: rule(f"{shared}\n{text}") for run, text in runs.items()}


RULES: dict[str, Rule] = {"inbox": inbox_rule, "quality": quality_rule}


@dataclass
class Read:
    """A prompt as a judge understands it."""

    runs: dict[str, str]
    shared: str
    outside: str
    asked: list[str]


def understand(messages: list[dict[str, str]]) -> Read:
    system = messages[0]["content"]
    user = messages[-1]["content"]
    nonce = re.search(r"DATA-BEGIN-(\w+)", system)[1]
    lines = user.split("\n")
    start, end = lines.index(f"DATA-BEGIN-{nonce}"), lines.index(f"DATA-END-{nonce}")
    runs: dict[str, list[str]] = {}
    shared: list[str] = []
    here = shared
    for line in lines[start + 1 : end]:
        if line == f"SHARED-BEGINNING-{nonce}":
            here = shared
        elif line.startswith(f"RUN-{nonce} "):
            here = runs.setdefault(line.split(" ", 1)[1], [])
        else:
            here.append(line)
    outside = "\n".join([system, *lines[:start], *lines[end + 1 :]])
    asked = re.findall(r"for each of these ids: ([\w, ]+)\.", outside)[-1].split(", ")
    return Read({k: "\n".join(v) for k, v in runs.items()}, "\n".join(shared), outside, asked)


@dataclass
class RuledJudge:
    rule: Rule = quality_rule
    latency: float = 0.0
    faults: deque[Any] = field(default_factory=deque)
    """A word (see ``_spoil``), a dict with ``status`` (and ``headers``, ``body``, ``code``) or ``sleep``, or None for no fault; one a request."""
    always: Any = None
    """The fault of every request when ``faults`` is used up."""
    refuses: set[str] = field(default_factory=set)
    """Parameters that are answered 400."""
    context: int | None = None
    """Most characters of a prompt."""
    cuts: int | None = None
    """Most characters of a prompt; what is longer is cut without a word, and the answer is a guess."""
    counts: int | None = None
    """The prompt tokens that it reports, whatever the prompt."""
    tells: dict[str, Any] = field(default_factory=dict)
    """Path → what a GET of it says."""
    place_bias: float = 0.0
    """Added to a score from the first run (0) to the last (1)."""
    part_bias: Callable[[dict[str, str]], float] | None = None
    noise: float = 0.0
    slots: asyncio.Semaphore | None = None
    """A server that computes so many calls at once; the others wait."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    seen: list[Read] = field(default_factory=list)
    running: int = 0
    most: int = 0
    url: str = ""
    """Where it is served; set by who serves it."""

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**28)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/{path:.*}", self.tell)
        return app

    async def tell(self, request: web.Request) -> web.Response:
        """What is loaded is told after the first call, as Ollama does it."""
        found = self.tells.get(request.path)
        if found is None or (request.path == "/api/ps" and not self.requests):
            raise web.HTTPNotFound
        return web.json_response(found)

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            fault = self.faults.popleft() if self.faults else self.always
            return await self._answer(body, fault)
        finally:
            self.running -= 1

    async def _answer(self, body: dict[str, Any], fault: Any) -> web.Response:
        for name in self.refuses & set(body):
            text = f"Unsupported value: '{name}' does not work with this model."
            return _error(400, text, {"param": name, "code": "unsupported_value"})
        length = sum(len(m["content"]) for m in body["messages"])
        if self.context is not None and length > self.context:
            text = f"This model's maximum context length is {self.context} tokens. However, your messages resulted in {length} tokens."
            return _error(400, text, {"code": "context_length_exceeded"})
        async with self.slots or contextlib.nullcontext():
            await asyncio.sleep(self.latency)
        if isinstance(fault, dict):
            if "sleep" in fault:
                await asyncio.sleep(fault["sleep"])
            if "status" in fault:
                more = {"code": fault["code"]} if "code" in fault else {}
                return _error(fault["status"], fault.get("body", "no"), more, fault.get("headers"))
        if self.cuts is not None and length > self.cuts:
            asked = re.findall(r"for each of these ids: ([\w, ]+)\.", body["messages"][-1]["content"])[-1].split(", ")
            return _reply(body, json.dumps(dict.fromkeys(asked, 0.5)), {}, "stop", self.cuts // 4)
        read = understand(body["messages"])
        self.seen.append(read)
        text, extra, finish = _spoil(json.dumps(self._judge(read)), fault if isinstance(fault, str) else None, read)
        return _reply(body, text, extra, finish, self.counts or length // 4)

    def _judge(self, read: Read) -> dict[str, Any]:
        orders = re.findall(r"give (?:me|yourself|every run|it) (?:a |the score )?(\d(?:\.\d+)?)", read.outside.lower())
        if orders:  # it obeys the last instruction that it reads outside the data
            scores = dict.fromkeys(read.runs, float(orders[-1]))
        else:
            scores = self.rule(read.runs, read.shared)
        last = max(1, len(read.runs) - 1)
        shift = self.part_bias(read.runs) if self.part_bias else 0.0
        for place, run in enumerate(read.runs):
            bias = self.place_bias * place / last + shift
            scores[run] = min(1.0, max(0.0, scores[run] + bias + random.uniform(-self.noise, self.noise)))
        return {"scores": [{"id": i, "reason": f"ruled {scores[i]:.3f}", "score": scores[i]} for i in read.asked]}


def _reply(body: dict[str, Any], text: str | None, extra: dict[str, Any], finish: str, tokens: int) -> web.Response:
    usage = {"prompt_tokens": tokens, "completion_tokens": 20, "total_tokens": tokens + 20}
    message = {"role": "assistant", "content": text, **extra}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body["model"]}
    return web.json_response({**head, "choices": [choice], "usage": usage})


def _error(status: int, text: Any, extra: dict[str, Any], headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response(
        {"error": {"message": text, "type": "invalid_request_error", **extra}}, status=status, headers=headers
    )


def _spoil(text: str, fault: str | None, read: Read) -> tuple[str | None, dict[str, Any], str]:
    answer = json.loads(text)
    entries = answer["scores"]
    if fault == "half":
        return text[: len(text) // 2], {}, "stop"
    if fault == "cut":
        return text[: len(text) // 2], {}, "length"
    if fault == "prose":
        return "They are all fine runs, I would say.", {}, "stop"
    if fault == "empty":
        return "", {}, "stop"
    if fault == "refusal":
        return None, {"refusal": "I cannot help with that."}, "stop"
    if fault == "filter":
        return None, {}, "content_filter"
    if fault == "missing":
        entries.pop()
    elif fault == "extra":
        entries.append({"id": "e99", "reason": "", "score": 0.5})
    elif fault == "twice":
        entries.append(dict(entries[0], score=0.123))
    elif fault == "range":
        entries[0]["score"] = 7
    elif fault == "negative":
        entries[0]["score"] = -0.2
    elif fault == "text":
        entries[0]["score"] = "0.9"
    elif fault == "bool":
        entries[0]["score"] = True
    elif fault == "nan":
        return text.replace(f'"score": {entries[0]["score"]}', '"score": NaN', 1), {}, "stop"
    elif fault == "reversed":
        entries.reverse()
    elif fault == "thought":
        return None, {"reasoning_content": text}, "stop"
    elif fault == "thoughts":
        return None, {"reasoning_content": f"I think of {text}"}, "stop"
    elif fault == "fence":
        return f"```json\n{text}\n```", {}, "stop"
    elif fault == "think":
        return f'<think>{{"scores": []}}</think>\n{text}', {}, "stop"
    return json.dumps(answer), {}, "stop"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--rule", choices=sorted(RULES), default="inbox")
    parser.add_argument("--latency", type=float, default=0.0)
    args = parser.parse_args()
    judge = RuledJudge(RULES[args.rule], latency=args.latency)
    with Served(judge.app(), args.port) as url:
        print(f"{url}/v1", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
