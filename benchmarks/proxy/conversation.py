"""What a call of a long conversation costs the proxy, by the form in which the engine sends ids and log-probabilities.

    python benchmarks/proxy/conversation.py [--turns 2,10,50] [--rounds 3]

Forms: ``json`` (an engine without the plugin), ``packed`` (a plugin that sends all ids of each prompt), ``once`` (a plugin that leaves out
those that the proxy knows). An agent's first prompt has 1,500 tokens; a turn adds a reply of 150 tokens and a tool's answer of 250. The
engine is a stand-in whose replies the plugin's own code packs. One worker has one core; its CPU time and the bytes are divided by the calls.

Columns: bytes of the request to the engine, of its reply, and of the spool; microseconds of the worker, and of reading the record back as the
control plane does. Each record is compared with what was sampled; ``wrong`` must be 0. Compile first (``python -m
slipstream_proxy.process.compiled``), as for production. The last line is one JSON object with the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import aiohttp
from aiohttp import web
from targets import OTHER_CORE, Target, cpu_seconds, free_port, start_slipstream

from slipstream_proxy.dialects import BY_NAME
from slipstream_proxy.log.records import CallHead
from slipstream_proxy.log.segments import list_segments, read_segment
from slipstream_proxy.process import compiled
from slipstream_vllm import capture, packing

FIRST, REPLY, TOOL = 1500, 150, 250
CALLS = 200
AT_ONCE = 16
FORMS = ("json", "packed", "once")
MODEL = "m"
Cell = tuple[str, int, str]
"""(form, turns, whole or stream)."""


def text_of(ids: list[int]) -> str:
    return "".join(f" w{i % 1000:03d}" for i in ids)


def fresh(count: int) -> list[int]:
    return [random.randrange(150_000) for _ in range(count)]


@dataclass
class Talk:
    """One conversation: what the agent says next, and what the engine sees and answers."""

    name: str
    prompt: list[int] = field(default_factory=lambda: fresh(FIRST))
    sampled: list[int] = field(default_factory=lambda: fresh(REPLY))
    messages: list[dict[str, str]] = field(default_factory=list)
    prompts: list[tuple[list[int], list[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.messages.append({"role": "user", "content": text_of(self.prompt)})

    def go_on(self) -> None:
        self.prompts.append((self.prompt, self.sampled))
        tool = fresh(TOOL)
        self.messages += [
            {"role": "assistant", "content": text_of(self.sampled)},
            {"role": "user", "content": text_of(tool)},
        ]
        self.prompt = [*self.prompt, *self.sampled, *tool]
        self.sampled = fresh(REPLY)


class StandIn:
    """An engine that answers in one form. ``talks``: by the request's ``user``."""

    def __init__(self, form: str, talks: dict[str, Talk]) -> None:
        self.form, self.talks = form, talks
        self.requests = self.replies = 0
        self.url = ""

    async def start(self) -> StandIn:
        app = web.Application(client_max_size=2**28)
        app.router.add_post("/v1/chat/completions", self.chat)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def chat(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        self.requests += len(raw)
        body = json.loads(raw)
        talk = self.talks[body["user"]]
        if (self.form == "json") is (capture.CAPTURE_FIELD in body):
            return web.json_response({"error": "asked in the wrong form"}, status=400)
        stream = None
        if self.form != "json":
            known = capture.known_prefixes(SimpleNamespace(model_extra=body)) if self.form == "once" else None
            stream = capture.Stream(known)
            stream.prompts.append((0, talk.prompt))
        if not body.get("stream"):
            reply = whole(talk, stream)
            self.replies += len(reply)
            return web.Response(body=reply, content_type="application/json")
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for event in events(talk, stream):
            self.replies += len(event)
            await response.write(event)
            await asyncio.sleep(0)  # an event a write, as from a model
        await response.write_eof()
        return response


def logprob(i: int) -> float:
    return -((i % 997) + 1) / 512


def objects(ids: list[int]) -> list[dict[str, object]]:
    """As vLLM writes a token's log-probability."""
    return [
        {"token": text_of([i]), "logprob": logprob(i), "bytes": list(text_of([i]).encode()), "top_logprobs": []}
        for i in ids
    ]


def dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def whole(talk: Talk, stream: capture.Stream | None) -> bytes:
    ids = talk.sampled
    choice = {"index": 0, "message": {"role": "assistant", "content": text_of(ids)}, "logprobs": None}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL, "choices": [choice]}
    end = {"finish_reason": "stop", "stop_reason": None, "token_ids": None}
    if stream is None:
        choice |= {"logprobs": {"content": objects(ids)}, **end, "token_ids": ids}
        return dump({**body, "prompt_token_ids": talk.prompt}).encode()
    choice |= end
    stream.choices.append((0, ids, [logprob(i) for i in ids]))
    return dump({**body, packing.PACKED_FIELD: stream.take()}).encode()


def events(talk: Talk, stream: capture.Stream | None) -> list[bytes]:
    ids, found = talk.sampled, []
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    for at, i in enumerate(ids):
        last = "stop" if at == len(ids) - 1 else None
        choice: dict[str, object] = {"index": 0, "delta": {"content": text_of([i])}, "logprobs": None}
        choice |= {"finish_reason": last, "token_ids": None}
        event: dict[str, object] = {**base, "choices": [choice]}
        if stream is None:
            choice |= {"logprobs": {"content": objects([i])}, "token_ids": [i]}
            if at == 0:
                event["prompt_token_ids"] = talk.prompt
            found.append(f"data: {dump(event)}\n\n".encode())
            continue
        stream.choices.append((0, [i], [logprob(i)]))
        found.append(capture.spliced(f"data: {dump(event)}\n\n", stream).encode())
    return [*found, b"data: [DONE]\n\n"]


