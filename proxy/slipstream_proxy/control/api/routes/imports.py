"""Imports: logs of other tools, and episodes and adapters of another store.

Of a log each assistant message becomes a call of text, beside rewards and the done mark. What another Slipstream
exported is put back whole: episodes with their ids, tokens, log-probabilities, rewards and lineage; adapters with their
states. This is how a store moves (DuckDB → PostgreSQL): export there, import here.

And the way back of everything: a backup, while everything runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints

from slipstream import contract as c
from slipstream.shared.prefixes import whole_calls
from slipstream_proxy.control.api.http import (
    ADMIN,
    Ctx,
    Routes,
    check_reward,
    json_of,
    redaction_problems,
    reply,
)
from slipstream_proxy.control.api.routes.episodes import KeyQuery
from slipstream_proxy.control.deps import Deps
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import in_thread
from slipstream_proxy.control.storage import backup
from slipstream_proxy.control.storage.access import Change, away, unwritable
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.log.ids import text_of
from slipstream_proxy.log.records import IMPORTED_ID_PREFIX, CallHead, Kind
from slipstream_proxy.redaction import Redaction, redaction_of
from slipstream_proxy.store.tables import schema
from slipstream_proxy.store.tables.driver import StoreError
from slipstream_proxy.store.values import KnownEpisode

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

IMPORT_UPSTREAM = "import"
MAX_REQUEST_CONVERSATIONS = 256
"""Conversations or episodes of one request."""
YEAR_2100 = 4_102_444_800.0
CALL_SPACING_S = 0.001
"""Seconds between an imported episode's calls."""
TAR_TYPE = "application/x-tar"
SLOW_CLIENT_TIMEOUT_S = 600.0
"""Seconds after which a client that takes nothing is given up."""


class ImportMessage(BaseModel):
    """A chat message. What else it has (``tool_calls``, ``tool_call_id``, ``name``, …) is kept as it is."""

    model_config = ConfigDict(extra="allow")

    role: str = Field(min_length=1, max_length=64)
    content: JsonValue = None

    @property
    def is_said(self) -> bool:
        """Whether a model said it, and it may be imitated."""
        weight = (self.model_extra or {}).get("weight")
        return self.role == "assistant" and not (isinstance(weight, int | float) and weight == 0)


class ImportReply(c.Model):
    """What is known of one of the messages as a model's reply."""

    message: int = Field(ge=0)
    """Its place among the messages, from 0."""
    at: float | None = Field(default=None, ge=0, le=YEAR_2100)
    """When it was asked for, seconds since the epoch."""
    seconds: float | None = Field(default=None, ge=0, le=YEAR_2100)
    """How long the call took."""
    prompt_tokens: int | None = Field(default=None, ge=0)
    completion_tokens: int | None = Field(default=None, ge=0)
    model: str | None = Field(default=None, min_length=1, max_length=200)
    kind: Literal["main", "subagent", "side"] | None = None
    """What it is in its run; None: found by how it begins."""


class ImportIn(c.Model):
    """``POST import``: a conversation, its messages in order.

    Its assistant messages are the calls' replies, but those of ``weight`` 0, which nothing is to imitate.
    """

    id: c.Named | None = None
    """The episode's; None: one made of the conversation, so that the same one is the same episode."""
    task: c.Named | None = None
    split: Annotated[str, Field(pattern="^(train|eval)$")] = "train"
    model: str | None = Field(default=None, min_length=1, max_length=200)
    messages: list[ImportMessage] = Field(min_length=1, max_length=10_000)
    tools: list[JsonValue] | None = None
    reward: c.Finite | None = None
    metrics: dict[c.Named, c.Finite] = Field(default_factory=dict)
    """More rewards, by name."""
    tags: dict[c.Named, c.TagText] = Field(default_factory=dict)
    at: float | None = Field(default=None, ge=0, le=YEAR_2100)
    """When it began, seconds since the epoch; None: now."""
    replies: list[ImportReply] | None = Field(default=None, max_length=10_000)
    """Which of the messages a model said in this episode; None: all of the assistant's. The rest is context."""

    @property
    def replied(self) -> dict[int, ImportReply]:
        """Place of each message that becomes a call → what is known of it."""
        named = self.replies
        if named is None:
            named = [ImportReply(message=i) for i in range(len(self.messages))]
        return {r.message: r for r in named if r.message < len(self.messages) and self.messages[r.message].is_said}

    @property
    def said(self) -> JsonObject:
        """What names it where it has no id."""
        return self.model_dump(mode="python", exclude={"id", "at", "reward", "metrics", "replies"})


