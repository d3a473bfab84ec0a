"""Messages and tools as vLLM 0.32 gives them to a model's chat template, so that text that is rendered later has the
ids that the engine read and said.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from slipstream.shared.hub import model_folder

Message = dict[str, Any]
THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Under which of these names a message's thoughts stand differs between servers and between templates."""
BILLING_HEADER = "x-anthropic-billing-header"
_GENERATION = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")
"""A tag of transformers' own, which changes nothing of the text."""


def template_of(model: str | None) -> str | None:
    """A model's chat template, where its files are on this machine. Of several, the one for tools."""
    folder = model_folder(model)
    return None if folder is None else template_in(folder) or None


def template_in(folder: Path) -> str:
    """Empty: there is none."""
    file = folder / "chat_template.jinja"
    found = file.read_text(errors="replace") if file.is_file() else ""
    for name in ("chat_template.json", "tokenizer_config.json"):
        if not found and (folder / name).is_file():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                found = chosen(json.loads((folder / name).read_text(errors="replace"))["chat_template"])
    return found


def chosen(template: object) -> str:
    """Of a tokenizer's templates the one for tools."""
    if isinstance(template, list):
        template = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
    if isinstance(template, dict):
        template = template.get("tool_use") or template.get("default")
    return template if isinstance(template, str) else ""


def for_template(messages: Sequence[Message], template: str | None, *, said: bool = False) -> list[Message]:
    """``template``: None where it is not known. ``said``: the last message is a reply, whose arguments stay as the
    model wrote them if they are no object; the engine reads an empty object in their place.
    """
    parts, thoughts = takes_parts(template), _thoughts_in(template)
    last = len(messages) - 1
    made = [_message(m, parts=parts, thoughts=thoughts, said=said and n == last) for n, m in enumerate(messages)]
    instructs = any(m.get("role") == "developer" for m in made)
    return _as_system(made) if instructs and template and not re.search("[\"']developer[\"']", template) else made


def _as_system(messages: Sequence[Message]) -> list[Message]:
    """What developers say, for a template that knows systems alone: one of all, and the first message."""
    named = [m | {"role": "system"} if m.get("role") == "developer" else m for m in messages]
    systems = [m for m in named if m.get("role") == "system"]
    if systems == named[:1]:
        return named
    texts = [_content(m["content"], parts=False) for m in systems]
    whole = "\n\n".join(t for t in texts if isinstance(t, str) and t)
    return [{"role": "system", "content": whole}, *(m for m in named if m.get("role") != "system")]


def tools_for_template(tools: Sequence[Any]) -> list[Any]:
    """A function has the three fields in vLLM's order, whatever the client sent."""
    found: list[Any] = []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or tool.get("type", "function") != "function":
            found.append(tool)
            continue
        made = {name: function.get(name) for name in ("name", "description", "parameters")}
        made |= {name: function[name] for name in ("strict", "defer_loading") if function.get(name) is not None}
        found.append({"type": "function", "function": made})
    return found


def _thoughts_in(template: str | None) -> tuple[str, ...]:
    """The names under which the template reads thoughts: vLLM's two, or gpt-oss' and LFM's."""
    read = [name for name in THOUGHT_FIELDS if re.search(rf"\b{name}\b", template or "")]
    return tuple(read[:1]) if read else THOUGHT_FIELDS[:2]


def _message(message: Message, *, parts: bool, thoughts: Sequence[str], said: bool) -> Message:
    made = {k: v for k, v in message.items() if v is not None and k not in THOUGHT_FIELDS}
    given = made.get("content")
    if made.get("role") == "system":
        given = _without_billing(given)
    made["content"] = _content(given, parts=parts and made.get("role") != "tool")
    thought = next((message[n] for n in ("reasoning", *THOUGHT_FIELDS) if isinstance(message.get(n), str)), None)
    if thought is not None and made.get("role") == "assistant":
        made |= dict.fromkeys(thoughts, thought)
    calls = made.pop("tool_calls", None)
    if isinstance(calls, list) and calls:
        made["tool_calls"] = [_call(call, said=said) for call in calls]
    return made


