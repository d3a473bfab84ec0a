"""What ``slipstream export`` wrote, as JSON lines or Parquet: it goes back whole, tokens included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slipstream_chat.report import Place, Refused, Value
from slipstream_imports.fields import json_in
from slipstream_imports.records import LogRun
from slipstream_imports.registry import each

GATHERS_ROWS = False
TOKEN_LIST_FIELDS = ("prompt_ids", "completion_ids", "logprobs")
JSON_TEXT_FIELDS = ("tags", "rewards", "call_list", "lineage", "batches", "trained_adapters")


def is_one(row: Mapping[str, Value]) -> bool:
    return "call_list" in row


@each
def runs(row: dict[str, Value], place: Place) -> Iterator[LogRun]:
    yield LogRun(place.where, whole=exported(row))


def exported(row: dict[str, Value]) -> dict[str, Value]:
    """A row of ``export`` as its JSON lines have it. Raises ``Refused``."""
    if isinstance(row["call_list"], list):
        return row
    made = {k: v for k, v in row.items() if k not in ("messages", *TOKEN_LIST_FIELDS)}
    made |= {name: json_in(row[name], name) for name in JSON_TEXT_FIELDS}
    calls = made["call_list"]
    if not isinstance(calls, list):
        raise Refused("a list is needed", "call_list")
    for name in TOKEN_LIST_FIELDS:
        values = row[name]
        if not isinstance(values, list) or len(values) != len(calls):
            raise Refused("it needs a value for each call", name)
        for call, value in zip(calls, values, strict=True):
            call[name] = value
    return made
