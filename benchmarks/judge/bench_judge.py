"""Groups a minute that one judge process scores, with a model that takes one second, at several concurrencies; and its CPU per group.

    python benchmarks/judge/bench_judge.py [--rounds 12] [--levels 1,16,64] [--words 0,1000,10000]

``--rounds``: so many groups for each slot wait at the start. ``--words``: how much longer each of a group's eight runs is.

The model and the control API (tests/support/control.py) are processes of their own, over HTTP on loopback; LiteLLM, the cache and the posting
of scores are the real ones. Ideal is ``concurrency`` groups a second. The clock runs from the first lease to
the last posted score. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import re
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), *(str(ROOT / part) for part in ("sdk", "judge"))]

LATENCY = 1.0
SIZE = 8


async def answer(request: Any) -> Any:
    """The least that a model does: wait, and give every run that was asked for a score."""
    from aiohttp import web

    began = time.perf_counter()
    body = await request.json()
    ids = re.search(r"for each of these ids: ([\w, ]+)\.", body["messages"][-1]["content"][-400:])[1].split(", ")
    text = json.dumps({"scores": [{"id": i, "reason": "as it is", "score": n / len(ids)} for n, i in enumerate(ids)]})
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
    await asyncio.sleep(LATENCY - (time.perf_counter() - began))
    return web.json_response(
        {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [choice],
            "usage": usage,
        }
    )


def serve_model(pipe: Connection) -> None:
    from aiohttp import web
    from tests.support.served import Served

    app = web.Application(client_max_size=2**28)
    app.router.add_post("/v1/chat/completions", answer)
    with Served(app) as url:
        pipe.send(url)
        pipe.recv()


def serve_control(pipe: Connection, count: int, run: str, words: int) -> None:
    from tests.support.control import FakeControl
    from tests.support.groups import quality_group
    from tests.support.served import Served

    control, more = FakeControl(), " ".join(f"word{n}" for n in range(words))
    control.add_groups(
        *(
            quality_group(
                f"{run}-{n}", [round((n + k) % 10 / 10 + k / 1000, 3) for k in range(SIZE)], filler=f"{n} {more}"
            )
            for n in range(count)
        )
    )
    with Served(control.app()) as url:
        pipe.send(url)
        while pipe.recv() == "count":
            pipe.send(len(control.scored))


def start(target: Any, *args: Any) -> tuple[Any, Connection, str]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=target, args=(theirs, *args), daemon=True)
    process.start()
    return process, ours, ours.recv()


async def measure(model: str, control: str, pipe: Connection, concurrency: int, count: int) -> tuple[float, float]:
    """(seconds, CPU seconds of this process) for ``count`` groups."""
    from slipstream.client import AsyncClient
    from slipstream.config import Config
    from slipstream_judge.run.worker import JudgeWorker

    judge = {"model": "openai/ruled", "api_base": f"{model}/v1", "concurrency": concurrency}
    stop = asyncio.Event()
    async with AsyncClient(control) as client:
        worker = JudgeWorker(Config.model_validate({"judge": judge}), client)
        began, cpu = time.perf_counter(), time.process_time()
        task = asyncio.create_task(worker.run(stop))
        done = 0
        while done < count:
            await asyncio.sleep(0.02)
            if worker.metrics.groups.labels("scored")._value.get() >= count:
                pipe.send("count")
                done = pipe.recv()
        seconds, used = time.perf_counter() - began, time.process_time() - cpu
        stop.set()
        await task
    return seconds, used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="groups for each slot")
    parser.add_argument("--levels", default="1,16,64")
    parser.add_argument("--words", default="0")
    args = parser.parse_args()
    from slipstream_judge.loop import run_loop
    from slipstream_judge.model.llm import litellm

    litellm()
    result: dict[str, float] = {}
    model_process, model_pipe, model = start(serve_model)
    cases = [(int(level), int(words)) for level in args.levels.split(",") for words in args.words.split(",")]
    for level, words in cases:
        for warm, count in ((True, level), (False, level * args.rounds)):
            process, pipe, control = start(serve_control, count, f"c{level}{'w' if warm else ''}", words)
            seconds, cpu = run_loop(measure(model, control, pipe, level, count))
            pipe.send("end")
            process.join(30)
        ideal = count * LATENCY / level
        of = f"c{level}" + f"_w{words}" * (words > 0)
        result[f"throughput_vs_ideal_{of}"] = round(ideal / seconds, 4)
        result[f"groups_per_minute_{of}"] = round(60 * count / seconds, 1)
        result[f"cpu_ms_per_group_{of}"] = round(1000 * cpu / count, 2)
        print(
            f"concurrency {level:3}, {words} more words: {60 * count / seconds:7.1f} groups/min, {ideal / seconds:.3f} of ideal, {1000 * cpu / count:.1f} ms CPU a group"
        )
    model_pipe.send("end")
    model_process.join(30)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