class ConversationsIn(c.Model):
    conversations: list[ImportIn] = Field(min_length=1, max_length=MAX_REQUEST_CONVERSATIONS)


def digest(*parts: Any) -> bytes:
    h = hashlib.blake2b(digest_size=10)
    for part in parts:
        h.update(json.dumps(part, sort_keys=True).encode() + b"\n")
    return h.digest()


def call_id(*parts: Any) -> str:
    """26 characters as other calls', a function of what the call says."""
    return IMPORTED_ID_PREFIX + text_of(int.from_bytes(digest(*parts), "big"), 16)


def _dumped(message: ImportMessage) -> JsonObject:
    return message.model_dump(mode="python")


def calls_of(
    body: ImportIn, key: str, episode: str, at: float, latest: float = YEAR_2100
) -> list[tuple[CallHead, bytes, bytes]]:
    """A call for each reply: the messages before it as the request, itself as the answer.

    ``at``: of the first call, seconds since the epoch. A reply with a time of its own has that time, up to ``latest``.
    """
    found: list[tuple[CallHead, bytes, bytes]] = []
    messages = [_dumped(m) for m in body.messages]
    for i, told in sorted(body.replied.items()):
        model = told.model or body.model or IMPORT_UPSTREAM
        request: JsonObject = {"model": model, "messages": messages[:i]}
        if body.tools:
            request["tools"] = body.tools
        answer: JsonObject = {
            "object": "chat.completion",
            "model": model,
            "choices": [{"index": 0, "message": messages[i], "finish_reason": None}],
        }
        if told.prompt_tokens is not None or told.completion_tokens is not None:
            counts = {"prompt_tokens": told.prompt_tokens or 0, "completion_tokens": told.completion_tokens or 0}
            answer["usage"] = counts | {"total_tokens": sum(counts.values())}
        head = CallHead(
            id=call_id(key, episode, request, messages[i]),
            key=key,
            episode=episode,
            task=body.task,
            split=body.split,
            tags=dict(body.tags),
            model=model,
            trained=None,
            adapter=None,
            arm="live",
            pin="control",
            dialect="chat",
            stream=False,
            at=max(at, min(at if told.at is None else told.at, latest)) + CALL_SPACING_S * len(found),
            seconds=told.seconds or 0.0,
            first_byte=None,
            status=200,
            outcome="ok",
            upstream=IMPORT_UPSTREAM,
            external=True,
            origin=IMPORT_UPSTREAM,
            grouped=body.task is not None,
            kind=told.kind or "",
        )
        found.append((head, json.dumps(request).encode(), json.dumps(answer).encode()))
    return found


@dataclass(slots=True)
class _Conversation:
    """What is new of a conversation."""

    key: str
    episode: str
    calls: list[tuple[CallHead, bytes, bytes]]
    rewards: list[c.RewardIn]
    told: c.Imported


