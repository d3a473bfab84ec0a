from __future__ import annotations

import argparse
import json
import shutil
import textwrap
import time
from collections import Counter
from http import HTTPStatus
from typing import Any

from pydantic import JsonValue

from slipstream.cli.common import (
    MOMENT_HELP,
    add_client,
    age,
    ago,
    connect,
    finite,
    number,
    step_line,
    table,
    task_text,
    tell,
)
from slipstream.client import Client
from slipstream.contract import WORDS_REWARD, CallRecord, Episode, EpisodeDetail, EpisodePage, Reward, Split, words_in
from slipstream.errors import ApiError, ConfigError
from slipstream.shared.moments import parse_moment
from slipstream.shared.printable import printable

FILTER_OPTIONS = (
    "task",
    "split",
    "adapter",
    "state",
    "model",
    "reward_min",
    "reward_max",
    "since",
    "until",
    "kind",
    "outcome",
)
MOMENT_OPTIONS = ("since", "until")
SHOWN_MESSAGE_CHARS = 2000
"""Characters of one message that are shown."""
INDENT_COLUMNS = 15


def add_filters(parser: argparse.ArgumentParser, **told: str) -> None:
    """``told``: help for a filter that means something else here."""
    for name in FILTER_OPTIONS:
        kind = finite if name in {"reward_min", "reward_max"} else str
        text = {"kind": "with such a call: main, subagent, title, summary, compaction, side, …"}.get(name)
        text = told.get(name, MOMENT_HELP if name in MOMENT_OPTIONS else text)
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help=text)
    parser.add_argument("--tag", metavar="KEY=VALUE", action="append", default=[])
    text = "one of these as NAME=VALUE, as task=refund or tag.team=us; may be repeated"
    parser.add_argument("--where", metavar="NAME=VALUE", action="append", default=[], help=text)


def tags_of(args: argparse.Namespace) -> dict[str, str]:
    """Raises ``ConfigError``."""
    found: dict[str, str] = {}
    for one in args.tag:
        name, given, value = one.partition("=")
        if not given:
            raise ConfigError(f"--tag {one}: write KEY=VALUE")
        if found.setdefault(name, value) != value:
            raise ConfigError(f"--tag {one}: the tag {name} is given twice, and no run has both values")
    return found


def filters(args: argparse.Namespace) -> dict[str, Any]:
    """What the control API is asked for. Raises ``ConfigError``."""
    said = {name: f"--{name} " for name in MOMENT_OPTIONS}
    while args.where:
        one = args.where.pop(0)
        name, _, value = one.partition("=")
        if name.startswith("tag.") and value:
            args.tag.append(one.removeprefix("tag."))
        elif name in FILTER_OPTIONS and value:
            if getattr(args, name) is not None:
                raise ConfigError(f"--where {one}: {name} is given twice")
            said[name] = f"--where {name}="
            setattr(args, name, _number(one, value) if name in {"reward_min", "reward_max"} else value)
        else:
            raise ConfigError(f"--where {one}: write NAME=VALUE, NAME one of {', '.join(FILTER_OPTIONS)} or tag.KEY")
    tags = tags_of(args)
    found = {name: getattr(args, name) for name in FILTER_OPTIONS if getattr(args, name) is not None}
    found |= {name: parse_moment(found[name], flag=said[name]) for name in MOMENT_OPTIONS if name in found}
    return found | ({"tags": tags} if tags else {})


def _number(said: str, value: str) -> float:
    try:
        return finite(value)
    except argparse.ArgumentTypeError as e:
        raise ConfigError(f"--where {said}: {e}") from e


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    add_filters(parser)
    parser.add_argument("id", nargs="?", help="show this episode with its calls")
    parser.add_argument("--delete", action="store_true", help="forget it: delete its text and tokens")
    parser.add_argument("--limit", type=int, default=30, metavar="N", help="show the newest N (default 30)")
    parser.add_argument("--all", action="store_true", help="show all of them")


