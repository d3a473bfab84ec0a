"""Session files of Codex: items of OpenAI's Responses, a line each, beside what the program notes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from slipstream_chat.inputs import of_items
from slipstream_chat.messages import Message, grow, with_ids
from slipstream_chat.report import Place, Report, Value
from slipstream_chat.values import listed, mapping, text_of
from slipstream_imports.records import LogRun, Talk, Told
from slipstream_imports.registry import guarded
from slipstream_imports.rows import LogRow
from slipstream_imports.traces import usage_of

GATHERS_ROWS = True
ENTRY_TYPES = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")
COPY_GAP_S = 0.25
"""A fork's file repeats its parent's lines at once. A model takes longer."""
CONTEXT_OPENINGS = (
    *("<environment_context>", "<user_instructions>", "<turn_aborted>", "<user_shell_command>", "<skill>"),
    *("<subagent_notification>", "# AGENTS.md instructions"),
)
"""How messages begin that the program writes as the user's. They begin no turn."""


def is_one(row: Mapping[str, Value]) -> bool:
    if row.get("type") in ENTRY_TYPES and "payload" in row:
        return True
    return "instructions" in row and "timestamp" in row and "id" in row and "messages" not in row


class _Line(NamedTuple):
    kind: Value
    payload: Mapping[str, Value]
    at: float | None
    place: Place


@dataclass(slots=True)
class _CodexSession:
    place: Place
    file: str
    id: str | None = None
    parent: str | None = None
    """The session whose history this one's file repeats."""
    begun: float | None = None
    model: str | None = None
    tags: dict[str, Value] = field(default_factory=dict)
    system: list[Message] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    replies: dict[int, Told] = field(default_factory=dict)
    talks: list[Talk] = field(default_factory=list)
    whole: bool = False
    """The last message is answered: what the model says next is another reply."""
    held: list[_Line] = field(default_factory=list)
    """Of a fork: its lines, until the parent's are known."""
    said: set[str] = field(default_factory=set)
    """Its items."""

    def end(self) -> None:
        if self.replies:
            self.talks.append(Talk(with_ids(self.messages), self.replies))
        self.messages, self.replies = [], {}

    def item(self, value: Mapping[str, Value], at: float | None, place: Place, *, own: bool) -> None:
        for message in of_items([value], place):
            if message["role"] != "assistant":
                self.whole = False
                self.messages.append(message)
                continue
            last = len(self.messages) - 1
            joins = last in self.replies if own else last >= 0 and self.messages[last]["role"] == "assistant"
            if joins and not self.whole:
                grow(self.messages[last], message)
            else:
                self.messages.append(message)
                if own:
                    self.replies[last + 1] = Told(at, model=self.model, kind="main")
            self.whole = False

    def compact(self, payload: Mapping[str, Value], place: Place) -> None:
        """The system prompt is no part of the history, and stays."""
        self.end()
        history = listed(payload.get("replacement_history"))
        after = of_items(history, place) if history else []
        after = after or [{"role": "user", "content": text_of(payload.get("message") or "")}]
        self.messages = [*([] if after[: len(self.system)] == self.system else self.system), *after]
        self.whole = False

    def roll_back(self, turns: int, place: Place) -> None:
        """The turns that the user took back are no part of what follows, and nothing is to imitate them."""
        begins = [i for i, m in enumerate(self.messages) if _begins_turn(m)]
        if turns > len(begins):
            place.drop("a rolled-back turn", "it lies before a compaction or a fork, and its calls stay")
        cut = begins[-min(turns, len(begins))] if turns and begins else len(self.messages)
        gone = [i for i in self.replies if i >= cut]
        for i in gone:
            del self.replies[i]
            place.drop("a reply", "the user rolled its turn back")
        place.branch(len(gone))
        self.messages, self.whole = self.messages[:cut], True

    def run(self) -> LogRun:
        self.end()
        name = self.id or self.file.rpartition("/")[2].partition(".")[0]
        run = LogRun(self.place.where, f"codex-{name}", model=self.model, tags=self.tags)
        run.talks = self.talks
        return run


def _begins_turn(message: Message) -> bool:
    content = message.get("content")
    texts = [content, *(mapping(p).get("text") for p in listed(content))]
    text = next((t for t in texts if isinstance(t, str) and t), "")
    return message["role"] == "user" and not text.lstrip().startswith(CONTEXT_OPENINGS)


