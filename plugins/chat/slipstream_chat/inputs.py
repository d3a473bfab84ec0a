"""Whatever a program has written down as a model's input or output, as messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slipstream_chat.messages import (
    Message,
    Spoken,
    content_into,
    expand,
    grow,
    is_call,
    is_native,
    is_plain,
    names_role,
)
from slipstream_chat.report import Place, Value
from slipstream_chat.values import first, listed, mapping, parsed, text_of, tool_call

ITEM_TYPES = (
    "function_call",
    "function_call_output",
    "reasoning",
    "custom_tool_call",
    "custom_tool_call_output",
    "local_shell_call",
    "local_shell_call_output",
    "computer_call",
    "web_search_call",
    "file_search_call",
    "tool_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_call",
    "mcp_list_tools",
    "item_reference",
    "compaction",
)
"""Items of OpenAI's Responses, beside ``message``."""


def of_items(items: Sequence[Value], place: Place) -> list[Message]:
    """Items of OpenAI's Responses: what the model said in one go (thoughts, text, calls of tools) is one message."""
    found: list[Message] = []
    for item in items:
        own = mapping(item)
        kind = own.get("type")
        if kind in ("function_call_output", "custom_tool_call_output", "local_shell_call_output"):
            ident, said = text_of(own.get("call_id") or ""), _output(own.get("output"), place)
            found.append({"role": "tool", "tool_call_id": ident, "content": said})
            continue
        if kind in ("function_call", "custom_tool_call", "local_shell_call", "mcp_call"):
            name = own.get("name") or kind
            given = first(own, "arguments", "input", "action")
            if kind == "custom_tool_call" and isinstance(given, str):
                given = {"input": given}
            call = tool_call(own.get("call_id") or own.get("id"), name, given)
            new: list[Message] = [{"role": "assistant", "content": None, "tool_calls": [call]}]
        elif kind == "reasoning":
            texts = [
                text_of(mapping(p).get("text", "")) for p in [*listed(own.get("summary")), *listed(own.get("content"))]
            ]
            if not any(texts):
                place.drop("reasoning", "it is encrypted or empty")
                continue
            new = [{"role": "assistant", "content": None, "reasoning_content": "\n".join(texts)}]
        elif kind in ITEM_TYPES:
            place.drop(f"item {kind}", "the provider ran it, chat completions have no such message")
            continue
        else:
            new = expand(item, "user", place)
        for message in new:
            _join(found, message)
    return found


def _output(value: Value, place: Place) -> Value:
    value = parsed(value) if isinstance(value, str) and value.startswith('{"output"') else value
    if isinstance(value, Mapping) and isinstance(value.get("output"), str):
        return value["output"]
    made = Spoken()
    if isinstance(value, list):
        content_into(made, value, place)
        return made.content or ""
    return text_of(value if value is not None else "")


def _join(found: list[Message], message: Message) -> None:
    """Puts an assistant's message to the one before it, if that is an assistant's too."""
    last = found[-1] if found else {}
    if (
        message.get("role") != "assistant"
        or last.get("role") != "assistant"
        or (last.get("tool_calls") and message.get("content"))
    ):
        found.append(message)
    else:
        grow(last, message)


WRAPPER_FIELDS = (
    "choices",
    "candidates",
    "messages",
    "generations",
    "contents",
    "input",
    "prompt",
    "prompts",
    "output",
    "response",
    "result",
)
"""Names under which messages stand in what a program wrote down as input or output."""


def chat_of(recorded: Sequence[Value], role: str, place: Place) -> list[Message]:
    """A recorded call's messages, or its reply, as a chat. What the engine was asked as one is left as it was."""
    if all(isinstance(message, dict) and is_native(message) for message in recorded):
        return [dict(mapping(message)) for message in recorded]
    return messages_of([*recorded], role, place)


