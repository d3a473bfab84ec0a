"""Episodes → text, step by step: what was said or done, in words that a judge can read.

Chat Completions, Responses items, Anthropic blocks and plain prompts all end in the same few kinds of step. A step's
``key`` leaves out what differs between two runs only by chance: ids of tool calls, the order of JSON keys, white
space at the ends. Equal behaviour compares equal.

A step's ``kind`` becomes a heading of the prompt, so it is one of ours. Everything that a run can choose, names of
tools and roles among it, goes into the ``text``, which the prompt quotes.

The calls of an episode are a tree of steps; it is written as its main line and the branches that
leave it.

Steps are numbered, and each line of what the agent or its tools said begins with ``| ``: a transcript can write
anything, and still cannot make a step of its own. Branches (sub-agents, compacted or rewritten histories, retries,
several choices) say which step they leave from.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from slipstream.contract import CallRecord, GroupEpisode

Message: TypeAlias = dict[str, Any]
"""One message, item or block, as a client sent it: nothing in it is checked."""
TOOL_RESULT_HEADING = "tool result"
MAX_NAME_CHARS = 80
"""Characters of a tool's or a role's name that are shown."""
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")
"""Control characters besides tab and line ends. U+0085 is a line end."""
ROLE_HEADINGS = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "model": "assistant",
}
"""Role → heading."""
OTHER_ROLE_HEADING = "message in another role"
"""The heading of any other role; the role itself is quoted."""
MAX_CONTENT_DEPTH = 20
"""Levels of lists inside a content field that are read."""
BLOCK_TYPES = {"tool_use", "tool_result", "thinking", "redacted_thinking"}


@dataclass(slots=True)
class Step:
    """``kind`` and ``text`` are its identity. ``aside`` (reasoning) is shown; a client need not send it again."""

    kind: str
    text: str
    aside: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.text.strip()

    @property
    def shortenable(self) -> bool:
        return self.kind.startswith(TOOL_RESULT_HEADING)


def clean(text: str) -> str:
    """Replace lone surrogates and control characters, so that any API takes the text. Tabs and line ends stay."""
    read: str = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return CONTROL_CHARACTERS.sub("\ufffd", read)


def canonical(arguments: object) -> str:
    """JSON in one form where it is JSON, else the text as it is."""
    value = arguments
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    except (ValueError, RecursionError):
        return str(arguments) if isinstance(arguments, str) else "(nested too deeply to show)"


def plain(content: object, depth: int = 0) -> str:
    """The text of a content field: a string, a list of parts, or nothing. Pictures and sounds are named, not shown."""
    if content is None:
        return ""
    if depth > MAX_CONTENT_DEPTH:
        return "(nested too deeply to show)"
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        if content and all(isinstance(part, int) for part in content):
            return f"({len(content)} token ids)"
        return "\n".join(t for t in (plain(part, depth + 1) for part in content) if t)
    if isinstance(content, dict):
        for name in ("text", "refusal"):
            if isinstance(content.get(name), str):
                return str(content[name])
        kind = str(content.get("type", ""))
        if any(word in kind for word in ("image", "audio", "file", "document", "video")):
            return f"({kind}, not shown)"
        if "content" in content:
            return plain(content["content"], depth + 1)
        return canonical(content)
    return str(content)


class Reader:
    """Reads one list of messages.

    Tool calls are numbered within it, so that a result finds its call whatever the ids were.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._calls: dict[str, int] = {}
        self._aside = ""

    def say(self, kind: str, text: str, lead: str = "") -> None:
        if text.strip():
            self.steps.append(Step(kind, lead + clean(text), self._aside))
            self._aside = ""

    def think(self, text: object) -> None:
        words = clean(plain(text)).strip()
        if words:
            self._aside = f"{self._aside}\n{words}".strip()

    def tool_call(self, id: object, name: object, arguments: object) -> None:
        number = len(self._calls) + 1
        self._calls[str(id) if id else f"?{number}"] = number
        text = clean(f"{str(name or '?')[:MAX_NAME_CHARS]} #{number} {canonical(arguments)}")
        self.steps.append(Step("assistant calls tool", text, self._aside))
        self._aside = ""

    def result(self, id: object, content: object) -> None:
        text = clean(plain(content))
        number = self._calls.get(str(id))
        of = f"call #{number}" if number is not None else "an unknown call"
        self.steps.append(Step(f"{TOOL_RESULT_HEADING} of {of}", text or "(empty)"))

    def end(self, note: str = "") -> list[Step]:
        if self._aside:
            self.steps.append(Step("assistant thinks", self._aside))
            self._aside = ""
        if note:
            self.steps.append(Step("note", note))
        return self.steps

    def read(self, messages: Iterable[object]) -> None:
        for message in messages:
            if isinstance(message, dict):
                self.message(message)
            else:
                self.say("prompt", plain(message))

    def message(self, m: Message) -> None:
        kind = str(m.get("type"))
        if kind in {"function_call", "custom_tool_call"}:
            self.tool_call(m.get("call_id") or m.get("id"), m.get("name"), m.get("arguments", m.get("input")))
        elif kind in {"function_call_output", "custom_tool_call_output"}:
            self.result(m.get("call_id"), m.get("output"))
        elif kind == "reasoning":
            self.think(m.get("content") or m.get("summary"))
        elif m.get("role") == "tool":
            self.result(m.get("tool_call_id"), m.get("content"))
        elif m.get("role") == "function":
            self.result(m.get("name"), m.get("content"))
        else:
            self.spoken(m)

    def spoken(self, m: Message) -> None:
        """A message with a role: its reasoning, its parts in order, its tool calls."""
        given = str(m.get("role", "user"))
        role = ROLE_HEADINGS.get(given, OTHER_ROLE_HEADING)
        lead = "" if role != OTHER_ROLE_HEADING else f"(role: {clean(given)[:MAX_NAME_CHARS]})\n"
        if role == "assistant":
            self.think(m.get("reasoning_content") or m.get("reasoning"))
        content = m.get("content", m.get("text"))
        words: list[str] = []
        for part in content if isinstance(content, list) else [content]:
            if isinstance(part, dict) and str(part.get("type")) in BLOCK_TYPES:
                self.say(role, "\n".join(words), lead)
                words = []
                self.block(part)
            else:
                words.append(plain(part))
        self.say(role, "\n".join(w for w in words if w), lead)
        if isinstance(m.get("refusal"), str):
            self.say(role, m["refusal"], lead)
        self.tool_calls(m)

    def tool_calls(self, m: Message) -> None:
        """The tool calls of a Chat Completions message, and the older ``function_call``."""
        calls = m.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            if isinstance(call, dict):
                function = call.get("function") or call.get("custom")
                function = function if isinstance(function, dict) else {}
                self.tool_call(call.get("id"), function.get("name"), function.get("arguments", function.get("input")))
        if isinstance(old := m.get("function_call"), dict):
            self.tool_call(old.get("name"), old.get("name"), old.get("arguments"))

    def block(self, part: Message) -> None:
        """Anthropic's blocks."""
        if part["type"] == "tool_use":
            self.tool_call(part.get("id"), part.get("name"), part.get("input"))
        elif part["type"] == "tool_result":
            self.result(part.get("tool_use_id"), part.get("content"))
        else:
            self.think(part.get("thinking"))


