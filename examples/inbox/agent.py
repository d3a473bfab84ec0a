"""The inbox agent: finds a mail and answers a question about it, with the stock OpenAI client.

    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 python examples/inbox/agent.py --episodes 64 --concurrency 32

It runs against any OpenAI-compatible endpoint that supports tools. Where the endpoint is a Slipstream proxy, the headers
say which episode, task and split a call belongs to, and the reward is posted over HTTP; elsewhere the headers mean
nothing and the post is answered 404, which is fine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
from openai import AsyncOpenAI

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # its folder is a package there

from inbox.inbox import SYSTEM, TOOLS, Mailbox, Task, make_task, make_tasks, reward, task_seed

__all__ = ["Result", "Task", "finish", "make_client", "make_tasks", "run_all", "run_episode", "schedule"]

MAX_CALLS = 4
MAX_TOKENS = 24


@dataclass
class Result:
    """One finished episode. `replies` holds the raw chat completions, in order, when they were asked for."""

    episode_id: str
    task_id: str
    split: str
    reward: float
    calls: int
    answer: str | None = None
    reward_posted: bool = False
    replies: list[Any] = field(default_factory=list)


def make_client(base_url: str | None = None, api_key: str | None = None, concurrency: int = 64) -> AsyncOpenAI:
    """One client for all episodes, with enough kept-alive connections. Defaults: OPENAI_BASE_URL, OPENAI_API_KEY."""
    limits = httpx.Limits(max_connections=concurrency + 8, max_keepalive_connections=concurrency + 8)
    return AsyncOpenAI(
        base_url=base_url or os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=api_key or os.environ.get("OPENAI_API_KEY") or "none",
        http_client=httpx.AsyncClient(limits=limits, timeout=httpx.Timeout(120.0)),
    )


async def post(client: AsyncOpenAI, path: str, body: dict[str, Any]) -> bool:
    """POST to the server's Slipstream API. False where the server has no such route, or knows no such episode."""
    root = str(client.base_url).rstrip("/").removesuffix("/v1")
    try:
        await client.post(f"{root}{path}", cast_to=httpx.Response, body=body)
    except openai.APIStatusError as error:
        if error.status_code in (404, 405, 501):
            return False
        raise
    return True


async def finish(client: AsyncOpenAI, episode_id: str, value: float | None) -> bool:
    """Post the episode's reward (None: a judge scores it) and that it has ended.

    Returns whether a reward was taken; False where nobody wants to know.
    """
    path = f"/slipstream/v1/episodes/{episode_id}"
    taken = False
    if value is not None:
        taken = await post(client, f"{path}/rewards", {"name": "reward", "value": value, "source": "agent"})
        if not taken:
            return False
    await post(client, f"{path}/done", {})
    return taken


async def run_episode(
    client: AsyncOpenAI,
    task: Task,
    *,
    episode_id: str,
    split: str = "train",
    model: str = "inbox",
    temperature: float = 1.0,
    max_calls: int = MAX_CALLS,
    extra_body: dict[str, Any] | None = None,
    keep_replies: bool = False,
    tagged: bool = True,
    post_reward: bool = True,
) -> Result:
    """Answer one task with at most `max_calls` model calls, and post the reward (or only that it is done).

    Without `tagged` no header says which episode it is, and nothing is posted.

    The episode ends with the tool `answer`, with a reply without a tool call, or with the last call. Errors of the API
    are raised, and no reward is posted then.
    """
    headers = {"x-slipstream-episode": episode_id, "x-slipstream-task": task.id, "x-slipstream-split": split}
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task.question}]
    result = Result(episode_id, task.id, split, 0.0, 0)
    box = Mailbox(task)
    try:
        while result.calls < max_calls and result.answer is None:
            reply = await client.chat.completions.create(
                model=model,
                messages=messages,
                tools=TOOLS,  # type: ignore[arg-type]
                temperature=temperature,
                max_tokens=MAX_TOKENS,
                extra_headers=headers if tagged else None,
                extra_body=extra_body,
            )
            result.calls += 1
            if keep_replies:
                result.replies.append(reply)
            message = reply.choices[0].message
            if not message.tool_calls:
                break
            messages.append(assistant_message(message))
            for call in message.tool_calls:
                name, arguments = call.function.name, call.function.arguments
                if name == "answer":
                    result.answer = answer_text(arguments)
                    break
                messages.append({"role": "tool", "tool_call_id": call.id, "content": box.call(name, arguments)})
    finally:
        box.close()
    result.reward = reward(task, result.answer)
    if tagged:
        result.reward_posted = await finish(client, episode_id, result.reward if post_reward else None)
    return result


