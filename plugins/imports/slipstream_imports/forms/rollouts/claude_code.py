"""Session files of Claude Code: a tree of entries. A reply takes a line for each of its blocks, and the answers of
tools that ran side by side are siblings. A compaction begins a new root, and so does a sub-agent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from slipstream_chat.messages import Message, expand, grow, with_ids
from slipstream_chat.report import Place, Report, Value
from slipstream_chat.values import listed, mapping, text_of
from slipstream_imports.records import LogRun, Talk, Told
from slipstream_imports.registry import guarded
from slipstream_imports.rows import LogRow
from slipstream_imports.traces import usage_of

GATHERS_ROWS = True
MESSAGE_TYPES = ("user", "assistant")
NOTE_TYPES = (
    "summary",
    "system",
    "file-history-snapshot",
    "queue-operation",
    "progress",
    "attachment",
    "last-prompt",
    "custom-title",
    "ai-title",
    "agent-name",
    "permission-mode",
    "pr-link",
    "worktree-state",
    "mode",
    "tag",
    "agent-color",
)
"""Entries that are no message."""


@dataclass(slots=True)
class _Entry:
    id: str
    parent: str | None
    value: Mapping[str, Value]
    place: Place
    order: int
    reply: str | None = None
    """The reply that this is a block of."""
    said: list[Message] = field(default_factory=list)

    @property
    def chain(self) -> tuple[bool, str]:
        """Of whose conversation it is."""
        return bool(self.value.get("isSidechain")), text_of(self.value.get("agentId") or "")

    @property
    def copied(self) -> bool:
        """Whether a fork's file repeats it from another session."""
        return "forkedFrom" in self.value

    @property
    def home(self) -> str:
        return str(mapping(self.value.get("forkedFrom")).get("sessionId") or "")


@dataclass(slots=True)
class _ClaudeSession:
    place: Place
    entries: dict[str, _Entry] = field(default_factory=dict)
    replies: dict[str, list[_Entry]] = field(default_factory=lambda: defaultdict(list))
    answers: dict[str, list[_Entry]] = field(default_factory=lambda: defaultdict(list))
    """By the tool call's id."""
    tags: dict[str, Value] = field(default_factory=dict)
    known: Iterable[str] = ()
    """The sessions of this import."""
    others: frozenset[tuple[str, str]] = frozenset()
    """Replies that a session which ended earlier has: one that was resumed in a file of its own repeats them."""

    def path(self, end: _Entry) -> list[_Entry]:
        """From the root to this entry."""
        found: dict[str, _Entry] = {}
        at: _Entry | None = end
        while at is not None and at.id not in found:
            found[at.id] = at
            at = self.entries.get(at.parent or "")
        return [*found.values()][::-1]

    def kept(self, boundary: _Entry) -> list[_Entry]:
        """What a compaction left as it was, beside its summary."""
        about = mapping(boundary.value.get("compactMetadata"))
        named = [self.entries.get(str(i)) for i in listed(mapping(about.get("preservedMessages")).get("uuids"))]
        segment = mapping(about.get("preservedSegment"))
        if not named and (tail := self.entries.get(str(segment.get("tailUuid")))) is not None:
            path = self.path(tail)
            begin = next((n for n, e in enumerate(path) if e.id == segment.get("headUuid")), len(path))
            named = [*path[begin:]]
        return [entry for entry in named if entry is not None]


def is_one(row: Mapping[str, Value]) -> bool:
    if (
        row.get("type") in MESSAGE_TYPES
        and isinstance(row.get("message"), Mapping)
        and ("sessionId" in row or "uuid" in row)
    ):
        return True
    return row.get("type") in NOTE_TYPES and any(n in row for n in ("leafUuid", "sessionId", "snapshot", "parentUuid"))


def runs(rows: Iterable[LogRow], report: Report) -> Iterator[LogRun]:
    sessions: dict[str, _ClaudeSession] = {}
    for row in rows:
        place = Place(report, row.where)
        with guarded(place):
            _take(sessions, row, place)
    _name_owners(sessions.values())
    for name, session in sessions.items():
        with guarded(session.place):
            session.known = sessions
            run = LogRun(session.place.where, f"claude-code-{name}", tags=session.tags)
            run.talks = _talks(session)
            if run.talks or session.entries:
                yield run