async def _prepare(ctx: Ctx, bodies: Sequence[ImportIn], fields: Sequence[str]) -> list[_Conversation]:
    """``fields``: where each body stands in the request. Raises ``Problem`` for one that cannot be read in."""
    deps, now = ctx.deps, ctx.deps.now()
    key = ctx.owner(ctx.query.key)
    redaction = redaction_of(deps.config)
    if redaction is not None:
        bodies = [_renamed(redaction, body) for body in bodies]
    names = [(key, body.id or f"import-{digest(key, body.said).hex()}") for body in bodies]
    standing = await deps.ask(deps.store.rewards.standing, names, now)
    there = [name for name in names if standing[name] == "known"]
    if there:
        await deps.arrived()  # the rewards of an import just before may still be on their way
    stored: dict[tuple[str, str], KnownEpisode] = await deps.ask(deps.store.episodes.standing, there) if there else {}
    found = []
    for body, name, field in zip(bodies, names, fields, strict=True):
        episode = name[1]
        if standing[name] == "gone":
            fix = "import it under another id"
            raise Problem(409, f"episode {episode} is forgotten", field=f"{field}.id", fix=fix)
        known = stored.setdefault(name, KnownEpisode())
        if any(not i.startswith(IMPORTED_ID_PREFIX) for i in known.calls):
            fix = "import it under another id"
            raise Problem(409, f"episode {episode} is one of the agent's own", field=f"{field}.id", fix=fix)
        calls = calls_of(body, key, episode, now if body.at is None else min(body.at, now), now)
        if not calls:
            fix = "import whole conversations"
            raise Problem(
                409, "none of its messages is an assistant's reply with a weight", field=f"{field}.messages", fix=fix
            )
        new = {call[0].id: call for call in calls if call[0].id not in known.calls}
        if redaction is not None:
            new = await in_thread(_redacted_calls, redaction, new)
        rewards = list(_rewards(ctx, body, known))
        told = c.Imported(episode=episode, calls=len(new))
        if standing[name] == "known":
            told.state = "changed" if new or rewards else "there"
            told.kept = [] if new or redaction else _kept(body, known)
        found.append(_Conversation(key, episode, list(new.values()), rewards, told))
    return found


def _renamed(redaction: Redaction, body: ImportIn) -> ImportIn:
    """With the names that a conversation may have here."""
    names = {
        "id": body.id and redaction.id("episode", body.id),
        "task": body.task and redaction.name("task", body.task),
        "model": body.model and redaction.text("model", body.model),
        "tags": {redaction.name("tag_name", name): value for name, value in body.tags.items()},
    }
    return body.model_copy(update=names)


def _redacted(
    redaction: Redaction, request: JsonObject, answer: object, tags: dict[str, str]
) -> tuple[JsonObject, object, dict[str, str]]:
    """What ``proxy.redact`` leaves of a call. As in a request, letters stand in the text as they are."""
    texts = {n: json.dumps(x, ensure_ascii=False) for n, x in (("request", request), ("reply", answer))}
    with redaction_problems():
        after = redaction.texts(texts | {f"tag.{tag}": value for tag, value in tags.items()})
    try:
        request, answer = json.loads(after["request"]), json.loads(after["reply"])
    except ValueError as e:
        fix = "mend proxy.redact: request and reply are JSON, and stay JSON"
        raise Problem(422, "what proxy.redact returned is no JSON", field="body", fix=fix) from e
    return request, answer, {tag: after[f"tag.{tag}"] for tag in tags}


def _redacted_calls(
    redaction: Redaction, calls: dict[str, tuple[CallHead, bytes, bytes]]
) -> dict[str, tuple[CallHead, bytes, bytes]]:
    found = {}
    for name, (head, asked, given) in calls.items():
        request, answer, tags = _redacted(redaction, json.loads(asked), json.loads(given), head.tags)
        found[name] = replace(head, tags=tags), json.dumps(request).encode(), json.dumps(answer).encode()
    return found


def _rewards(ctx: Ctx, body: ImportIn, known: KnownEpisode) -> Iterator[c.RewardIn]:
    """Those that are new or corrected. ``known`` has them from now on."""
    for name, value in {**body.metrics, **({} if body.reward is None else {"reward": body.reward})}.items():
        check_reward(ctx.caller, name, IMPORT_UPSTREAM, ctx.deps.judges.written)
        before, times = known.rewards.get(name, (None, 0))
        if before != value:
            known.rewards[name] = value, times + 1
            # the key: two imports at once are one, and a value that comes back corrects its correction
            key = f"import-{name}-{value!r}" + (f"-{times}" if times else "")
            yield c.RewardIn(name=name, value=value, source=IMPORT_UPSTREAM, key=key)