def runs(rows: Iterable[LogRow], report: Report) -> Iterator[LogRun]:
    """A session for each file. A fork waits for the others, because one of them may be its parent."""
    session: _CodexSession | None = None
    forks: list[_CodexSession] = []
    said: dict[str, set[str]] = {}
    for row in rows:
        place = Place(report, row.where)
        if session is None or session.file != row.file:
            yield from _ended(session, forks, said)
            session = _CodexSession(place, row.file)
        with guarded(place):
            _take(session, row.value, place)
    yield from _ended(session, forks, said)
    for fork in forks:
        _read_fork(fork, said.get(fork.parent or ""))
        yield fork.run()


def _ended(session: _CodexSession | None, forks: list[_CodexSession], said: dict[str, set[str]]) -> Iterator[LogRun]:
    if session is None:
        return
    said.setdefault(session.id or "", session.said)
    if session.parent is None:
        yield session.run()
    else:
        forks.append(session)


def _take(session: _CodexSession, row: Mapping[str, Value], place: Place) -> None:
    bare = "payload" not in row
    kind = ("session_meta" if "instructions" in row else "response_item") if bare else row.get("type")
    at = place.time(row.get("timestamp"), "timestamp")
    line = _Line(kind, row if bare else mapping(row["payload"]), at, place)
    if kind == "session_meta":
        _describe(session, line)
        return
    if kind == "response_item":
        if row.get("record_type") is not None:
            return
        session.said.add(_key(line.payload))
    if session.parent is not None:
        session.held.append(line)
    else:
        _read(session, line, own=True)


def _key(item: Mapping[str, Value]) -> str:
    """An item as its copy has it, too."""
    kept = {k: v for k, v in item.items() if k not in ("id", "status") and "metadata" not in k}
    return json.dumps(kept, sort_keys=True, default=str)


def _read_fork(session: _CodexSession, parents: set[str] | None) -> None:
    """What the parent said is context alone. Without the parent's file the lines' times tell the copy's end."""
    inherited, before, copied = True, session.begun, 0
    for line in session.held:
        if inherited and parents is not None:
            inherited = line.kind != "response_item" or _key(line.payload) in parents
        elif inherited and line.at is not None and session.begun is not None and before is not None:
            early = line.at < session.begun
            inherited = early or line.at - before < COPY_GAP_S
            before = before if early else line.at
        else:
            inherited = False
        replies = len(session.messages)
        with guarded(line.place):
            _read(session, line, own=not inherited)
        if inherited:
            copied += sum(m["role"] == "assistant" for m in session.messages[replies:])
    for _ in range(0 if parents is not None else copied):
        session.place.drop(
            "a reply", f"it is session {session.parent}'s: it counts where its own file is imported; here it is context"
        )


def _read(session: _CodexSession, line: _Line, *, own: bool) -> None:
    kind, payload, at, place = line
    if kind == "turn_context":
        session.model = str(payload["model"]) if payload.get("model") else session.model
    elif kind == "event_msg":
        if payload.get("type") == "token_count":
            usage = mapping(mapping(payload.get("info")).get("last_token_usage"))
            if usage and session.replies:
                told = session.replies[max(session.replies)]
                told.prompt_tokens, told.completion_tokens = usage_of(usage)
            if usage and session.messages:
                session.whole = session.messages[-1]["role"] == "assistant"
        elif payload.get("type") == "thread_rolled_back":
            turns = payload.get("num_turns")
            session.roll_back(turns if isinstance(turns, int) and turns > 0 else 0, place)
    elif kind == "compacted":
        session.compact(payload, place)
    elif kind == "response_item":
        session.item(payload, at, place, own=own)
    else:
        place.drop(f"entry {kind}", "it is no entry of a session")


def _describe(session: _CodexSession, line: _Line) -> None:
    told = line.payload
    ident = str(told.get("id") or told.get("session_id") or "") or None
    if session.id is not None:
        if ident != session.id and session.parent is None:
            session.parent = ident  # a fork's file repeats what its parent's begins with
            _name_parent(session)
        return
    created = line.place.time(told.get("timestamp"), "timestamp")
    session.id, session.begun = ident, max((t for t in (line.at, created) if t is not None), default=None)
    spawned = mapping(mapping(mapping(told.get("source")).get("subagent")).get("thread_spawn"))
    parent = told.get("forked_from_id") or spawned.get("parent_thread_id")
    session.parent = str(parent) if parent else None
    _name_parent(session)
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


def _name_parent(session: _CodexSession) -> None:
    if session.parent:
        session.tags |= {"forked_from": session.parent, "parent": f"codex-{session.parent}"}
