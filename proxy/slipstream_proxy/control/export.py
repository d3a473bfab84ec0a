"""Datasets out of the store, as a stream: JSON lines of whole episodes, SFT rows, DPO pairs, Parquet."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from slipstream.contract import Call, EpisodeDetail
from slipstream_proxy.control.http import json_of
from slipstream_proxy.control.threads import in_thread

if TYPE_CHECKING:
    from slipstream_proxy.control.http import Ctx
    from slipstream_proxy.store.protocol import EpisodeFilter

TYPES = {
    "jsonl": "application/x-ndjson",
    "sft": "application/x-ndjson",
    "dpo": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}


def line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True, default=str).encode() + b"\n"


def good_calls(episode: EpisodeDetail) -> list[Call]:
    return [c for c in episode.call_list if c.outcome == "ok" and c.reply and c.messages]


def as_messages(items: list[Any]) -> list[Any]:
    """Chat messages; a bare prompt is what a user says."""
    return [m if isinstance(m, dict) else {"role": "user", "content": m} for m in items]


def as_reply(message: Any) -> dict[str, Any]:
    return message if isinstance(message, dict) else {"role": "assistant", "content": message}


def conversation(episode: EpisodeDetail) -> list[Any] | None:
    """The episode's longest call with its reply: an agent re-sends its history, so that is the whole of it."""
    calls = good_calls(episode)
    if not calls:
        return None
    last = max(calls, key=lambda c: (len(c.messages), c.number))
    return [*as_messages(last.messages), as_reply(last.reply[0])]


def sft_row(episode: EpisodeDetail) -> dict[str, Any] | None:
    messages = conversation(episode)
    if messages is None:
        return None
    calls = good_calls(episode)
    row: dict[str, Any] = {
        "messages": messages,
        "episode": episode.id,
        "task": episode.task,
        "adapter": episode.adapter,
        "reward": episode.reward,
    }
    if calls[-1].tools:
        row["tools"] = json.dumps(calls[-1].tools)
    return row


def dpo_rows(episodes: list[EpisodeDetail]) -> Iterator[dict[str, Any]]:
    """Best against worst of each task, where they differ: the common beginning is the prompt."""
    by_task: dict[tuple[str, str, str], list[EpisodeDetail]] = {}
    for e in episodes:
        if e.task and e.reward is not None and conversation(e):
            by_task.setdefault((e.key, e.model, e.task), []).append(e)
    for (_, _, task), runs in by_task.items():
        best, worst = max(runs, key=lambda e: e.reward or 0.0), min(runs, key=lambda e: e.reward or 0.0)
        if best.reward == worst.reward:
            continue
        chosen, rejected = conversation(best) or [], conversation(worst) or []
        same = 0
        while same < min(len(chosen), len(rejected)) - 1 and chosen[same] == rejected[same]:
            same += 1
        if same:
            yield {"prompt": chosen[:same], "chosen": chosen[same:], "rejected": rejected[same:], "task": task,
                   "chosen_reward": best.reward, "rejected_reward": worst.reward}  # fmt: skip


def parquet_row(e: EpisodeDetail) -> dict[str, Any]:
    row = e.model_dump(mode="python", include={"id", "key", "task", "model", "adapter", "arm", "started", "ended", "calls", "prompt_tokens",
                                               "completion_tokens", "reward", "group"})  # fmt: skip
    row |= {
        "split": e.split.value,
        "state": e.state.value,
        "tags": json.dumps(e.tags),
        "messages": json.dumps(conversation(e), default=str),
    }
    row |= {
        "rewards": json.dumps([r.model_dump(mode="json") for r in e.rewards]),
        "call_list": json.dumps([c.model_dump() for c in e.call_list], default=str),
    }
    return row


def pieces(batches: Iterator[list[EpisodeDetail]], format: str) -> Iterator[bytes]:
    if format == "dpo":
        # pairs need all runs of a task; what a row needs is kept of them
        everything = [e for batch in batches for e in batch]
        yield from (line(row) for row in dpo_rows(everything))
        return
    for batch in batches:
        if format == "jsonl":
            yield b"".join(json_of(e) + b"\n" for e in batch)
        else:
            yield b"".join(line(row) for e in batch if (row := sft_row(e)))


def parquet(batches: Iterator[list[EpisodeDetail]]) -> Iterator[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = (
        "id",
        "key",
        "task",
        "model",
        "adapter",
        "arm",
        "group",
        "split",
        "state",
        "tags",
        "messages",
        "rewards",
        "call_list",
    )
    numbers = ("calls", "prompt_tokens", "completion_tokens")
    schema = pa.schema(
        [
            *((n, pa.string()) for n in text),
            *((n, pa.int64()) for n in numbers),
            *((n, pa.float64()) for n in ("started", "ended", "reward")),
        ]
    )
    with tempfile.TemporaryDirectory(prefix="slipstream-export-") as folder:
        path = Path(folder) / "episodes.parquet"
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            for batch in batches:
                writer.write_table(pa.Table.from_pylist([parquet_row(e) for e in batch], schema=schema))
        with path.open("rb") as file:
            while part := file.read(2**20):
                yield part


async def send(ctx: Ctx, wanted: EpisodeFilter, format: str) -> web.StreamResponse:
    store = ctx.deps.store
    batches = await ctx.deps.ask(store.export, wanted)
    stream = parquet(batches) if format == "parquet" else pieces(batches, format)
    first = await in_thread(next, stream, b"")
    headers = {
        "content-type": TYPES[format],
        "content-disposition": f'attachment; filename="slipstream.{"parquet" if format == "parquet" else "jsonl"}"',
    }
    response = web.StreamResponse(headers=headers)
    await response.prepare(ctx.request)
    part: bytes | None = first
    try:
        while part is not None:
            if part:
                await response.write(part)
            part = await in_thread(next, stream, None)
        await response.write_eof()
    finally:
        with contextlib.suppress(Exception):
            await in_thread(stream.close)  # type: ignore[attr-defined]
    return response
