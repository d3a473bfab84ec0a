"""Datasets out of the store, as a stream: JSON lines of whole episodes, SFT rows, DPO pairs, Parquet.

An answer that a person wrote in place of the agent's (``meta.edited`` of a reward with source ``human``) is the better
one of a pair.
"""

from __future__ import annotations

import contextlib
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from aiohttp import web
from pydantic import BaseModel

from slipstream.contract import CallRecord, EpisodeDetail, Form, Reward, RewardSource
from slipstream.shared.chat_template import for_template, template_of, tools_for_template
from slipstream.shared.prefixes import Conversations
from slipstream_chat import inputs
from slipstream_chat.inputs import tool_of
from slipstream_chat.report import Place, Report
from slipstream_proxy.control.api.http import json_of
from slipstream_proxy.control.shared.threads import in_thread
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.log.ids import new_id
from slipstream_proxy.store.write.judge_queue import batched

if TYPE_CHECKING:
    from slipstream_proxy.control.api.http import Ctx
    from slipstream_proxy.store.store import Store
    from slipstream_proxy.store.values import EpisodeFilter

EDITED_MARK = "edited"
EDITED_CALL = "edited_call"


class Edit(NamedTuple):
    call: CallRecord
    text: str
    value: float
    """What the agent's own answer was given."""

    @property
    def message(self) -> JsonObject:
        return {"role": "assistant", "content": self.text}


def edits_of(calls: Sequence[CallRecord], rewards: Sequence[Reward], last: CallRecord | None) -> list[Edit]:
    """The latest edit of each call, in the order of the calls. ``last``: the call that an edit of no call is of.

    A score of the whole episode names the call of its edit in ``meta.edited_call``.
    """
    by_id = {c.id: c for c in calls}
    found: dict[str, Edit] = {}
    for reward in rewards:
        text = reward.meta.get(EDITED_MARK)
        named = reward.call or reward.meta.get(EDITED_CALL)
        call = last if named is None else by_id.get(str(named))
        if reward.source == RewardSource.HUMAN and isinstance(text, str) and text.strip() and call is not None:
            found[call.id] = Edit(call, text, reward.value)
    return sorted(found.values(), key=lambda e: e.call.number)


log = logging.getLogger(__name__)
CHAT_FORMATS = ("chat", "completions")
"""Formats whose messages are a chat's."""
DPO_TASKS = 50
Note = Callable[[list[tuple[str, str]]], None]
"""Told of the (key, id) of episodes that are about to leave."""
CONTENT_TYPES = {
    "jsonl": "application/x-ndjson",
    "sft": "application/x-ndjson",
    "dpo": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}


def line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True, default=str).encode() + b"\n"


def good_calls(episode: EpisodeDetail) -> list[CallRecord]:
    return [c for c in episode.call_list if c.outcome == "ok" and c.reply and (c.messages or c.prefix)]


def as_messages(items: list[Any]) -> list[JsonObject]:
    """Chat messages; a bare prompt is what a user says."""
    return [m if isinstance(m, dict) else {"role": "user", "content": m} for m in items]


def as_reply(message: Any) -> JsonObject:
    return message if isinstance(message, dict) else {"role": "assistant", "content": message}


def longest_call(episode: EpisodeDetail) -> CallRecord | None:
    """An agent re-sends its history, so that call is the whole of it."""
    size = {c.id: len(c.messages) + (c.prefix.messages if c.prefix else 0) for c in episode.call_list}
    return max(good_calls(episode), key=lambda c: (size[c.id], c.number), default=None)


def prompt_of(episode: EpisodeDetail, call: CallRecord) -> list[JsonObject]:
    """What a call was sent, as chat messages."""
    return as_messages(Conversations(episode.call_list).messages(call))


def conversation(episode: EpisodeDetail) -> list[JsonObject] | None:
    """The episode's longest call with its reply."""
    last = longest_call(episode)
    return None if last is None else [*prompt_of(episode, last), as_reply(last.reply[0])]


def chat_of(episode: EpisodeDetail) -> list[JsonObject] | None:
    """The same as a chat, whatever format the agent speaks: trainers read no other. None: there is none."""
    last = longest_call(episode)
    return None if last is None else [*_chat(last, prompt_of(episode, last), "user"), *_said(last)]


def _chat(call: CallRecord, messages: list[JsonObject], role: str) -> list[JsonObject]:
    if call.dialect in CHAT_FORMATS:
        return messages
    return [dict(message) for message in inputs.chat_of(messages, role, Place(Report(), call.id))]


def _said(call: CallRecord) -> list[JsonObject]:
    """The reply of a call."""
    return _chat(call, [as_reply(call.reply[0])], "assistant")


def edits(episode: EpisodeDetail) -> list[Edit]:
    """Answers that people wrote in place of the agent's."""
    return edits_of(good_calls(episode), episode.rewards, longest_call(episode))


def without_nulls(row: JsonObject) -> JsonObject:
    """Trainers read no null. A field without a value is left out."""
    return {k: _without_nulls(v) for k, v in row.items() if v is not None}