def messages_of(value: Value, role: str, place: Place) -> list[Message]:
    """Messages of whatever a program has written down as input or output."""
    read = parsed(value)
    if read in ([], {}):
        return []
    text = isinstance(value, str) or role == "assistant"
    alone = [read] if isinstance(read, Mapping) else listed(read)
    if role == "assistant" and alone and all(is_call(item) for item in alone) and not _is_item(alone[0]):
        return expand({"role": role, "content": alone}, role, place)
    if text and (isinstance(read, bool | int | float) or (isinstance(read, list) and not _holds_messages(value, read))):
        # what a model answered as JSON, or a text that is no message
        return [{"role": role, "content": text_of(value)}]
    if isinstance(read, Mapping):
        return _wrapped(mapping(read), role, place) or expand(value, role, place)
    if not isinstance(read, list):
        return expand(read, role, place)
    value = read
    if any(isinstance(v, Mapping) and v.get("type") in ITEM_TYPES for v in value):
        return of_items(value, place)
    if value and all(
        isinstance(v, Mapping) and "type" in v and not {"role", "lc"} & set(v) and not names_role(v["type"])
        for v in value
    ):
        return expand({"role": role, "content": value}, role, place)  # bare parts of one message
    found: list[Message] = []
    for item in value:
        nested = isinstance(item, list) and not (len(item) == 2 and isinstance(item[0], str))
        own = mapping(item)
        if nested or (own and "role" not in own and any(n in own for n in ("generations", "choices"))):
            found += messages_of(item, role, place)
        elif isinstance(item, str) and found and role == "assistant":
            found += [{"role": role, "content": item}]
        else:
            found += expand(item, role, place)
    return found


def _is_item(value: Value) -> bool:
    return mapping(value).get("type") in ITEM_TYPES


def _holds_messages(value: Value, read: list[Value]) -> bool:
    """A list of texts is several messages, but where it is itself written in a text. So are objects that are none."""
    if not isinstance(value, str):
        return any(isinstance(item, Mapping | list | str) or parsed(item) is not item for item in read)
    objects = [item for item in map(parsed, read) if isinstance(item, Mapping | list)]
    return any(isinstance(o, list) or not is_plain(o) for o in objects)


def _wrapped(own: Mapping[str, Value], role: str, place: Place) -> list[Message]:
    if "role" in own or "from" in own:
        return []
    before: list[Message] = []
    for name in ("system", "systemInstruction", "system_instruction", "instructions"):
        config = own.get(name) or mapping(own.get("config")).get(name)
        if config:
            inner = parsed(config)
            inner = inner if isinstance(inner, Mapping) else {"content": inner}
            before = expand({**inner, "role": "system"}, "system", place)
    for name in WRAPPER_FIELDS:
        if name == "messages" and isinstance(inner := parsed(own.get(name)), Mapping):
            return [*before, *messages_of([inner], role, place)]
        if isinstance(inner := parsed(own.get(name)), list | Mapping) and inner:
            if name == "candidates":
                inner = [{**mapping(mapping(c).get("content")), "role": "assistant"} for c in listed(inner)]
            elif name == "generations":
                inner = [
                    _generation(g) for group in listed(inner) for g in (group if isinstance(group, list) else [group])
                ]
            found = messages_of(inner, role, place)
            if found:
                return [*before, *found]
        elif isinstance(inner, str) and inner and name in ("input", "prompt", "output", "response", "result"):
            return [*before, *expand(inner, role, place)]
    return []


def _generation(value: Value) -> Value:
    """LangChain's ``{"text": …, "message": {…}}``."""
    own = mapping(value)
    return own.get("message") or {"role": "assistant", "content": own.get("text")}


def tool_of(value: Value) -> Value:
    """A tool's definition as chat completions have it."""
    tool = mapping(value)
    if "function" in tool or not tool.get("name"):
        return parsed(value)
    schema = first(tool, "parameters", "input_schema", "inputSchema")
    function = {"name": tool["name"]} | ({"description": tool["description"]} if tool.get("description") else {})
    return {"type": "function", "function": function | ({"parameters": parsed(schema)} if schema is not None else {})}
