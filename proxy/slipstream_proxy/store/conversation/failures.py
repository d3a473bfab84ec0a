"""Which runs failed: those in which the model never said anything.

Each of their calls was refused, met an error, or was broken off before its first token. So their rewards say nothing
of the model. Where a run asks a trained model, what other models say in it does not make it one.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream_proxy.json_types import Json
from slipstream_proxy.store.conversation.call_rows import kind_of, left_out_reason
from slipstream_proxy.store.tables.rows import CallRow, EpisodeRow, load

ANSWERED_OUTCOMES = ("ok", "superseded")
"""Outcomes of a call whose reply may have come whole."""
UNSTORED_REPLY_REASONS = ("redacted", "redaction failed", "too many choices")
"""Why a call cannot be trained on whose reply came and is not stored."""
BROKEN_FINISH_REASONS = ("abort", "error")
"""Reasons for which an engine ends a reply that it could not make."""
LABEL_FIELDS = frozenset({"role", "type", "id", "status", "index", "object"})
"""Members of a reply that are there before its first token."""
ERROR_CHARACTERS = 200
"""Of an upstream's message, which may quote what it was asked."""


def has_token(row: CallRow) -> bool:
    """Whether the model said anything in this call, as far as is known."""
    if row.completion_tokens > 0:
        return True
    replies = load(row.reply, [])
    if _says(replies):
        return True
    broken = any(reason in BROKEN_FINISH_REASONS for reason in load(row.finish, []))
    if row.outcome not in ANSWERED_OUTCOMES or row.status >= 400 or row.error is not None or broken:
        return False
    return bool(replies) or row.reason in UNSTORED_REPLY_REASONS


def _says(value: Json) -> bool:
    if isinstance(value, dict):
        return any(_says(part) for name, part in value.items() if name not in LABEL_FIELDS)
    if isinstance(value, list):
        return any(map(_says, value))
    return isinstance(value, str) and value != ""


def counts_for(row: CallRow) -> bool:
    """Whether a call asks the model that the run is about: a trained one, and not for a title."""
    return row.trained is not None and row.reason != left_out_reason(kind_of(row))


def note_call(ep: EpisodeRow, row: CallRow) -> None:
    """Set the run's ``error`` before this call is counted in its row."""
    asks, asked = counts_for(row), ep.trained_calls > 0
    if asked and not asks:
        return
    if has_token(row):
        ep.error = None
    elif not ep.calls or (asks and not asked) or ep.error is not None:
        ep.error = error_of(row)


def error_of_run(rows: Sequence[CallRow]) -> str | None:
    """The same of all its calls at once, in their order. None: it has a token, or no call is known."""
    counting = [row for row in rows if counts_for(row)] or rows
    return None if not counting or any(map(has_token, counting)) else error_of(counting[-1])


def error_of(row: CallRow) -> str:
    """In a line, as ``400: the tools must not be empty``: what stands before the colon quotes nobody."""
    if row.outcome == "aborted":
        return "aborted before the first token"
    text = " ".join(_message(row.error or "").split())
    label = str(row.status) if row.status >= 400 else "error"
    shown = text if len(text) <= ERROR_CHARACTERS else f"{text[: ERROR_CHARACTERS - 1]}…"
    return f"{label}: {shown}" if shown else f"{label}: no token came"


def _message(text: str) -> str:
    """The message in an error's JSON, in whatever format; else the text."""
    try:
        found = load(text.strip()) if text.strip().startswith(("{", "[")) else text
    except ValueError:  # it was cut
        return text
    while not isinstance(found, str):
        if isinstance(found, list):
            found = found[0] if found else ""
        elif isinstance(found, dict):
            named = (found[name] for name in ("error", "message", "msg", "detail") if found.get(name))
            found = next(named, "") or text
        else:
            return text
    return found