def _name_owners(sessions: Iterable[_ClaudeSession]) -> None:
    owned: set[tuple[str, str]] = set()
    for session in sorted(sessions, key=lambda s: max((_time(e) for e in s.entries.values()), default="")):
        own = {said for blocks in session.replies.values() if (said := _said(blocks[0])) is not None}
        session.others = frozenset(own & owned)
        owned |= own


def _said(block: _Entry) -> tuple[str, str] | None:
    """The provider's id of a reply, and when it came. None: it has no such id."""
    ident = mapping(block.value.get("message")).get("id")
    return (ident, _time(block)) if isinstance(ident, str) and ident and _time(block) else None


def _time(entry: _Entry) -> str:
    return str(entry.value.get("timestamp") or "")


def _take(sessions: dict[str, _ClaudeSession], row: LogRow, place: Place) -> None:
    value = row.value
    kind = value.get("type")
    if kind not in MESSAGE_TYPES and kind not in NOTE_TYPES:
        place.drop(f"entry {kind}", "it is no message of a session")
    if kind == "attachment":
        place.drop("entry attachment", "the program wrote it into a request, and no message holds it")
    if not value.get("uuid") and kind not in MESSAGE_TYPES:
        return
    name = str(value.get("sessionId") or row.file.rpartition("/")[2].partition(".")[0])
    session = sessions.setdefault(name, _ClaudeSession(place))
    for tag, field_name in (("cwd", "cwd"), ("version", "version"), ("branch", "gitBranch")):
        if value.get(field_name):
            session.tags.setdefault(tag, str(value[field_name]))
    previous = next(reversed(session.entries), None)
    ident = str(value.get("uuid") or f"entry-{len(session.entries)}")
    if ident in session.entries:
        return  # a file that was copied repeats it
    parent = value.get("parentUuid", previous)
    entry = _Entry(ident, str(parent) if parent else None, value, place, len(session.entries))
    session.entries[ident] = entry
    _read(session, entry)


def _read(session: _ClaudeSession, entry: _Entry) -> None:
    kind, own = entry.value.get("type"), mapping(entry.value.get("message"))
    if kind not in MESSAGE_TYPES:
        return
    if kind == "assistant" and (own.get("model") == "<synthetic>" or entry.value.get("isApiErrorMessage")):
        entry.place.drop("a message", "the program wrote it, no model did")
        return
    entry.said = expand(own, str(kind), entry.place)
    if kind == "assistant" and entry.said:
        entry.reply = f"{own.get('id') or entry.id} {entry.chain}"
        session.replies[entry.reply].append(entry)
    for message in entry.said if kind == "user" else ():
        if message.get("role") == "tool":
            session.answers[str(message.get("tool_call_id"))].append(entry)


def _talks(session: _ClaudeSession) -> list[Talk]:
    """A talk for each end of the tree: an edited message, a compaction or a sub-agent makes an end of its own.

    A reply is the call of the latest end that it leads to; in the others it is context.
    """
    told: set[str] = set()
    parents = {e.parent for e in session.entries.values()}
    for entry in session.entries.values():
        if entry.parent and entry.parent not in session.entries:
            entry.place.drop("an entry's context", "the entry before it (parentUuid) is not in the file")
    ends = sorted((e for i, e in session.entries.items() if i not in parents), key=lambda e: e.order, reverse=True)
    main = _main_line(session, ends)
    found: list[tuple[int, Talk]] = []
    used: set[str] = set()
    for end in ends:
        branch = _Branch(session, session.path(end), told)
        branch.read()
        if not branch.replies:
            continue
        used |= branch.used
        found.append((branch.first, Talk(with_ids(branch.messages), branch.replies)))
        if not end.chain[0] and main.isdisjoint(branch.claimed):
            end.place.branch(len(branch.replies))
    for entry in session.entries.values():
        if entry.said and entry.id not in used and entry.reply is None:
            entry.place.drop("a message on a side branch", "no reply of this session follows it")
            entry.place.branch(1)
    return [talk for _, talk in sorted(found, key=lambda pair: pair[0])]


