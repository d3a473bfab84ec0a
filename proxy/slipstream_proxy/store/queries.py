"""What is the same in users' queries, whatever answers them."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import Any
from uuid import UUID

from slipstream_proxy.store.allowlist import check_names
from slipstream_proxy.store.driver import QueryError
from slipstream_proxy.store.schema import TABLES, VIEW_NAMES

HEAD = re.compile(r"^(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/|\()*(select|with|values|from)\b", re.IGNORECASE | re.DOTALL)

TOKENS = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/""", re.DOTALL)
INTERNAL = re.compile(rf"\b(?:{'|'.join([*TABLES, 't_calls_'])})\w*", re.IGNORECASE)


def bare(text: str) -> str:
    """The query without its texts and comments, so that a word in one of them is no reason to refuse it.

    Where escapes or dollar quotes could hide where a text ends, nothing is taken out.
    """
    if "\\" in text or "$" in text:
        return text
    return TOKENS.sub(lambda m: m.group(0) if m.group(0).startswith('"') else " ", text)


def check(query: str) -> str:
    """The query without its last semicolon.

    Raises ``QueryError`` for what does not begin as a SELECT does, or names our own tables.
    """
    text = query.strip().rstrip(";").strip()
    if "\0" in text or not HEAD.match(text):
        raise QueryError("one SELECT statement only")
    if found := INTERNAL.search(bare(text)):
        raise QueryError(f"{found.group(0)}: no such view; there are {', '.join(VIEW_NAMES)}")
    check_names(text)
    return text


def public(value: Any) -> Any:
    """A database's value as JSON takes it."""
    match value:
        case None | bool() | int() | float() | str():
            if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):  # noqa: PLR0124
                return None
            return value
        case Decimal():
            return float(value)
        case bytes() | bytearray() | memoryview():
            return bytes(value).hex()
        case list() | tuple():
            return [public(v) for v in value]
        case dict():
            return {str(k): public(v) for k, v in value.items()}
        case dt.datetime() | dt.date() | dt.time() | dt.timedelta() | UUID():
            return str(value)
        case other:
            return str(other)
