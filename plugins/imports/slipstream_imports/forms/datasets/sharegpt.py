"""ShareGPT conversations: ``from`` and ``value``, with calls and observations as LLaMA-Factory writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slipstream_chat.messages import Message, expand
from slipstream_chat.report import Place, Refused, Value
from slipstream_chat.values import first, listed, mapping, parsed, tool_call
from slipstream_imports.fields import described, json_in
from slipstream_imports.forms.datasets.openai import tools_in
from slipstream_imports.records import LogRun, said
from slipstream_imports.registry import each

GATHERS_ROWS = False
TRAIN_FLAG_FIELDS = ("train", "loss")
CONVERSATION_FIELDS = ("conversations", "conversation", "items")


def is_one(row: Mapping[str, Value]) -> bool:
    if "messages" in row:
        return "conversations" in row
    return (
        "conversations" in row or "conversation" in row or "from" in mapping(next(iter(listed(row.get("items"))), None))
    )


@each
def runs(row: dict[str, Value], place: Place) -> Iterator[LogRun]:
    told = json_in(first(row, *CONVERSATION_FIELDS), "conversations")
    if not isinstance(told, list) or not told:
        raise Refused("a list that is not empty is needed", "conversations")
    run = described(row, place, read=(*CONVERSATION_FIELDS, "system"))
    messages: list[Message] = []
    if isinstance(row.get("system"), str) and row["system"]:
        messages.append({"role": "system", "content": row["system"]})
    for item in told:
        messages += _message(item, place)
    run.talks = [said(messages, tools_in(row))]
    yield run


def _message(item: Value, place: Place) -> list[Message]:
    own = mapping(item)
    if any(own.get(name) is False for name in TRAIN_FLAG_FIELDS):
        own["weight"] = 0
    own = {k: v for k, v in own.items() if k not in TRAIN_FLAG_FIELDS}
    if own.get("from") == "function_call" or own.get("role") == "function_call":
        told = parsed(own.get("value", own.get("content")))
        calls = [mapping(c) for c in (told if isinstance(told, list) else [told])]
        made: Message = {"role": "assistant", "content": None}
        made["tool_calls"] = [tool_call(c.get("id"), c.get("name") or "", c.get("arguments")) for c in calls]
        return [made | ({"weight": own["weight"]} if "weight" in own else {})]
    return expand(own, "user", place)