def call_steps(call: CallRecord, choice: int) -> tuple[list[Step], int]:
    """The request and one of its replies as one path, and how many of its steps are the request's.

    A last note says how a call ended that did not end well.
    """
    reader = Reader()
    reader.read(call.messages)
    asked = len(reader.end())  # close reasoning that stood alone before the reply begins
    found = replies(call)
    for message in found[choice] if choice < len(found) else []:
        reader.message({"role": "assistant", **(message if isinstance(message, dict) else {"content": message})})
    return reader.end(_note(call)), asked


def replies(call: CallRecord) -> list[list[object]]:
    """The messages of each choice. A reply of the Responses format is a list of items, and one choice."""
    if call.dialect == "responses" and all(isinstance(r, dict) and "type" in r for r in call.reply):
        return [call.reply] if call.reply else []
    found: list[list[object]] = []
    for reply in call.reply:
        output = reply.get("output") if isinstance(reply, dict) else reply
        found.append(output if isinstance(output, list) else [reply])
    return found


def plain_prompt(call: CallRecord) -> str | None:
    """The prompt of a call that has no messages but a text."""
    if call.dialect != "completions" or len(call.messages) != 1:
        return None
    only = call.messages[0]
    text = only.get("content") if isinstance(only, dict) else only
    return text if isinstance(text, str) else None


def _note(call: CallRecord) -> str:
    if call.outcome == "aborted":
        return "(the client broke this reply off)"
    if call.outcome == "error":
        return f"(the call failed: {call.status} {clean(call.error or '')[:300]})"
    if call.finish_reason in {"length", "max_tokens", "max_output_tokens"}:
        return "(the reply was cut at its token limit)"
    return ""


def tool_lines(tools: Iterable[object]) -> list[str]:
    """A line for each tool definition, of any format: name, parameters, description."""
    lines = []
    for tool in tools:
        if not isinstance(tool, dict):
            continue
        function = tool.get("function") if isinstance(tool.get("function"), dict) else tool
        assert isinstance(function, dict)
        schema = function.get("parameters") or function.get("input_schema") or {}
        name = function.get("name") or tool.get("type") or "?"
        lines.append(clean(f"{name} {canonical(schema)}: {function.get('description') or ''}".strip(": ")))
    return lines


SEPARATE_CONVERSATION_TEXT = "a conversation of its own (a sub-agent, or a fresh start)"
SUB_AGENT_TEXT = "another conversation under the same instructions (a sub-agent, or a compacted history)"
REWRITTEN_HISTORY_TEXT = "the history was rewritten from here (compacted or edited)"
REPEATED_REQUEST_TEXT = "the same request, answered again"
OTHER_CHOICE_TEXT = "another reply that was sampled for the same request"