def _without_billing(content: object) -> object:
    """Without the line that Claude Code writes for its provider, another one in each request."""
    items = content if isinstance(content, list) else [content]
    kept = []
    for item in items:
        text = _text(item) if isinstance(item, Mapping) else item
        if isinstance(text, str) and text.startswith(BILLING_HEADER):
            if not (text := text.partition("\n")[2]):
                continue
            item = {**item, "text": text} if isinstance(item, Mapping) else text
        kept.append(item)
    return kept if isinstance(content, list) else kept[0] if kept else None


def _content(content: object, *, parts: bool) -> object:
    if not isinstance(content, list):
        if not parts or not isinstance(content, str | None):
            return "" if content is None else content
        content = [] if content is None else [content]
    texts = [p if isinstance(p, str) else _text(p) for p in content]
    if not all(isinstance(t, str) for t in texts):
        return content  # a picture or sound
    return [{"type": "text", "text": t} for t in texts] if parts else "\n".join(map(str, texts))


def _text(part: object) -> object:
    """A refusal and a thought are texts to vLLM, too."""
    if not isinstance(part, Mapping):
        return None
    kind = part.get("type")
    return part.get(kind if kind in ("refusal", "thinking") else "text")


def _call(call: object, *, said: bool) -> object:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        return call
    given = function.get("arguments")
    read: object = given
    if isinstance(given, str):
        with contextlib.suppress(ValueError, RecursionError):
            read = json.loads(given or "{}")
    if not isinstance(read, Mapping):
        read = given if said and given is not None else {}
    return {**call, "function": {**function, "arguments": read}}


@lru_cache(maxsize=32)
def takes_parts(template: str | None) -> bool:
    """Whether the template goes through a content's parts. Others get their texts, joined by line ends."""
    if not template:
        return False
    try:
        from jinja2 import Environment, nodes
    except ModuleNotFoundError:
        return False
    try:
        environment = Environment(extensions=["jinja2.ext.loopcontrols"])  # noqa: S701  nothing is rendered
        root = environment.parse(_GENERATION.sub("", template))
        return _loops_over_content(root, nodes)
    except Exception:  # a template may be anything; vLLM takes such a one for one of texts
        return False


def _loops_over_content(root: Any, nodes: Any) -> bool:
    """As vLLM's ``_detect_content_format``."""

    def reads(node: Any, name: str, key: str | None = None) -> bool:
        if isinstance(node, nodes.Filter | nodes.Test):
            return node.node is not None and reads(node.node, name, key)
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            return reads(node.node, name, key)
        if key is None:
            return isinstance(node, nodes.Name) and node.name == name
        if isinstance(node, nodes.Getitem):
            return reads(node.node, name) and isinstance(node.arg, nodes.Const) and node.arg.value == key
        return isinstance(node, nodes.Getattr) and reads(node.node, name) and node.attr == key

    lists = ["messages"]
    for name in lists:  # grows while it is gone through
        for assign in root.find_all(nodes.Assign):
            if reads(assign.node, name) and assign.target.name not in lists:
                lists.append(assign.target.name)
    loops = list(root.find_all(nodes.For))
    items = [loop.target.name for loop in loops if any(reads(loop.iter, name) for name in lists)]

    def is_content(node: Any) -> bool:
        return any(reads(node, item, "content") for item in items)

    in_macros: dict[int, set[str]] = {}
    for macro in root.find_all(nodes.Macro):
        given = set(_given(root, nodes, macro, is_content))
        in_macros |= {id(loop): given for loop in macro.find_all(nodes.For)}
    return any(
        is_content(loop.iter)
        or (isinstance(loop.iter, nodes.Name) and loop.iter.name in in_macros.get(id(loop), {"content"}))
        for loop in loops
    )


def _given(root: Any, nodes: Any, macro: Any, is_content: Any) -> Iterator[str]:
    """Parameters of a macro that get a message's content."""
    names = [arg.name for arg in macro.args]
    for call in root.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == macro.name:
            yield from (name for name, arg in zip(names, call.args, strict=False) if is_content(arg))
            yield from (k.key for k in call.kwargs if k.key in names and is_content(k.value))
