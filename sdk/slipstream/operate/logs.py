"""Logs of conversations in the shapes that people have, as the bodies of the import routes."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from slipstream.contract import name_of, tag_text
from slipstream.errors import SlipstreamError, StartError

Numbered = tuple[int, dict[str, Any]]
"""A row, and where it stands in its file, from 1."""


def read_jsonl(path: Path) -> Iterator[Numbered]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    row = json.loads(line)
                except ValueError as e:  # broken UTF-8 among them
                    raise SlipstreamError(f"{path}:{number}: not JSON: {e}") from e
                if not isinstance(row, dict):
                    raise SlipstreamError(
                        f"{path}:{number}: an object is needed, with messages or with request and response"
                    )
                yield number, row


def read_parquet(path: Path) -> Iterator[Numbered]:
    try:
        pa, pq = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as e:
        raise StartError(f"{e.name} is not installed: pip install 'slipstream[proxy]'") from e
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as e:
        raise SlipstreamError(f"{path}: not Parquet: {e}") from e
    number = 0
    for batch in file.iter_batches(256):
        for row in batch.to_pylist():
            number += 1
            yield number, row


def _json(value: Any, where: str) -> Any:
    """What is written as JSON in a text column, read; the rest as it is."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError as e:
        raise SlipstreamError(f"{where}: not JSON: {e}") from e


def _tag(value: Any) -> str | None:
    return None if value is None or value == "" else name_of(str(value))


def _text(value: object) -> str:
    """A tag's value. Empty: there is none."""
    return tag_text(value if isinstance(value, str) else json.dumps(value, default=str))


