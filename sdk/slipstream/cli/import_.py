"""Reading logs in: each line or row becomes calls of an episode, sent through the proxy's control API."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slipstream.cli.common import add_client, connect, need
from slipstream.errors import SlipstreamError


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument(
        "file", help="JSONL of OpenAI-format conversations or request/response logs, or trajectory Parquet"
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


def episode_of(row: dict[str, Any], task: str | None, where: str) -> dict[str, Any]:
    """A row in any of the known shapes → the import route's body. Raises ``SlipstreamError`` naming what is missing."""
    messages = row.get("messages") or row.get("messages_and_choices")
    if messages is None and "request" in row and "response" in row:
        request, response = _json(row["request"], where), _json(row["response"], where)
        try:
            messages = [*request.get("messages", []), response["choices"][0]["message"]]
        except (KeyError, IndexError, TypeError, AttributeError) as e:
            raise SlipstreamError(f"{where}: request and response are no chat completion: {e!r}") from e
        row = {**row, "tools": request.get("tools"), "model": request.get("model")}
    messages, tools = _json(messages, where), _json(row.get("tools"), where)
    if not isinstance(messages, list) or not messages:
        raise SlipstreamError(f"{where}: no messages (nor request and response)")
    return {
        "id": row.get("id") or row.get("episode"), "task": row.get("task") or row.get("scenario_id") or task, "split": row.get("split") or "train",
        "model": row.get("model"), "messages": [m.get("message", m) if isinstance(m, dict) else m for m in messages],
        "tools": tools, "reward": row.get("reward"), "tags": row.get("tags") or {},
    }  # fmt: skip


def run(args: argparse.Namespace) -> int:
    path = Path(args.file)
    if not path.is_file():
        raise SlipstreamError(f"{path}: no such file")
    rows = read_parquet(path) if path.suffix == ".parquet" else read_jsonl(path)
    count = 0
    with connect(args) as client:
        for number, row in rows:
            client.import_episode(episode_of(row, args.task, f"{path}:{number}"))
            count += 1
    print(json.dumps({"episodes": count}) if args.json else f"{count} episodes")
    return 0