@dataclass
class Way:
    """A form, its engine, and the proxy in front of it."""

    form: str
    engine: StandIn
    proxy: Target

    async def run(self, session: aiohttp.ClientSession, turns: int, *, stream: bool) -> dict[str, float]:
        talks = [Talk(f"t{n}-{time.monotonic_ns()}") for n in range(max(1, CALLS // turns))]
        self.engine.talks.update({t.name: t for t in talks})
        requests, replies, before = self.engine.requests, self.engine.replies, cpu_seconds(self.proxy.pid)
        for _ in range(turns):
            for at in range(0, len(talks), AT_ONCE):
                await asyncio.gather(*(self.call(session, t, stream=stream) for t in talks[at : at + AT_ONCE]))
        calls = turns * len(talks)
        cpu = cpu_seconds(self.proxy.pid) - before
        spool, read_us, wrong = self.read_back({t.name: t for t in talks}, calls)
        self.engine.talks.clear()
        return {
            "request_bytes": (self.engine.requests - requests) / calls,
            "reply_bytes": (self.engine.replies - replies) / calls,
            "spool_bytes": spool / calls,
            "worker_us": cpu / calls * 1e6,
            "read_us": read_us,
            "wrong": wrong,
        }

    async def call(self, session: aiohttp.ClientSession, talk: Talk, *, stream: bool) -> None:
        body = {"model": "gpt-4o", "user": talk.name, "messages": talk.messages, "temperature": 1.0}
        headers = {"authorization": f"Bearer {self.proxy.key}", "x-slipstream-episode": talk.name}
        url = f"http://127.0.0.1:{self.proxy.port}/v1/chat/completions"
        async with session.post(url, json=body | ({"stream": True} if stream else {}), headers=headers) as reply:
            text = await reply.read()
        if reply.status != 200 or b'"slipstream":' in text or b'"token_ids":[' in text:
            raise SystemExit(f"{self.form}: {reply.status} {text[:300]!r}")
        talk.go_on()

    def read_back(self, talks: dict[str, Talk], calls: int) -> tuple[int, float, int]:
        """(bytes of these calls in the spool, microseconds to read one, how many differ from what was sampled)."""
        assert self.proxy.config is not None
        size = wrong = found = 0
        spent = 0.0
        for segments in list_segments(self.proxy.config.spool_dir).values():
            for _, path in segments:
                begin = 0
                for frame in read_segment(path):
                    length, begin = frame.end - begin, frame.end
                    if frame.head["episode"] not in talks:
                        continue
                    size, found = size + length, found + 1
                    started = time.process_time()
                    head = CallHead(**frame.head)
                    read = BY_NAME["chat"].parse(frame.request, frame.reply, head)
                    spent += time.process_time() - started
                    prompt, ids = talks[head.episode].prompts[len(read.messages) // 2]
                    (choice,) = read.choices
                    same = (read.prompt_ids, choice.completion_ids, choice.logprobs) == (
                        prompt,
                        ids,
                        [logprob(i) for i in ids],
                    )
                    wrong += not (same and read.untrainable is None)
        return size, spent / max(1, found) * 1e6, wrong + abs(calls - found)


async def start_way(stack: contextlib.ExitStack, folder: Path, form: str) -> Way:
    """The worker reads what is live from a file, as it does where the control plane is away."""
    engine = await StandIn(form, {}).start()
    told = {"url": engine.url, "ok": True, "loaded": [], "packed": form != "json"}
    data = folder / form / "process"
    data.mkdir(parents=True)
    (data / "live.json").write_text(dump({"engines": [told], "models": {}}))
    return Way(form, engine, start_slipstream(stack, folder / form, engine.url, "process"))


async def measure(options: argparse.Namespace) -> dict[Cell, list[dict[str, float]]]:
    found: dict[Cell, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        ways = [await start_way(stack, Path(name), form) for form in FORMS]
        async with aiohttp.ClientSession() as session:
            for way in ways:
                await way.run(session, 2, stream=False)
                await way.run(session, 2, stream=True)
            for number in range(options.rounds):
                for turns in (int(n) for n in options.turns.split(",")):
                    for kind in ("whole", "stream"):
                        for way in ways:
                            one = await way.run(session, turns, stream=kind == "stream")
                            found.setdefault((way.form, turns, kind), []).append(one)
                print(f"round {number + 1} of {options.rounds} done", file=sys.stderr)
    return found


def report(found: dict[Cell, list[dict[str, float]]]) -> None:
    columns = ("request_bytes", "reply_bytes", "spool_bytes", "worker_us", "read_us")
    print(f"{'turns':>6} {'reply':7}{'form':8}" + "".join(f"{c:>15}" for c in columns))
    line: dict[str, float] = {"compiled": (compiled.folder() / "ready").exists()}
    line |= {"wrong": sum(one["wrong"] for rounds in found.values() for one in rounds)}
    for (form, turns, kind), rounds in sorted(found.items(), key=lambda x: (x[0][1], x[0][2], FORMS.index(x[0][0]))):
        values = {c: statistics.median(one[c] for one in rounds) for c in columns}
        print(f"{turns:6} {kind:7}{form:8}" + "".join(f"{values[c]:15,.0f}" for c in columns))
        line |= {f"{form}_{kind}_{turns}_{c}": round(values[c], 1) for c in columns}
    print(json.dumps(line))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", default="2,10,50")
    parser.add_argument("--rounds", type=int, default=3)
    os.sched_setaffinity(0, {OTHER_CORE})
    report(asyncio.run(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
