"""Files of many forms with what they hold, counted beside them and not by the importer."""

from __future__ import annotations

import bz2
import codecs
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tests.support.log_corpus.runs import LONG, PLAIN, RUNS, TOOLS, Known
from tests.support.log_corpus.shapes import SHAPES, Shape


class Held(NamedTuple):
    """What a file holds. ``bad``: rows that are to be refused, each by its own line."""

    episodes: int
    calls: int
    tool_calls: int
    rewards: int
    bad: int = 0


class File(NamedTuple):
    name: str
    form: str
    data: bytes
    held: Held


def zstd(data: bytes) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as packed:
        packed.write(data)
    return bytes(sink.getvalue())


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": lambda b: b,
    ".gz": gzip.compress,
    ".zst": zstd,
    ".utf16": lambda b: codecs.BOM_UTF16_LE + b.decode().encode("utf-16-le"),
    ".bom": lambda b: codecs.BOM_UTF8 + b,
    ".crlf": lambda b: b.replace(b"\n", b"\r\n"),
    ".bz2": bz2.compress,
}


def text_of(told: Any, *, pretty: bool = False) -> bytes:
    if isinstance(told, list):
        return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in told)
    return json.dumps(told, indent=2 if pretty else None, ensure_ascii=False).encode()


def held(name: str, shape: Shape, runs: Sequence[Known]) -> Held:
    """By hand for the shapes whose files hold more or less than the runs."""
    calls = [len(r.replies) for r in runs]
    if shape.form == "preference":  # a pair is two episodes of the last reply
        return Held(2 * len(runs), 2 * len(runs), 0, shape.rewards * len(runs))
    if name == "openai_batch":  # each answer stands alone
        return Held(sum(calls), sum(calls), sum(r.tool_calls for r in runs), 0)
    return Held(len(runs), sum(calls), sum(r.tool_calls for r in runs), shape.rewards * len(runs))


def files() -> Iterator[File]:
    """Each shape twice: with other runs, and packed in another way."""
    ways = list(PACKED)
    for n, (name, shape) in enumerate(SHAPES.items()):
        sets = ((TOOLS,), (LONG,)) if shape.single else (RUNS, (PLAIN, LONG))
        for k, runs in enumerate(sets):
            way = ways[(2 * n + k) % len(ways)]
            told = shape.write(runs)
            data = PACKED[way](text_of(told, pretty=bool(k)))
            suffix = ".jsonl" if isinstance(told, list) else ".json"
            yield File(f"{name}_{k}{suffix}{way}", shape.form, data, held(name, shape, runs))
    yield from hostile()


GOOD: dict[str, Any] = {
    "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
    "reward": 1,
}


def lines(*rows: str | dict[str, Any]) -> bytes:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows).encode()


def hostile() -> Iterator[File]:
    """Rows that cannot be taken stand between rows that can: each is told, and the rest comes in."""
    rewards = ([1.0], {"score": 1}, float("inf"), "good")
    yield File(
        "rewards.jsonl", "openai", lines(GOOD, *({**GOOD, "reward": r} for r in rewards), GOOD), Held(2, 2, 0, 2, 4)
    )
    typed = lines({**GOOD, "reward": "0.5", "at": "2026-05-01T10:00:00Z"}, {**GOOD, "reward": True})
    yield File("converted.jsonl", "openai", typed, Held(2, 2, 0, 2))
    deep = '{"messages": ' + "[" * 200_000 + "]" * 200_000 + "}"
    yield File("brackets.jsonl", "openai", lines(GOOD, deep, GOOD), Held(2, 2, 0, 2, 1))
    half = '{"messages": [{"role": "user", "content": "a \\ud83d b"}, {"role": "assistant", "content": "c"}]}'
    yield File("half_emoji.jsonl", "openai", lines(half), Held(1, 1, 0, 0))
    broken = lines(GOOD, '{"messages": [', GOOD) + b'{"messages": "\xff"}\n' + lines(GOOD)
    yield File("broken.jsonl", "openai", broken, Held(3, 3, 0, 3, 2))
    weighted = {
        "messages": [
            *GOOD["messages"],
            {"role": "user", "content": "r"},
            {"role": "assistant", "content": "BAD", "weight": 0},
        ]
    }
    yield File("weight.jsonl", "openai", lines(weighted), Held(1, 1, 0, 0))
    yield File(
        "no_reply.jsonl",
        "openai",
        lines(GOOD, {"messages": [{"role": "user", "content": "q"}]}, {"x": 1}),
        Held(1, 1, 0, 1, 2),
    )