@dataclass(eq=False, slots=True)
class Node:
    step: Step
    number: int
    branch: Branch
    next: dict[tuple[str, str], Node] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Branch:
    """A run of steps. ``source`` is the number of the step that it leaves from, 0 where it begins on its own."""

    source: int
    why: str
    call: int
    nodes: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Transcript:
    """One episode. ``digest`` names its content: episodes with equal digests are judged once."""

    branches: list[Branch]
    tools: list[str]
    digest: str = ""

    @property
    def main(self) -> list[Node]:
        return self.branches[0].nodes if self.branches else []

    @property
    def steps(self) -> list[Step]:
        return [n.step for b in self.branches for n in b.nodes]


class _Tree:
    def __init__(self) -> None:
        self.roots: dict[tuple[str, str], Node] = {}
        self.branches: list[Branch] = []
        self.count = 0
        self.texts: list[tuple[str, list[Step]]] = []

    def insert(self, path: Sequence[Step], asked: int, call: int, choice: int) -> None:
        """``asked``: how many of the path's steps are the request's."""
        here: Node | None = None
        level = self.roots
        depth = 0
        while depth < len(path) and (step := path[depth]).key in level:
            here = level[step.key]
            if step.aside and not here.step.aside:
                here.step.aside = step.aside
            level = here.next
            depth += 1
        if depth == len(path):
            return
        if here is not None and here.branch.nodes[-1] is here:
            branch = here.branch
        else:
            branch = Branch(
                here.number if here else 0, self._why(path, depth, asked, choice) if self.branches else "", call
            )
            self.branches.append(branch)
        for step in path[depth:]:
            self.count += 1
            node = Node(step, self.count, branch)
            branch.nodes.append(node)
            level[step.key] = node
            level = node.next

    @staticmethod
    def _why(path: Sequence[Step], depth: int, asked: int, choice: int) -> str:
        if choice and depth >= asked:
            return OTHER_CHOICE_TEXT
        if depth == 0:
            return SEPARATE_CONVERSATION_TEXT
        if depth >= asked:
            return REPEATED_REQUEST_TEXT
        return SUB_AGENT_TEXT if all(s.kind == "system" for s in path[:depth]) else REWRITTEN_HISTORY_TEXT

    def continued(self, call: CallRecord) -> list[Step] | None:
        """A plain prompt that goes on where an earlier prompt and reply ended: that path, and what is new."""
        if (prompt := plain_prompt(call)) is None:
            return None
        best = max((t for t in self.texts if t[0] and prompt.startswith(t[0])), key=lambda t: len(t[0]), default=None)
        if best is None:
            return None
        rest = prompt[len(best[0]) :]
        return [*best[1], *([Step("user", clean(rest))] if rest.strip() else [])]


def read(calls: Sequence[CallRecord]) -> Transcript:
    """The transcript of one episode's calls. Superseded calls (the client asked again) are left out."""
    tree = _Tree()
    tools: dict[str, None] = {}
    for call in sorted(calls, key=lambda c: c.number):
        if call.outcome == "superseded":
            continue
        tools |= dict.fromkeys(tool_lines(call.tools))
        before = tree.continued(call)
        for choice in range(max(1, len(found := replies(call)))):
            path, asked = call_steps(call, choice)
            if before is not None:
                path, asked = [*before, *path[asked:]], len(before)
            tree.insert(path, asked, call.number, choice)
            if (prompt := plain_prompt(call)) is not None and choice < len(found):
                tree.texts.append((prompt + "".join(plain(m) for m in found[choice]), path))
    made = Transcript(tree.branches, list(tools))
    made.digest = digest(made)
    return made


def digest(transcript: Transcript) -> str:
    """Equal for episodes in which the same was said and done. Reasoning counts."""
    said = [[b.source, b.why, [[*n.step.key, n.step.aside] for n in b.nodes]] for b in transcript.branches]
    return hashlib.sha256(json.dumps([transcript.tools, said]).encode()).hexdigest()[:32]


def of_episode(episode: GroupEpisode) -> Transcript:
    return read(episode.calls)


def common_prefix(transcripts: Sequence[Transcript]) -> int:
    """How many steps of the main lines are the same in all. 0 for fewer than two."""
    if len(transcripts) < 2:
        return 0
    length = 0
    for nodes in zip(*(t.main for t in transcripts), strict=False):
        first = nodes[0].step
        if any(n.step.key != first.key or n.step.aside != first.aside for n in nodes) or any(
            n.number != length + 1 for n in nodes
        ):
            break
        length += 1
    return length


def common_tools(transcripts: Sequence[Transcript]) -> list[str]:
    """Tool definitions that are the same in all."""
    return [line for line in transcripts[0].tools if all(line in t.tools for t in transcripts)] if transcripts else []