def _kept(body: ImportIn, known: KnownEpisode) -> list[str]:
    """Fields that differ from the stored episode's."""
    differs = {
        "task": body.task not in (None, known.task),
        "split": body.split != known.split,
        "tags": any(known.tags.get(tag) != value for tag, value in body.tags.items()),
    }
    return [name for name, other in differs.items() if other]


async def _keep(deps: Deps, conversations: Sequence[_Conversation]) -> None:
    """Into the spool together, in this order; the last one's commit is waited for, which comes after the others'."""
    puts = [deps.mutations.writer.put(Kind.CALL, *call) for one in conversations for call in one.calls]
    changes: list[Change] = []
    for one in conversations:
        name = {"key": one.key, "episode": one.episode}
        changes += [("reward", {**name, "reward": given.model_dump(mode="json")}) for given in one.rewards]
        if one.calls:
            changes.append(("done", name))
    kept = asyncio.gather(*puts)
    await deps.mutate_all(changes)
    if not all(await kept):
        raise unwritable()


API_ROUTES = Routes()


@API_ROUTES.add("POST", "/import", (ADMIN,), KeyQuery, ImportIn, result=c.Imported, errors=(409,))
async def post_import(ctx: Ctx) -> web.StreamResponse:
    """Import a conversation from elsewhere. A repeat changes nothing."""
    body: ImportIn = ctx.body
    found = await _prepare(ctx, [body], ["body"])
    await _keep(ctx.deps, found)
    return reply(found[0].told)


@API_ROUTES.add(
    "POST", "/import/conversations", (ADMIN,), KeyQuery, ConversationsIn, result=c.ImportedMany, errors=(409,)
)
async def post_conversations(ctx: Ctx) -> web.StreamResponse:
    """Import up to 256 conversations at once. A repeat changes nothing.

    All of them are checked before the first is kept.
    """
    bodies = ctx.body.conversations
    found = await _prepare(ctx, bodies, [f"body.conversations.{n}" for n in range(len(bodies))])
    await _keep(ctx.deps, found)
    return reply(c.ImportedMany(episodes=[one.told for one in found]))


Count = Annotated[int, Field(ge=0, lt=2**31)]
Time = Annotated[float, Field(ge=0, le=253_402_300_799.0)]
Key = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Name = Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00]*$")]


class CallIn(c.CallRecord):
    number: Count
    at: Time
    seconds: Annotated[float, Field(ge=0, le=1e9)]
    dialect: Name
    model: Name
    adapter: Name | None
    trained: Name | None = None
    status: Annotated[int, Field(ge=0, lt=1000)]
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    prompt_ids: list[Count] | None = None
    completion_ids: list[list[Count]] | None = None
    logprobs: list[list[c.Finite]] | None = None


class EpisodeIn(c.EpisodeDetail):
    """A line of ``export?format=jsonl``."""

    key: Key
    task: c.Tag | None
    split: Literal["train", "eval"]  # type: ignore[assignment]
    tags: dict[c.Tag, c.Tag] = Field(default_factory=dict)
    model: Name
    adapter: Name | None
    state: Literal["open", "done"]  # type: ignore[assignment]
    started: Time
    ended: Time | None
    calls: Count
    prompt_tokens: Annotated[int, Field(ge=0, lt=2**53)] = 0
    completion_tokens: Annotated[int, Field(ge=0, lt=2**53)] = 0
    reward: c.Finite | None = None
    group: c.Id | None = None
    call_list: list[CallIn] = Field(default_factory=list)  # type: ignore[assignment]


