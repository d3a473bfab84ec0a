"""Values of files that others wrote: JSON in texts, flat names, lists under numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping

from slipstream_chat.report import Value


def parsed(value: Value) -> Value:
    """What is written as JSON in a text, read; the rest as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def mapping(value: Value) -> dict[str, Value]:
    value = parsed(value)
    return {str(k): v for k, v in value.items()} if isinstance(value, Mapping) else {}


def listed(value: Value) -> list[Value]:
    value = parsed(value)
    return list(value) if isinstance(value, list | tuple) else []


def text_of(value: Value) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def first(row: Mapping[str, Value], *names: str) -> Value:
    """The first of these that is there."""
    return next((row[name] for name in names if row.get(name) is not None), None)


def whole(value: Value) -> int | None:
    """A count; None: it is none."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 16:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        return None
    return int(value)


def tool_call(ident: Value, name: Value, arguments: Value) -> dict[str, Value]:
    """A tool call as chat completions have it. Nothing as arguments is the empty object."""
    given = {} if arguments is None or arguments == "" else arguments
    function = {"name": text_of(name), "arguments": text_of(given)}
    return ({"id": text_of(ident)} if ident else {}) | {"type": "function", "function": function}


TEXT_FIELDS = ("content", "text", "arguments")


def nested(flat: Mapping[str, Value]) -> dict[str, Value]:
    """``{"a.0.b": 1}`` as ``{"a": {"0": {"b": 1}}}``. JSON in texts is read, but where it is what somebody said."""
    made: dict[str, Value] = {}
    for name, value in flat.items():
        at = made
        *parts, last = name.split(".")
        for part in parts:
            below = at.get(part)
            if not isinstance(below, dict):
                below = at[part] = {}
            at = below
        value = value if last in TEXT_FIELDS else parsed(value)
        value = nested(mapping(value)) if isinstance(value, Mapping) else value
        before = at.get(last)
        at[last] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    return made


def in_order(value: Value) -> list[dict[str, Value]]:
    """Objects of a list, or of an object whose names are the places in it."""
    if isinstance(value, Mapping) and all(str(k).isdecimal() for k in value):
        value = [value[k] for k in sorted(value, key=lambda k: int(str(k)))]
    return [nested(mapping(item)) for item in listed(value) if isinstance(parsed(item), Mapping)]