def _main_line(session: _ClaudeSession, ends: Sequence[_Entry]) -> set[str]:
    """Entries of the session as it stands, with what was before its compactions."""
    at = next((e for e in ends if not e.chain[0]), None)
    found: set[str] = set()
    while at is not None and at.id not in found:
        path = session.path(at)
        found.update(e.id for e in path)
        at = session.entries.get(str(path[0].value.get("logicalParentUuid") or ""))
    return found


@dataclass(slots=True)
class _Branch:
    """What the model was sent on the way to one end of the tree."""

    session: _ClaudeSession
    path: list[_Entry]
    told: set[str]
    messages: list[Message] = field(default_factory=list)
    replies: dict[int, Told] = field(default_factory=dict)
    claimed: set[str] = field(default_factory=set)
    """Entries of its replies."""
    used: set[str] = field(default_factory=set)
    first: int = -1
    """Where in the file its first reply stands."""
    placed: set[tuple[str, Value]] = field(default_factory=set)
    """Answers that stand behind the reply that asked for them."""
    done: set[str] = field(default_factory=set)

    def read(self) -> None:
        kept: list[_Entry] = []
        for n, entry in enumerate(self.path):
            self.used.add(entry.id)
            if entry.value.get("subtype") == "compact_boundary":
                kept = self.session.kept(entry)
            elif entry.reply is not None:
                self._reply(entry, self.path[n + 1 :], claims=True)
            else:
                self._user(entry)
                if entry.said and kept:
                    for m, old in enumerate(kept):
                        if old.reply is None:
                            self._user(old)
                        else:
                            self._reply(old, kept[m + 1 :] or self.path[n + 1 :], claims=False)
                    kept = []

    def _user(self, entry: _Entry) -> None:
        own = [m for m in entry.said if (entry.id, m.get("tool_call_id")) not in self.placed]
        self.messages += [dict(m) for m in own]

    def _reply(self, entry: _Entry, rest: Sequence[_Entry], *, claims: bool) -> None:
        ident = str(entry.reply)
        if ident in self.done:
            return
        self.done.add(ident)
        blocks = self.session.replies[ident]
        message = dict(blocks[0].said[0])
        for block in blocks[1:]:
            grow(message, block.said[0])
        self.messages.append(message)
        self.used.update(block.id for block in blocks)
        if claims and entry.chain == self.path[-1].chain:
            self._claim(ident, blocks)
        if any(e.reply != ident for e in rest):
            for call in listed(message.get("tool_calls")):
                self._answer(text_of(mapping(call).get("id") or ""), rest)

    def _claim(self, ident: str, blocks: Sequence[_Entry]) -> None:
        if ident in self.told:
            return
        self.told.add(ident)
        if blocks[0].copied:
            if blocks[0].home not in self.session.known:
                why = f"it is session {blocks[0].home}'s: it counts where its own file is imported; here it is context"
                blocks[0].place.drop("a reply", why)
            return
        if _said(blocks[0]) in self.session.others:
            return  # it is context here, as what a fork repeats
        self.claimed.update(block.id for block in blocks)
        self.first = blocks[0].order if self.first < 0 else self.first
        told: Told | None = None
        for block in blocks:
            told = _told(block, told)
        if told is not None:
            self.replies[len(self.messages) - 1] = told

    def _answer(self, call: str, rest: Sequence[_Entry]) -> None:
        """The answer on this way, else the sibling that ran beside it."""
        found = self.session.answers.get(call, [])
        ahead = {e.id for e in rest}
        entry = next((e for e in found if e.id in ahead), found[-1] if found else None)
        for message in entry.said if entry is not None else ():
            if entry is not None and message.get("tool_call_id") == call:
                self.messages.append(dict(message))
                self.placed.add((entry.id, call))
                self.used.add(entry.id)


def _told(entry: _Entry, before: Told | None) -> Told:
    own = mapping(entry.value.get("message"))
    at = entry.place.time(entry.value.get("timestamp"), "timestamp")
    usage = mapping(own.get("usage"))
    prompt, completion = usage_of(usage)
    cached = [usage.get(n) for n in ("cache_read_input_tokens", "cache_creation_input_tokens")]
    prompt = None if prompt is None else prompt + sum(c for c in cached if isinstance(c, int))
    model = own.get("model")
    kind = "subagent" if entry.chain[0] else "main"
    return Told(before.at if before else at, None, prompt, completion, str(model) if model else None, kind)