class EpisodesIn(c.Model):
    """Lines of ``export?format=jsonl``."""

    episodes: list[EpisodeIn] = Field(min_length=1, max_length=MAX_REQUEST_CONVERSATIONS)


class BroughtIn(c.Model):
    adapters: int
    """New ones."""


async def check(ctx: Ctx, bodies: Sequence[EpisodeIn], fields: Sequence[str]) -> list[EpisodeIn]:
    """Those that are new here, as they are stored. ``fields``: where each stands in the request.

    Raises ``Problem`` for a wrong one.
    """
    deps = ctx.deps
    standing = await deps.ask(deps.store.rewards.standing, [(e.key, e.id) for e in bodies], deps.now())
    for body, field in zip(bodies, fields, strict=True):
        known = {call.id for call in body.call_list}
        if len({call.id for call in body.call_list if call.episode == body.id}) != len(body.call_list):
            text = "calls of another episode, or one twice"
            raise Problem(409, text, field=f"{field}.call_list", fix="send it as exported")
        if strange := next((c.prefix.call for c in body.call_list if c.prefix and c.prefix.call not in known), None):
            fix = "send all calls of the episode, as exported"
            text = f"a call begins with call {strange}, which is not here"
            raise Problem(409, text, field=f"{field}.call_list", fix=fix)
        if standing[body.key, body.id] == "gone":
            raise Problem(409, f"episode {body.id} is forgotten", field=f"{field}.id")
        if standing[body.key, body.id] == "known" and known - await deps.ask(
            deps.store.episodes.call_ids, body.key, body.id
        ):
            text = f"episode {body.id} is there with other calls"
            raise Problem(409, text, field=f"{field}.id", fix="import into a fresh store")
    return await as_stored(ctx, [body for body in bodies if standing[body.key, body.id] == "new"])


async def as_stored(ctx: Ctx, bodies: list[EpisodeIn]) -> list[EpisodeIn]:
    """What ``proxy.redact`` leaves of them."""
    redaction = redaction_of(ctx.deps.config)
    if redaction is None:
        return bodies
    return [await in_thread(_redacted_episode, redaction, body) for body in bodies]


def _redacted_episode(redaction: Redaction, body: EpisodeIn) -> EpisodeIn:
    """A call that was changed loses its tokens, which say the same in other signs. So do the others, which may share
    its words.
    """
    tags, calls, changed = body.tags, list[c.CallRecord](), False
    for call in whole_calls(body.call_list):
        before: JsonObject = {"messages": call.messages, "tools": call.tools}
        said, answer, tags = _redacted(redaction, before, call.reply, tags)
        if (said, answer) != (before, call.reply):
            changed, marks = True, {"trainable": False, "untrainable_reason": "redacted"}
            call = call.model_copy(update={k: said[k] for k in before} | {"reply": answer} | marks)
        calls.append(call)
    if changed:
        bare = {"prompt_ids": None, "completion_ids": None, "logprobs": None}
        calls = [call.model_copy(update=bare) for call in calls]
    with redaction_problems():
        rewards = [r.model_copy(update={"reason": _reason(redaction, r.reason)}) for r in body.rewards]
    task = body.task and redaction.name("task", body.task)
    tags = {redaction.name("tag_name", name): value for name, value in tags.items()}
    return body.model_copy(update={"call_list": calls, "tags": tags, "task": task, "rewards": rewards})


def _reason(redaction: Redaction, reason: str | None) -> str | None:
    return redaction.texts({"reward.reason": reason})["reward.reason"] if reason else reason


def change_of(body: EpisodeIn) -> JsonObject:
    # as text: a transcript may hold numbers and letters that the spool's own JSON has no way to write
    text = json_of(body).decode()
    days = sorted({schema.day_of(call.at) for call in body.call_list})
    return {"key": body.key, "episode": body.id, "days": days, "text": text}


