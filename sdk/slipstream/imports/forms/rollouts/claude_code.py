"""Session files of Claude Code: a tree of entries, in which a reply takes a line for each of its blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from slipstream.imports.messages import Message, expand, grow, with_ids
from slipstream.imports.records import LogRun, Talk, Told
from slipstream.imports.registry import guarded
from slipstream.imports.report import Place, Report, Value
from slipstream.imports.rows import LogRow
from slipstream.imports.traces import usage_of
from slipstream.imports.values import mapping

GATHERS = True
SAID = ("user", "assistant")
NOTES = (
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
"""Entries that no model was sent."""


@dataclass(slots=True)
class _Entry:
    id: str
    parent: str | None
    value: Mapping[str, Value]
    place: Place


@dataclass(slots=True)
class _ClaudeSession:
    place: Place
    entries: dict[str, _Entry] = field(default_factory=dict)
    tags: dict[str, Value] = field(default_factory=dict)


def is_one(row: Mapping[str, Value]) -> bool:
    if row.get("type") in SAID and isinstance(row.get("message"), Mapping) and ("sessionId" in row or "uuid" in row):
        return True
    return row.get("type") in NOTES and any(n in row for n in ("leafUuid", "sessionId", "snapshot", "parentUuid"))


def runs(rows: Iterable[LogRow], report: Report) -> Iterator[LogRun]:
    sessions: dict[str, _ClaudeSession] = {}
    for row in rows:
        place = Place(report, row.where)
        with guarded(place):
            _take(sessions, row, place)
    for name, session in sessions.items():
        with guarded(session.place):
            run = LogRun(session.place.where, f"claude-code-{name}", tags=session.tags)
            run.talks = list(_talks(session))
            if run.talks or session.entries:
                yield run


def _take(sessions: dict[str, _ClaudeSession], row: LogRow, place: Place) -> None:
    value = row.value
    kind = value.get("type")
    if kind not in SAID and kind not in NOTES:
        place.drop(f"entry {kind}", "it is no message of a session")
    if not value.get("uuid") and kind not in SAID:
        return
    name = str(value.get("sessionId") or row.file.rpartition("/")[2].partition(".")[0])
    session = sessions.setdefault(name, _ClaudeSession(place))
    for tag, field_name in (("cwd", "cwd"), ("version", "version"), ("branch", "gitBranch")):
        if value.get(field_name):
            session.tags.setdefault(tag, str(value[field_name]))
    previous = next(reversed(session.entries), None)
    ident = str(value.get("uuid") or f"entry-{len(session.entries)}")
    parent = value.get("parentUuid", previous)
    session.entries[ident] = _Entry(ident, str(parent) if parent else None, value, place)


def _talks(session: _ClaudeSession) -> Iterator[Talk]:
    """A talk for each end of the tree: a message that was edited, or a sub-agent, makes an end of its own."""
    parents = {e.parent for e in session.entries.values() if e.parent}
    told: set[str] = set()
    paths = []
    for end in (e for ident, e in session.entries.items() if ident not in parents):
        path, at = [], end
        seen: set[str] = set()
        while at is not None and at.id not in seen:
            seen.add(at.id)
            path.append(at)
            at = session.entries.get(at.parent or "")  # type: ignore[assignment]
        paths.append(path[::-1])
    for path in sorted(paths, key=len, reverse=True):
        talk = _talk(path, told)
        if talk.replies:
            yield talk


def _talk(path: list[_Entry], told: set[str]) -> Talk:
    messages: list[Message] = []
    replies: dict[int, Told] = {}
    open_id = None
    for entry in path:
        if entry.value.get("type") not in SAID:
            continue
        own = mapping(entry.value.get("message"))
        made = expand(own, str(entry.value["type"]), entry.place)
        if entry.value["type"] == "user":
            open_id = None
            messages += made
            continue
        if own.get("model") == "<synthetic>" or entry.value.get("isApiErrorMessage"):
            entry.place.drop("a message", "the program wrote it, no model did")
            continue
        ident = str(own.get("id") or entry.id)
        if ident == open_id and made:
            grow(messages[-1], made[0])
        elif made:
            open_id = ident
            messages.append(made[0])
        else:
            continue
        if ident not in told or (len(messages) - 1) in replies:
            told.add(ident)
            replies[len(messages) - 1] = _told(entry, own, replies.get(len(messages) - 1))
    return Talk(with_ids(messages), replies)


def _told(entry: _Entry, own: Mapping[str, Value], before: Told | None) -> Told:
    at = entry.place.time(entry.value.get("timestamp"), "timestamp")
    usage = mapping(own.get("usage"))
    prompt, completion = usage_of(usage)
    cached = [usage.get(n) for n in ("cache_read_input_tokens", "cache_creation_input_tokens")]
    prompt = None if prompt is None else prompt + sum(c for c in cached if isinstance(c, int))
    model = own.get("model")
    return Told(before.at if before else at, None, prompt, completion, str(model) if model else None)
