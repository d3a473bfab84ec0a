"""Files of traces that other tools wrote, as entries to import: which tool wrote one is seen from what stands in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from slipstream.errors import SlipstreamError
from slipstream.operate import traces_langfuse, traces_otel, traces_phoenix
from slipstream.operate.logs import Entry, read_jsonl, read_parquet
from slipstream.operate.traces import Trace, Value

TraceTool = Literal["langfuse", "phoenix", "otel"]
Rows = Sequence[Mapping[str, Value]]


class _Format(NamedTuple):
    is_one: Callable[[Mapping[str, Value]], bool]
    traces: Callable[[Rows], list[Trace]]


FORMATS: dict[TraceTool, _Format] = {
    "otel": _Format(traces_otel.is_otel, traces_otel.traces),
    "phoenix": _Format(traces_phoenix.is_phoenix, traces_phoenix.traces),
    "langfuse": _Format(traces_langfuse.is_langfuse, traces_langfuse.traces),
}
LISTS = ("data", "traces", "observations", "spans")
"""Names under which a file holds its rows."""


def _rows(path: Path) -> Iterator[Mapping[str, Value]]:
    if path.suffix == ".parquet":
        yield from (row for _, row in read_parquet(path))
    elif path.suffix in {".jsonl", ".ndjson"}:
        yield from (row for _, row in read_jsonl(path))
    else:
        yield from _of_json(path)


def _of_json(path: Path) -> Iterator[Mapping[str, Value]]:
    """The rows of a file that is one JSON value, or JSON lines."""
    try:
        told = json.loads(path.read_bytes())
    except ValueError:
        yield from (row for _, row in read_jsonl(path))
        return
    if isinstance(told, dict) and not any(f.is_one(told) for f in FORMATS.values()):
        told = next((told[name] for name in LISTS if isinstance(told.get(name), list)), told)
    items = told if isinstance(told, list) else [told]
    yield from (item for item in items if isinstance(item, dict))


def tool_of(path: Path) -> TraceTool | None:
    """Whose traces a file holds, by its first row; None: it holds something else."""
    first = next(_rows(path), None)
    return None if first is None else next((name for name, f in FORMATS.items() if f.is_one(first)), None)


def read_traces(path: Path, tool: TraceTool, task: str | None) -> Iterator[Entry]:
    """The episodes of a file. Raises ``SlipstreamError`` if it holds none. ``task``: of traces that name none."""
    traces = FORMATS[tool].traces(list(_rows(path)))
    some = False
    for number, trace in enumerate(traces, 1):
        if bodies := trace.bodies(tool, task):
            some = True
            yield Entry(f"{path}: trace {trace.id}", number / len(traces), bodies)
    if not some:
        raise SlipstreamError(
            f"{path}: none of its {len(traces)} traces has a model call with messages and a reply; "
            f"was it recorded with content, and written by {tool}?"
        )
