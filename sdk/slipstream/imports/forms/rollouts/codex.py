"""Session files of Codex: items of OpenAI's Responses, a line each, beside what the program notes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from slipstream.imports.inputs import of_items
from slipstream.imports.messages import Message, grow, with_ids
from slipstream.imports.records import LogRun, Talk, Told
from slipstream.imports.registry import guarded
from slipstream.imports.report import Place, Report, Value
from slipstream.imports.rows import LogRow
from slipstream.imports.traces import usage_of
from slipstream.imports.values import listed, mapping, text_of

GATHERS = True
ENTRIES = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")


def is_one(row: Mapping[str, Value]) -> bool:
    if row.get("type") in ENTRIES and "payload" in row:
        return True
    return "instructions" in row and "timestamp" in row and "id" in row and "messages" not in row


@dataclass(slots=True)
class _CodexSession:
    place: Place
    file: str
    id: str | None = None
    model: str | None = None
    tags: dict[str, Value] = field(default_factory=dict)
    system: list[Message] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    replies: dict[int, Told] = field(default_factory=dict)
    talks: list[Talk] = field(default_factory=list)
    whole: bool = False
    """The last message is answered: what the model says next is another reply."""

    def end(self) -> None:
        if self.replies:
            self.talks.append(Talk(with_ids(self.messages), self.replies))
        self.messages, self.replies = [], {}

    def item(self, value: Mapping[str, Value], at: float | None, place: Place) -> None:
        for message in of_items([value], place):
            if message["role"] != "assistant":
                self.whole = False
                self.messages.append(message)
                continue
            last = len(self.messages) - 1
            if last in self.replies and not self.whole:
                grow(self.messages[last], message)
            else:
                self.messages.append(message)
                self.replies[last + 1] = Told(at, model=self.model)
            self.whole = False

    def run(self) -> LogRun:
        self.end()
        name = self.id or self.file.rpartition("/")[2].partition(".")[0]
        run = LogRun(self.place.where, f"codex-{name}", model=self.model, tags=self.tags)
        run.talks = self.talks
        return run


def runs(rows: Iterable[LogRow], report: Report) -> Iterator[LogRun]:
    session: _CodexSession | None = None
    for row in rows:
        place = Place(report, row.where)
        if session is None or session.file != row.file:
            if session is not None:
                yield session.run()
            session = _CodexSession(place, row.file)
        with guarded(place):
            _take(session, row.value, place)
    if session is not None:
        yield session.run()


def _take(session: _CodexSession, row: Mapping[str, Value], place: Place) -> None:
    kind, payload = row.get("type"), mapping(row.get("payload"))
    at = place.time(row.get("timestamp"), "timestamp")
    if kind == "session_meta" or (kind is None and "instructions" in row):
        _describe(session, payload or row)
    elif kind == "turn_context":
        session.model = str(payload["model"]) if payload.get("model") else session.model
    elif kind == "event_msg":
        if payload.get("type") == "token_count":
            usage = mapping(mapping(payload.get("info")).get("last_token_usage"))
            if usage and session.replies:
                told = session.replies[max(session.replies)]
                told.prompt_tokens, told.completion_tokens = usage_of(usage)
                session.whole = session.messages[-1]["role"] == "assistant"
    elif kind == "compacted":
        session.end()
        history = listed(payload.get("replacement_history"))
        session.messages = (
            of_items(history, place)
            if history
            else [*session.system, {"role": "user", "content": text_of(payload.get("message") or "")}]
        )
    elif kind == "response_item" or "payload" not in row:
        if row.get("record_type") is None:
            session.item(payload or row, at, place)
    else:
        place.drop(f"entry {kind}", "it is no entry of a session")


def _describe(session: _CodexSession, told: Mapping[str, Value]) -> None:
    if session.id is not None:
        return  # a fork's file repeats what its parent's begins with
    session.id = str(told.get("id") or told.get("session_id") or "") or None
    for name in ("cwd", "cli_version", "originator", "model_provider"):
        if told.get(name):
            session.tags[name] = str(told[name])
    git = mapping(told.get("git"))
    session.tags |= {k: v for k, v in git.items() if isinstance(v, str) and k in ("branch", "commit_hash")}
    base = told.get("base_instructions")
    instructions = mapping(base).get("text") if isinstance(base, Mapping) else base or told.get("instructions")
    if isinstance(instructions, str) and instructions:
        session.system = [{"role": "system", "content": instructions}]
        session.messages = [*session.system]