@API_ROUTES.add("POST", "/import/episode", (ADMIN,), body=EpisodeIn, result=c.Imported, errors=(409,))
async def post_episode(ctx: Ctx) -> web.StreamResponse:
    """Restore an exported episode. A repeat changes nothing."""
    body: EpisodeIn = ctx.body
    if not (new := await check(ctx, [body], ["body"])):
        return reply(c.Imported(episode=body.id, calls=0, state="there"))
    await ctx.deps.mutate("episode", change_of(new[0]))
    return reply(c.Imported(episode=body.id, calls=len(body.call_list)))


@API_ROUTES.add("POST", "/import/episodes", (ADMIN,), body=EpisodesIn, result=c.ImportedMany, errors=(409,))
async def post_episodes(ctx: Ctx) -> web.StreamResponse:
    """Restore up to 256 exported episodes at once, all or none. A repeat changes nothing.

    All of them are checked before the first is kept; the last one's commit is waited for, which comes after the
    others'.
    """
    body: EpisodesIn = ctx.body
    if len({(e.key, e.id) for e in body.episodes}) != len(body.episodes):
        raise Problem(409, "the list has an episode twice", field="body.episodes", fix="send each once")
    new = await check(ctx, body.episodes, [f"body.episodes.{n}" for n in range(len(body.episodes))])
    await ctx.deps.mutate_all([("episode", change_of(e)) for e in new])
    fresh = {(e.key, e.id) for e in new}
    found = [
        c.Imported(episode=e.id, calls=len(e.call_list))
        if (e.key, e.id) in fresh
        else c.Imported(episode=e.id, calls=0, state="there")
        for e in body.episodes
    ]
    return reply(c.ImportedMany(episodes=found))


@API_ROUTES.add("POST", "/import/adapters", (ADMIN,), body=c.AdapterList, result=BroughtIn, errors=(409,))
async def post_adapters(ctx: Ctx) -> web.StreamResponse:
    """Import the adapters of another store, as GET adapters returns them. A repeat changes nothing.

    States are taken as they are: the live one is loaded before any call is sent to it. Those that are here already
    stay as they are.
    """
    models = ctx.deps.registry.models
    body: c.AdapterList = ctx.body
    strange = [a.name for a in body.adapters if a.model not in models or a.name != f"{a.model}@{a.version}"]
    if strange:
        text = f"{strange[0]} is no adapter of a trained model"
        raise Problem(409, text, field="body.adapters", fix=f"trained models: {', '.join(models)}")
    return reply(BroughtIn(adapters=await ctx.deps.registrar.bring_in(body.adapters)))


class _Reply(io.RawIOBase):
    """A reply's body, for a thread that writes a file."""

    def __init__(self, response: web.StreamResponse) -> None:
        self._response, self._loop = response, asyncio.get_running_loop()

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        part = bytes(data)
        asyncio.run_coroutine_threadsafe(self._response.write(part), self._loop).result(SLOW_CLIENT_TIMEOUT_S)
        return len(part)


@API_ROUTES.add("GET", "/backup", (ADMIN,), result=TAR_TYPE)
async def get_backup(ctx: Ctx) -> web.StreamResponse:
    """Store, spool, adapters, keys and checkpoints as a tar file, to be unpacked into an empty data_dir."""
    deps, root = ctx.deps, ctx.deps.config.root
    if not await deps.health.check():  # a copy begun now would wait for the database as long as it is away
        raise away()
    made = backup.staged(root, deps.store, deps.ingester)
    try:
        stage = await in_thread(made.__enter__)
    except (StoreError, OSError) as e:
        raise Problem(503, f"no backup can be made: {e}", fix="see docs/operations.md, Back up and restore") from e
    try:
        response = web.StreamResponse(headers={"content-type": TAR_TYPE})
        await response.prepare(ctx.request)
        with contextlib.closing(_Reply(response)) as out:
            await in_thread(backup.write, out, root, stage, deps.config.adapters_dir)
        await response.write_eof()
        return response
    finally:
        await in_thread(made.__exit__, None, None, None)
