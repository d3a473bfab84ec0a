"""Conversations in OpenAI's messages: fine-tuning files, ART's rows, TRL's conversational rows, and what people log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slipstream_chat.inputs import messages_of, tool_of
from slipstream_chat.messages import Message
from slipstream_chat.report import Place, Refused, Value
from slipstream_chat.values import first, listed
from slipstream_imports.fields import described, json_in
from slipstream_imports.records import LogRun, Talk, said
from slipstream_imports.registry import each

GATHERS_ROWS = False


def is_one(row: Mapping[str, Value]) -> bool:
    return "messages" in row or "messages_and_choices" in row


@each
def runs(row: dict[str, Value], place: Place) -> Iterator[LogRun]:
    run = described(row, place)
    run.talks = [talk_of(row, place)]
    yield run


def talk_of(row: Mapping[str, Value], place: Place) -> Talk:
    """Raises ``Refused`` if there are no messages."""
    return said(chat(first(row, "messages", "messages_and_choices"), "messages", place), tools_in(row))


def chat(value: Value, field: str, place: Place) -> list[Message]:
    """Messages of a column. Raises ``Refused``."""
    value = json_in(value, field)
    if not isinstance(value, list) or not value:
        raise Refused(f"no {field} (nor request and response): a list that is not empty is needed")
    return messages_of(value, "user", place)


def tools_in(row: Mapping[str, Value]) -> list[Value] | None:
    tools = listed(json_in(row.get("tools"), "tools"))
    functions: list[Value] = [
        {"type": "function", "function": f} for f in listed(json_in(row.get("functions"), "functions"))
    ]
    return [tool_of(t) for t in tools] or functions or None
