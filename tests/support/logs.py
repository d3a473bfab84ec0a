"""Logs as files, and what is read of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slipstream_chat.report import Report
from slipstream_imports.upload import read_log

ASK: dict[str, Any] = {"role": "user", "content": "hi"}
END: dict[str, Any] = {"role": "assistant", "content": "done"}
USE: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}],
}
TOLD: dict[str, Any] = {"role": "tool", "tool_call_id": "c1", "content": "x"}


def written(folder: Path, *rows: Any, name: str = "log.jsonl") -> Path:
    """JSON lines; a name that ends in ``.json``: one value."""
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def taken(*paths: Path, form: str | None = None) -> tuple[list[Any], Report]:
    """The bodies of all episodes, and the report."""
    report = Report()
    bodies = []
    for entry in read_log(paths, None, report, form):
        report.take(entry.counts)
        bodies += entry.bodies
    return bodies, report


def read(folder: Path, *rows: Any) -> tuple[list[Any], Report]:
    return taken(written(folder, *rows))


def replied(body: Any) -> list[Any]:
    """The messages that became calls."""
    return [body["messages"][told["message"]] for told in body["replies"]]


def whys(report: Report) -> list[str]:
    return [why for _, why in (*report.dropped, *report.converted)]