def _without_nulls(value: object) -> object:
    if isinstance(value, list):
        return [_without_nulls(v) for v in value]
    return without_nulls(value) if isinstance(value, dict) else value


def tools_of(episode: EpisodeDetail, call: CallRecord | None) -> str | None:
    """Of the call that a row's messages are of: a title or a sub-agent has others. As JSON, which TRL reads: a column
    of nested schemas has no type that all rows share.
    """
    if call is None:
        return None
    tools = Conversations(episode.call_list).tools(call)
    if call.dialect not in CHAT_FORMATS:
        tools = [tool_of(tool) for tool in tools]
    return json.dumps(tools_for_template(tools)) if tools else None


def set_in_template(call: CallRecord | None) -> JsonObject:
    """What the engine was told to set in the model's template, and TRL sets, too. Each row has it, because TRL reads no
    null there.
    """
    return {"chat_template_kwargs": call.template_switches if call is not None else {}}


def sft_row(episode: EpisodeDetail, *, edited: bool = True) -> JsonObject | None:
    """``edited``: an answer that a person wrote ends the conversation in place of the agent's."""
    messages, call = chat_of(episode), longest_call(episode)
    if edited and (found_edits := edits(episode)):
        last = found_edits[-1]
        messages, call = [*_chat(last.call, prompt_of(episode, last.call), "user"), last.message], last.call
    if messages is None:
        return None
    fields = {name: getattr(episode, name) for name in ("key", "task", "adapter", "reward")}
    row = {"messages": messages, "episode": episode.id, **fields, "tools": tools_of(episode, call)}
    return without_nulls(row | set_in_template(call))


def readable(row: JsonObject, template: str | None) -> JsonObject:
    """With messages as the engine gives them to the model's chat template, which thus writes what the engine read and
    said. ``template``: None where it is not known.
    """
    for name in ("messages", "prompt", "chosen", "rejected"):
        if name in row:
            row[name] = for_template(row[name], template, said=name != "prompt")
    return row


def names_of(chosen: EpisodeDetail, rejected: EpisodeDetail) -> JsonObject:
    """Of a pair's episodes, which are one key's."""
    return {"key": chosen.key, "chosen_episode": chosen.id, "rejected_episode": rejected.id}


def dpo_row(best: EpisodeDetail, worst: EpisodeDetail) -> JsonObject | None:
    """Two runs of a task: the common beginning is the prompt. None: they have none, or are equally good."""
    chosen, rejected = chat_of(best) or [], chat_of(worst) or []
    same = 0
    while same < min(len(chosen), len(rejected)) - 1 and chosen[same] == rejected[same]:
        same += 1
    if not same or best.reward == worst.reward:
        return None
    row: JsonObject = {"prompt": chosen[:same], "chosen": chosen[same:], "rejected": rejected[same:], "task": best.task}
    rewards = {"chosen_reward": best.reward, "rejected_reward": worst.reward}
    call = longest_call(best)
    row |= {**names_of(best, worst), **rewards, "tools": tools_of(best, call), **set_in_template(call)}
    return without_nulls(row)


def edited_rows(episode: EpisodeDetail) -> Iterator[JsonObject]:
    """Pairs for DPO: the answer that a person wrote is preferred to the agent's own."""
    for edit in edits(episode):
        pair = {"chosen": [edit.message], "rejected": _said(edit.call)}
        fields = {"task": episode.task, "rejected_reward": edit.value, "tools": tools_of(episode, edit.call)}
        fields |= names_of(episode, episode) | set_in_template(edit.call)
        prompt = _chat(edit.call, prompt_of(episode, edit.call), "user")
        yield without_nulls({"prompt": prompt, **pair, **fields})


def noted(batches: Iterator[list[EpisodeDetail]], note: Note) -> Iterator[list[EpisodeDetail]]:
    """In the manifest before they leave."""
    for batch in batches:
        note([(e.key, e.id) for e in batch])
        yield batch


def dpo_rows(store: Store, wanted: EpisodeFilter, note: Note) -> Iterator[JsonObject]:
    """Best against worst of each task. In memory are ids, and two runs each of ``DPO_TASKS`` tasks."""
    for tasks in batched(store.episodes.ranked(wanted), DPO_TASKS):
        runs = store.episodes.many({name for best, worst in tasks for name in (best[0], worst[0])})

        def first(
            names: list[tuple[str, str]], runs: dict[tuple[str, str], EpisodeDetail] = runs
        ) -> EpisodeDetail | None:
            found = (runs.get(name) or store.episodes.get(*name) for name in names)
            return next((e for e in found if e is not None and conversation(e)), None)

        for best, worst in tasks:
            chosen, rejected = first(best), first(worst)
            if chosen and rejected and (row := dpo_row(chosen, rejected)):
                note([(e.key, e.id) for e in (chosen, rejected)])
                yield row


