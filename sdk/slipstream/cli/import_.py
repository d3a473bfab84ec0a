"""Reading logs in: each line or row becomes calls of an episode, sent through the proxy's control API."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slipstream.cli.common import add_client, connect, need
from slipstream.contract import name_of
from slipstream.errors import SlipstreamError


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument(
        "file",
        help="JSONL of OpenAI-format conversations or request/response logs, trajectory Parquet, what export --format jsonl or parquet wrote, "
        "or what adapters --json printed (.json)",
    )
    parser.add_argument("--task", help="task of episodes that name none")


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
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


def read_parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    pa, pq = need("pyarrow", "proxy"), need("pyarrow.parquet", "proxy")
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


def _number(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if number else None


def _message(message: Any, where: str) -> Any:
    """A chat message, out of a choice where it stands in one. Columns of other messages (null) and marks of trainers are left out."""
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
        "id": _tag(row.get("id") or row.get("episode")), "task": _tag(named or task), "split": row.get("split") or "train",
        "model": row.get("model"), "messages": [_message(m, where) for m in messages],
        "tools": tools, "reward": _number(row.get("reward")), "tags": {k: _tag(v) for k, v in _names(row.get("tags"), where).items()},
    }  # fmt: skip
    numbers = {_tag(k): n for k, v in metrics.items() if k != "reward" and (n := _number(v)) is not None}
    at = _number(row.get("at"))
    return body | ({"metrics": numbers} if numbers else {}) | ({} if at is None else {"at": at})


def run(args: argparse.Namespace) -> int:
    path = Path(args.file)
    if not path.is_file():
        raise SlipstreamError(f"{path}: no such file")
    if path.suffix == ".json" and (told := _json(path.read_text(), str(path))) and "adapters" in told:
        with connect(args) as client:
            client.restore_adapters(told)
        count = len(told["adapters"])
        print(json.dumps({"adapters": count}) if args.json else f"{count} adapters")
        return 0
    rows = read_parquet(path) if path.suffix == ".parquet" else read_jsonl(path)
    count = 0
    with connect(args) as client:
        for number, row in rows:
            where = f"{path}:{number}"
            if (whole := exported(row, where)) is not None:
                client.restore_episode(whole)
            else:
                client.import_episode(episode_of(row, args.task, where))
            count += 1
    print(json.dumps({"episodes": count}) if args.json else f"{count} episodes")
    return 0