def said(message: JsonValue) -> list[str]:
    """A message as people read it: its role, then its text, thoughts, tool calls and results, indented."""
    if not isinstance(message, dict):
        return _block("text", str(message))
    fields: dict[str, Any] = message
    role = str(fields.get("role") or fields.get("type") or "message")
    parts = fields.get("content", fields.get("output", fields.get("text")))
    thought = fields.get("reasoning_content") or fields.get("reasoning")
    found = _block("thought", str(thought)) if thought else []
    uses: list[dict[str, Any]] = [u.get("function", u) for u in fields.get("tool_calls") or () if isinstance(u, dict)]
    for part in parts if isinstance(parts, list) else [parts]:
        if isinstance(part, dict) and part.get("type") == "tool_use":
            uses.append(part)
        elif isinstance(part, dict):
            text = part.get("text") or part.get("thinking") or part.get("content") or f"[{part.get('type')}]"
            found += _block(role, _text(text))
        elif part is not None:
            found += _block(role, str(part))
    uses += [fields] if fields.get("type") == "function_call" else []
    for use in uses:
        found += _block(role, f"→ {use.get('name')}({_text(use.get('arguments', use.get('input', '')))})")
    return found


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _block(role: str, text: str) -> list[str]:
    """``role`` beside the first line; at most ``SHOWN_MESSAGE_CHARS`` characters, and how many are left out."""
    shown = text[:SHOWN_MESSAGE_CHARS] + (
        f"… ({len(text) - SHOWN_MESSAGE_CHARS} more characters: --json has them)"
        if len(text) > SHOWN_MESSAGE_CHARS
        else ""
    )
    width = max(40, shutil.get_terminal_size((120, 40)).columns - INDENT_COLUMNS)
    rows = [row for line in shown.splitlines() or [""] for row in textwrap.wrap(line, width) or [""]]
    return [f"    {role[:10]:10} {rows[0]}", *(" " * INDENT_COLUMNS + row for row in rows[1:])]


def _known(episode: EpisodeDetail, call: CallRecord) -> int:
    """How many of a call's messages the one that it extends had, its reply among them."""
    before = next((c for c in episode.call_list if c.id == call.extends), None)
    if before is None:
        return 0
    same = 0
    for mine, theirs in zip(call.messages, before.messages, strict=False):
        if mine != theirs:
            break
        same += 1
    if same < len(before.messages):
        return same  # the history was edited: what is new begins there
    while same < len(call.messages) and isinstance(m := call.messages[same], dict) and m.get("role") == "assistant":
        same += 1
    return same


def _feedback(said: Reward, numbers: dict[str, int], changed: str) -> list[str]:
    """What a user said, and what it changed in the calls. ``changed``: what to say where the trainer has not been."""
    about = "the run" if said.call is None else f"call {numbers.get(said.call, said.call)}"
    thumb = "" if said.name == WORDS_REWARD else f"  {said.name} {said.value:+g}"
    taught = said.meta.get("taught")
    if isinstance(taught, dict):
        changed = ", ".join(f"call {numbers.get(call, call)} {nats:+.2f} nats a token" for call, nats in taught.items())
    lines = [f"  words by {said.source} about {about} {ago(said.at)}{thumb}  ({changed})"]
    return lines + _block("", str(said.meta["words"]))


def describe(episode: EpisodeDetail) -> str:
    """A page for a terminal: who, rewards, and the conversation call by call."""
    task = task_text(episode.task, episode.tags)
    about = f"task {task}  {episode.split}  {outcome_of(episode)}  adapter {episode.adapter or '-'}"
    lines = [f"episode {episode.id}  {about}"]
    if episode.error is not None:
        lines.append(f"  failed, and counts in no mean, group or trial: {episode.error}")
    numbers = {call.id: call.number for call in episode.call_list}
    for r in episode.rewards:
        if words_in(r.name, r.meta):
            trained = any(call.trainable for call in episode.call_list if r.call in (None, call.id))
            waits = "not trained on yet" if trained else "trains nothing, see the calls"
            waits = "never trained on: an evaluation run" if episode.split == Split.EVAL else waits
            lines += _feedback(r, numbers, waits)
        else:
            lines.append(f"  reward {r.name} = {r.value:g} by {r.source} {ago(r.at)}  {printable(r.reason or '')}")
    for call in episode.call_list:
        before = numbers.get(call.extends or "")
        goes_on = "begins a conversation" if call.extends is None else f"goes on with call {before or 0}"
        if call.extends is not None and before is None:
            goes_on = f"goes on with {call.extends}"
        why = "" if call.trainable else f"  not trained on: {call.untrainable_reason}"
        kind = "" if call.kind == "main" else f"{call.kind}  "
        lines.append(
            f"  call {call.number}  {kind}{call.outcome} {call.status}  "
            f"{call.prompt_tokens}+{call.completion_tokens} tokens  {goes_on}{why}"
        )
        sent = call.messages if call.extends is None else call.messages[_known(episode, call) :]
        for message in [*sent, *call.reply]:
            lines += said(message)
        if call.error:
            lines.append(f"    error: {printable(call.error[:SHOWN_MESSAGE_CHARS])}")
    return "\n".join(lines)