def _number(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if number else None


def _message(message: Any, where: str) -> Any:
    """A chat message, out of a choice where it stands in one.

    Columns of other messages (null) and marks of trainers are left out.
    """
    if not isinstance(message, dict):
        return message
    inner = message.get("message")
    message = inner if isinstance(inner, dict) else message
    kept = {k: v for k, v in message.items() if (v is not None or k == "content") and k != "trainable"}
    if isinstance(kept.get("tool_calls"), str):
        kept["tool_calls"] = _json(kept["tool_calls"], where)
    return kept


def _names(value: Any, where: str) -> dict[str, Any]:
    """A mapping, whether it is written as JSON, as a struct or as Arrow's list of pairs."""
    value = _json(value, where) if value else {}
    try:
        return {str(k): v for k, v in (value.items() if isinstance(value, dict) else value)}
    except (TypeError, ValueError) as e:
        raise SlipstreamError(f"{where}: not names and values: {e}") from e


def _asked(row: dict[str, Any], where: str) -> dict[str, Any]:
    """A request and its response as a conversation."""
    request, response = _json(row["request"], where), _json(row["response"], where)
    try:
        messages = [*request.get("messages", []), response["choices"][0]["message"]]
        at = row.get("at") or response.get("created")
    except (KeyError, IndexError, TypeError, AttributeError) as e:
        raise SlipstreamError(f"{where}: request and response are no chat completion: {e!r}") from e
    return {**row, "messages": messages, "tools": request.get("tools"), "model": request.get("model"), "at": at}


LISTS = ("prompt_ids", "completion_ids", "logprobs")
TEXTS = ("tags", "rewards", "call_list", "lineage", "batches", "trained_adapters")


def exported(row: dict[str, Any], where: str) -> dict[str, Any] | None:
    """A row of ``export``, as its JSON lines have it; None: it is none."""
    if "call_list" not in row:
        return None
    if isinstance(row["call_list"], list):
        return row
    made = {k: v for k, v in row.items() if k not in ("messages", *LISTS)}
    made |= {name: _json(row[name], where) for name in TEXTS}
    for name in LISTS:
        for call, value in zip(made["call_list"], row[name], strict=True):
            call[name] = value
    return made


def episode_of(row: dict[str, Any], task: str | None, where: str) -> dict[str, Any]:
    """A row in any of the known shapes → the import route's body. Raises ``SlipstreamError`` naming what is missing."""
    messages = row.get("messages") or row.get("messages_and_choices")
    if messages is None and "request" in row and "response" in row:
        row = _asked(row, where)
        messages = row["messages"]
    messages, tools = _json(messages, where), _json(row.get("tools"), where)
    if not isinstance(messages, list) or not messages:
        raise SlipstreamError(f"{where}: no messages (nor request and response)")
    metadata, metrics = _names(row.get("metadata"), where), _names(row.get("metrics"), where)
    named = row.get("task") or row.get("scenario_id") or metadata.get("scenario_id") or metadata.get("task")
    body = {
        "id": _tag(row.get("id") or row.get("episode")),
        "task": _tag(named or task),
        "split": row.get("split") or "train",
        "model": row.get("model"),
        "messages": [_message(m, where) for m in messages],
        "tools": tools,
        "reward": _number(row.get("reward")),
        "tags": _labels({**metadata, **_names(row.get("tags"), where)}),
    }
    numbers = {_tag(k): n for k, v in metrics.items() if k != "reward" and (n := _number(v)) is not None}
    at = _number(row.get("at"))
    return body | ({"metrics": numbers} if numbers else {}) | ({} if at is None else {"at": at})


def _labels(named: Mapping[str, object]) -> dict[str, str]:
    """Tags, of what has a name and a plain value."""
    plain = {k: v for k, v in named.items() if isinstance(v, str | int | float)}
    return {name: text for k, v in plain.items() if (name := _tag(k)) and (text := _text(v))}


Body = dict[str, Any]


class Entry(NamedTuple):
    """One episode of a file: the requests that bring it in, one after the other."""

    where: str
    """File and line, for errors."""
    share: float
    """How much of the file is read once this entry is, 0 … 1."""
    bodies: list[Body]
    whole: bool = False
    """True: an episode as ``export`` wrote it; False: conversations of elsewhere."""


def trajectories(row: dict[str, Any], task: str | None, where: str) -> Iterator[list[Body]]:
    """ART's ``{"trajectories": […]}``. A line is a group of runs of a task, a run an episode with its histories."""
    runs = row["trajectories"]
    if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs):
        raise SlipstreamError(f"{where}: trajectories is no list of objects")
    group = _digest("group", [run.get("messages_and_choices", run.get("messages")) for run in runs])
    shared = _names(row.get("metadata"), where)
    for number, run in enumerate(runs):
        at = f"{where}: trajectory {number}"
        own = {**shared, **_names(run.get("metadata"), at)}
        first = episode_of({**run, "metadata": own}, task or f"group-{group}", at)
        first["id"] = first["id"] or f"art-{group}-{number}"
        histories = run.get("additional_histories") or []
        more = [episode_of({**run, **history, "metadata": own}, first["task"], at) for history in histories]
        yield [
            first,
            *({k: v for k, v in m.items() if k not in ("reward", "metrics")} | {"id": first["id"]} for m in more),
        ]


def _together(rows: Iterator[Numbered]) -> Iterator[Numbered]:
    """ART's Parquet has a run in a row, and its group in columns (``group_index``, ``group_metadata``). The rows of a
    group follow each other, and are given together, as ART's JSON lines have them.
    """
    for index, part in itertools.groupby(rows, lambda numbered: numbered[1].get("group_index")):
        if index is None:
            yield from part
            continue
        runs = list(part)
        yield (
            runs[-1][0],
            {"trajectories": [run for _, run in runs], "metadata": runs[0][1].get("group_metadata")},
        )


def _digest(*parts: object) -> str:
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def read_log(path: Path, task: str | None) -> Iterator[Entry]:
    """The episodes of a file, in any of the known shapes. Raises ``SlipstreamError`` naming the line."""
    if path.suffix == ".parquet":
        rows, size = _together(read_parquet(path)), _rows(path)
    else:
        rows, size = read_jsonl(path), _lines(path)
    for number, row in rows:
        where = f"{path}:{number}"
        share = min(1.0, number / max(1, size))
        if (whole := exported(row, where)) is not None:
            yield Entry(where, share, [whole], whole=True)
        elif "trajectories" in row:
            yield from (Entry(where, share, bodies) for bodies in trajectories(row, task, where))
        else:
            yield Entry(where, share, [episode_of(row, task, where)])


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(2**20), b""))


def _rows(path: Path) -> int:
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(path).num_rows)
    except (OSError, ValueError):
        return 0
