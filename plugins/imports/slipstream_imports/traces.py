"""Spans that tracing tools recorded, gathered into runs: what all of their forms have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from slipstream_chat.inputs import messages_of, tool_of
from slipstream_chat.messages import Message
from slipstream_chat.report import Place, Report, Value
from slipstream_chat.values import listed, mapping, parsed, whole
from slipstream_imports.records import LogRun, ModelCall
from slipstream_imports.registry import ReadRows, guarded
from slipstream_imports.rows import LogRow


@dataclass(slots=True)
class Trace:
    id: str | None
    """None: the log names none, and the episode is named by what it says."""
    file: str
    task: str | None = None
    tags: dict[str, Value] = field(default_factory=dict)
    calls: dict[str, ModelCall] = field(default_factory=dict)
    """By the span's id."""
    parents: dict[str, str] = field(default_factory=dict)
    spans: set[str] = field(default_factory=set)
    scores: list[tuple[str, float, bool]] = field(default_factory=list)
    """Name, value, whether it is of the whole trace."""
    share: float = 1.0

    def call(self, span: str, parent: Value, call: ModelCall) -> None:
        self.calls[span if span and span not in self.calls else f"{span}#{len(self.calls)}"] = call
        self.parent(span, parent)

    def parent(self, span: str, parent: Value) -> None:
        self.spans.add(span)
        if span and parent:
            self.parents[span] = str(parent)

    def run(self, tool: str, report: Report) -> LogRun:
        place = Place(report, f"{self.file}: trace {self.id or 'without an id'}")
        run = LogRun(place.where, self.id and f"{tool}-{self.id}", self.task, tags=self.tags, share=self.share)
        run.file = self.file
        run.calls = list(self._sampled(place))
        names = Counter(name for name, _, _ in self.scores)
        seen: Counter[str] = Counter()
        for name, value, of_trace in sorted(self.scores, key=lambda s: not s[2]):
            seen[name] += 1
            if name == "reward" and run.reward is None and (of_trace or names[name] == 1):
                run.reward = value
            else:
                run.metrics[name if seen[name] == 1 and name != "reward" else f"{name}.{seen[name]}"] = value
        return run

    def _sampled(self, place: Place) -> Iterator[ModelCall]:
        """The calls that wrap no other: two instruments tell of one call, the one inside of it tells it as it was."""
        wrappers: set[str] = set()
        for span in self.calls:
            at, seen = self.parents.get(span), {span}
            while at is not None and at not in seen:
                seen.add(at)
                wrappers.add(at)
                at = self.parents.get(at)
        for span, call in self.calls.items():
            if span in wrappers:
                place.drop("a model call", "it wraps model calls that stand in the log themselves")
            elif not call.replies:
                place.drop("a model call", "it has no reply")
            elif not call.messages:
                place.drop("a model call", "it has no messages")
            else:
                yield call


class Late(NamedTuple):
    """A score of a row of its own: its trace or span may stand before it or behind it. ``ids``: what it names."""

    ids: tuple[Value, ...]
    name: str
    value: float
    of_trace: bool
    place: Place


class Traces(dict[str, Trace]):
    """Traces by id, in the order in which they stand in the file."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[Late] = []

    def named(self, id: Value, row: LogRow) -> Trace:
        """The trace of this id; without one, the row is a trace of its own."""
        name = None if id in (None, "") else str(id)
        trace = self.setdefault(name or f" {row.where}", Trace(name, row.file))
        trace.share = row.share
        return trace

    def join(self, name: str, into: str) -> None:
        """All that one trace holds goes into another one."""
        if name == into or name not in self:
            return
        whole, part = self[into], self.pop(name)
        whole.task = whole.task or part.task
        whole.tags = {**part.tags, **whole.tags}
        for span, call in part.calls.items():
            whole.call(span, None, call)
        whole.parents |= part.parents
        whole.scores += part.scores

    def runs(self, tool: str, report: Report) -> Iterator[LogRun]:
        homes = {span: trace for trace in self.values() for span in trace.spans} if self.late else {}
        for late in self.late:
            named = [str(i) for i in late.ids if i not in (None, "")]
            trace = next((t for i in named if (t := self.get(i) or homes.get(i)) is not None), None)
            if trace is None:
                late.place.drop(f"score {late.name}", "it names no trace that is in these files")
            else:
                root = not any(trace.parents.get(i) for i in named)
                trace.scores.append((late.name, late.value, late.of_trace and root))
        for trace in self.values():
            yield trace.run(tool, report)


def gathered(tool: str) -> Callable[[Callable[[Traces, LogRow, Place], None]], ReadRows]:
    """A form's ``runs``, where a row is a part of a trace: the function puts it to its own in ``Traces``."""

    def form(take: Callable[[Traces, LogRow, Place], None]) -> ReadRows:
        def runs(rows: Iterable[LogRow], report: Report) -> Iterator[LogRun]:
            found = Traces()
            for row in rows:
                place = Place(report, row.where)
                with guarded(place):
                    take(found, row, place)
            yield from found.runs(tool, report)

        return runs

    return form


def replies_of(output: Value, sent: list[Message], place: Place) -> list[Message]:
    """The assistant's messages of an output; several are choices. An output that repeats what was sent: what is new."""
    found = messages_of(output, "assistant", place)
    if len(found) > len(sent) and found[: len(sent)] == sent:
        found = found[len(sent) :]
    if any(m["role"] == "tool" for m in found):  # an agent's whole run: its first reply is what this call said
        if len(found) > 1:
            place.drop("messages of an output", "they follow the call's own reply")
        return [m for m in found if m["role"] == "assistant"][:1]
    return [m for m in found if m["role"] == "assistant"]


def sent_of(value: Value, place: Place) -> tuple[list[Message], list[Value] | None]:
    """Messages and tools of an input. LangChain writes the tools as messages, too."""
    value = parsed(value)
    tools = [tool_of(t) for t in listed(mapping(value).get("tools"))] if isinstance(value, Mapping) else []
    if isinstance(value, list):
        defined = [mapping(mapping(m).get("content")) if mapping(m).get("role") == "tool" else {} for m in value]
        tools += [tool for tool in defined if isinstance(tool.get("function"), Mapping)]
        value = [m for m, tool in zip(value, defined, strict=True) if not isinstance(tool.get("function"), Mapping)]
    return messages_of(value, "user", place), tools or None


PROMPT_FIELDS = (
    "prompt_tokens",
    "input_tokens",
    "input",
    "promptTokens",
    "inputTokens",
    "prompt_token_count",
    "promptTokenCount",
)
COMPLETION_FIELDS = (
    "completion_tokens",
    "output_tokens",
    "output",
    "completionTokens",
    "outputTokens",
    "candidates_token_count",
    "candidatesTokenCount",
)


def usage_of(*told: Value) -> tuple[int | None, int | None]:
    """Tokens of prompt and completion, by any of the names that providers have for them."""
    objects = [mapping(t) for t in told]

    def count(names: Iterable[str]) -> int | None:
        counts = (whole(o[name]) for o in objects for name in names if name in o)
        return next((n for n in counts if n is not None), None)

    return count(PROMPT_FIELDS), count(COMPLETION_FIELDS)