def run(args: argparse.Namespace) -> int:
    if args.delete and not args.id:
        raise ConfigError("--delete: which episode? give its id")
    with connect(args) as client:
        if args.id and args.delete:
            gone = client.delete(args.id)
            none = "no version yet" if gone.steps else "nothing"
            said = f"forgotten; trained on it: {', '.join(gone.adapters) or none}"
            if gone.exports:
                said += f"; still contained in: {', '.join(gone.exports)}"
            return tell(args, gone, "\n".join([said, *map(step_line, gone.steps)]))
        if args.id:
            episode = _named(client, args.id)
            return tell(args, episode, describe(episode), indent=2)
        page = _listed(client, args)
    return tell(args, page, listing(page, time.time()), indent=2)


def _named(client: Client, named: str) -> EpisodeDetail:
    """The episode of an id, of one that a table has cut, or of how an id begins. Raises ``ConfigError`` for several."""
    head, cut, tail = named.partition("…")
    unknown: ApiError | None = None
    if not cut:
        try:
            return client.episode(named)
        except ApiError as e:
            if e.status != HTTPStatus.NOT_FOUND:
                raise
            unknown = e
    newest = client.episodes(limit=EPISODES_PER_PAGE).episodes
    found = [e.id for e in newest if e.id.startswith(head) and e.id.endswith(tail)]
    if len(found) > 1:
        raise ConfigError(f"{named}: {len(found)} of the newest episodes match, {', '.join(found[:3])} among them")
    if not found and unknown is not None:
        raise unknown
    return client.episode(found[0] if found else named)


EPISODES_PER_PAGE = 1000
"""Episodes that are asked for at once."""
MIN_COLUMN_WIDTHS = {"task": 12, "adapter": 8, "episode": 20}


def _listed(client: Client, args: argparse.Namespace) -> EpisodePage:
    wanted, most = filters(args), None if args.all else args.limit
    page = client.episodes(limit=min(EPISODES_PER_PAGE, most or EPISODES_PER_PAGE), count=1, **wanted)
    found, after = list(page.episodes), page.next
    while after is not None and (most is None or len(found) < most):
        more = client.episodes(
            limit=min(EPISODES_PER_PAGE, EPISODES_PER_PAGE if most is None else most - len(found)),
            cursor=after,
            **wanted,
        )
        found += more.episodes
        after = more.next
    return page.model_copy(update={"episodes": found, "next": after})


def role_of(e: Episode) -> str:
    """What a run is for, or which adapter it was given and why."""
    return "held-out" if e.split == Split.EVAL else "no adapter" if e.adapter is None else e.arm


def outcome_of(e: Episode) -> str:
    return "failed" if e.error is not None else str(e.state)


def listing(page: EpisodePage, now: float) -> str:
    """A table for a terminal, how many it leaves out, and why runs failed."""
    header = ("episode", "task", "adapter", "arm", "outcome", "reward", "age")
    rows = [
        (
            e.id,
            task_text(e.task, e.tags),
            e.adapter or "-",
            role_of(e),
            outcome_of(e),
            number(e.reward),
            age(e.started, now),
        )
        for e in page.episodes
    ]
    lines = [table(header, rows, MIN_COLUMN_WIDTHS)]
    errors = Counter(e.error for e in page.episodes if e.error is not None)
    lines += [f"{n} failed, and count in no mean: {error}" for error, n in errors.most_common(SHOWN_ERRORS)]
    if len(errors) > SHOWN_ERRORS:
        lines.append(f"{len(errors) - SHOWN_ERRORS} other errors: `slipstream episodes --where outcome=failed --json`")
    if page.next is not None:
        some = f"the newest {len(rows):,}" if page.total is None else f"{len(rows):,} of {page.total:,}"
        lines.append(f"{some}, --all")
    return "\n".join(lines)


SHOWN_ERRORS = 5