CALL_LIST_COLUMNS = ("prompt_ids", "completion_ids", "logprobs")
"""Columns with one list for each call: the prompt's ids, and each choice's ids and log-probabilities."""
PLAIN_COLUMNS = {
    "TEXT": ["id", "key", "task", "model", "adapter", "arm", "group"],
    "BIGINT": ["calls", "prompt_tokens", "completion_tokens"],
    "FLOAT8": ["started", "ended", "reward", "advantage"],
}
"""Type → columns that an episode has under the same name."""
JSON_TEXT = ["split", "state", "tags", "messages", "rewards", "call_list", "lineage", "batches", "trained_adapters"]


def parquet_row(e: EpisodeDetail) -> JsonObject:
    row = e.model_dump(mode="python", include={name for names in PLAIN_COLUMNS.values() for name in names})
    row |= {
        "split": e.split.value,
        "state": e.state.value,
        "tags": json.dumps(e.tags),
        "messages": json.dumps(conversation(e), default=str),
    }
    row |= {name: json.dumps(getattr(e, name)) for name in ("batches", "trained_adapters")}
    row |= {"rewards": _dumped(e.rewards), "lineage": _dumped(e.lineage)}
    row["call_list"] = json.dumps([c.model_dump(exclude=set(CALL_LIST_COLUMNS)) for c in e.call_list], default=str)
    row |= {name: [getattr(c, name) for c in e.call_list] for name in CALL_LIST_COLUMNS}
    return row


def _dumped(models: Sequence[BaseModel]) -> str:
    return json.dumps([m.model_dump(mode="python") for m in models], default=str)


def edited_episodes(store: Store) -> list[str]:
    """Episodes (key/id) with an answer that a person wrote in place of the agent's."""
    sql = """SELECT DISTINCT eid FROM t_rewards WHERE source = 'human' AND strpos(meta, '"edited"') > 0"""
    with store.db.read() as tx:
        return [eid for (eid,) in tx.all(sql)]


def pieces(
    store: Store,
    wanted: EpisodeFilter,
    format: str,
    note: Note,
    *,
    form: Form = "auto",
    edited: bool = False,
    model: str | None = None,
) -> Iterator[bytes]:
    """``model``: whose chat template is to render the rows."""
    template = template_of(model) if format in ("sft", "dpo") else None
    if format == "dpo":
        yield from (line(readable(row, template)) for row in dpo_rows(store, wanted, note))
        if edited and (eids := edited_episodes(store)):
            of_people = replace(wanted, among=eids)
            for batch in noted(store.episodes.export(of_people), note):
                yield from (line(readable(row, template)) for e in batch for row in edited_rows(e))
        return
    for batch in noted(store.episodes.export(wanted, tokens=format == "jsonl", form=form), note):
        if format == "jsonl":
            yield b"".join(json_of(e) + b"\n" for e in batch)
        else:
            rows = (sft_row(e, edited=edited) for e in batch)
            yield b"".join(line(readable(row, template)) for row in rows if row)


def parquet(batches: Iterator[list[EpisodeDetail]]) -> Iterator[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from slipstream_proxy.store.backends.duckfile import ARROW_TYPES

    ids = pa.list_(pa.int32())
    lists = {"prompt_ids": ids, "completion_ids": pa.list_(ids), "logprobs": pa.list_(pa.list_(pa.float32()))}
    plain = [
        (name, ARROW_TYPES[kind]) for kind, names in (*PLAIN_COLUMNS.items(), ("TEXT", JSON_TEXT)) for name in names
    ]
    schema = pa.schema([*plain, *((name, pa.list_(kind)) for name, kind in lists.items())])
    with tempfile.TemporaryDirectory(prefix="slipstream-export-") as folder:
        path = Path(folder) / "episodes.parquet"
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            for batch in batches:
                writer.write_table(pa.Table.from_pylist([parquet_row(e) for e in batch], schema=schema))
        with path.open("rb") as file:
            while part := file.read(2**20):
                yield part


async def send(
    ctx: Ctx, wanted: EpisodeFilter, format: str, *, form: Form = "auto", edited: bool, temporary: bool
) -> web.StreamResponse:
    store = ctx.deps.store
    export = f"export-{new_id()}"

    def note(names: list[tuple[str, str]]) -> None:
        if temporary:
            return
        try:
            store.archive.note_export(export, format, names, ctx.deps.now())
        except Exception as e:  # a full disk is a reason to take data out, not to keep it in
            log.warning("the manifest of %s cannot be kept: %s", export, e)

    stream = (
        parquet(noted(store.episodes.export(wanted, form=form), note))
        if format == "parquet"
        else pieces(store, wanted, format, note, form=form, edited=edited, model=ctx.deps.config.engine.model)
    )
    first = await ctx.deps.wait_for(in_thread(next, stream, b""))
    headers = {
        "content-type": CONTENT_TYPES[format],
        "x-slipstream-export": export,
        "content-disposition": f'attachment; filename="slipstream.{"parquet" if format == "parquet" else "jsonl"}"',
    }
    response = web.StreamResponse(headers=headers)
    await response.prepare(ctx.request)
    part: bytes | None = first
    try:
        while part is not None:
            if part:
                await response.write(part)
            part = await in_thread(next, stream, None)
        await response.write_eof()
    finally:
        with contextlib.suppress(Exception):
            await in_thread(stream.close)  # type: ignore[attr-defined]
    return response