def assistant_message(message: Any) -> dict[str, Any]:
    """The model's message as it goes into the next request: its content and its tool calls, nothing else."""
    calls = [
        {"id": c.id, "type": "function", "function": {"name": c.function.name, "arguments": c.function.arguments}}
        for c in message.tool_calls
    ]
    return {"role": "assistant", "content": message.content, "tool_calls": calls}


def answer_text(arguments: str) -> str:
    """The text of an `answer` call; empty when its arguments are no JSON object with a text."""
    try:
        return str(json.loads(arguments)["text"])
    except (ValueError, TypeError, KeyError):
        return ""


def schedule(split: str, seed: int, group: int, count: int | None) -> Iterator[tuple[Task, str]]:
    """Tasks with episode ids: each task `group` times over, `count` episodes in all, or without end (None)."""
    run = uuid.uuid4().hex[:8]
    index = 0
    while count is None or index < count:
        task = make_task(task_seed(split, (index // group) % 100_000, seed))
        yield task, f"{task.id}-{run}-{index}"
        index += 1


async def run_all(
    episodes: Iterator[tuple[Task, str]],
    run: Callable[[Task, str], Awaitable[Result]],
    *,
    concurrency: int = 32,
    on_result: Callable[[Result | Exception], None],
) -> None:
    """Run episodes, `concurrency` at a time, and hand each result, or the error that ended it, to `on_result`."""

    async def worker() -> None:
        for task, episode_id in episodes:
            try:
                outcome: Result | Exception = await run(task, episode_id)
            except (openai.OpenAIError, httpx.HTTPError) as error:
                outcome = error
                await asyncio.sleep(0.2)  # an endpoint that is down is not hammered
            on_result(outcome)

    await asyncio.gather(*(worker() for _ in range(concurrency)))


async def run_from_arguments(args: argparse.Namespace) -> int:
    """Run what the command line asked for. Returns the exit code: 1 when an episode failed."""
    client = make_client(args.base_url, concurrency=args.concurrency)
    done: list[Result] = []
    failed: list[Exception] = []
    began = time.monotonic()

    def note(outcome: Result | Exception) -> None:
        if isinstance(outcome, Result):
            done.append(outcome)
            if len(done) % 32 == 0:
                last = done[-128:]
                rate = sum(r.reward for r in last) / len(last)
                print(f"{len(done)} episodes, success of the last {len(last)}: {rate:.2f}", file=sys.stderr, flush=True)
        else:
            failed.append(outcome)
            print(f"an episode failed: {outcome}", file=sys.stderr, flush=True)

    async def run(task: Task, episode_id: str) -> Result:
        return await run_episode(
            client, task, episode_id=episode_id, split=args.split, model=args.model, temperature=args.temperature
        )

    count = None if args.forever else args.episodes
    async with client:
        await run_all(
            schedule(args.split, args.seed, args.group, count), run, concurrency=args.concurrency, on_result=note
        )
    seconds = time.monotonic() - began
    success = sum(r.reward for r in done) / max(1, len(done))
    calls = sum(r.calls for r in done)
    summary = {"episodes": len(done), "failed": len(failed), "success": round(success, 4), "calls": calls}
    print(json.dumps({**summary, "seconds": round(seconds, 2), "split": args.split, "seed": args.seed}))
    return 1 if failed else 0


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", help="of the endpoint, with /v1; default: OPENAI_BASE_URL")
    parser.add_argument("--model", default="inbox")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--group", type=int, default=8, help="episodes of one task")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--split", choices=("train", "eval"), default="train")
    parser.add_argument("--seed", type=int, default=0, help="picks the tasks")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--forever", action="store_true", help="go on until stopped")
    args = parser.parse_args(argv)
    try:
        return asyncio.run(run_from_arguments(args))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
