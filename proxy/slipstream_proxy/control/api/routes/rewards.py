"""Rewards and the end of an episode, and what people do by hand: label cases, pause training, write notes on the time
axis, and see who did what.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal

from aiohttp import web
from pydantic import Field

from slipstream import contract as c
from slipstream.shared.backoff import rest
from slipstream_proxy.control.adapters.gatekeeper import REWARDS_CHANGED
from slipstream_proxy.control.api.http import (
    ADMIN,
    GRADE,
    INFERENCE,
    JUDGE,
    OF_OTHERS,
    REWARD,
    TRAINER,
    VIEWER_SCOPE,
    Ctx,
    Query,
    Routes,
    check_reward,
    check_teacher,
    paged,
    reply,
)
from slipstream_proxy.control.api.routes.episodes import (
    EPISODE_PATH,
    Cursor,
    KeyId,
    KeyQuery,
    Label,
    Number,
    ended_reply,
    episode_of,
    unknown,
)
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import in_thread
from slipstream_proxy.control.status.funnel import unweighted_fix
from slipstream_proxy.store.tables.small import AuditFilter
from slipstream_proxy.store.values import RewardAsk, Standing

CALL_PATIENCE = 2.0
"""Seconds that a reward of a call waits for the call to come from the spool into the store."""

EVAL_FIX = "an evaluation run is never trained on: say it about a run without x-slipstream-split: eval"

API_ROUTES = Routes()
scored = partial(
    API_ROUTES.add,
    "POST",
    scopes=(INFERENCE, REWARD, GRADE, JUDGE),
    query=KeyQuery,
    result=c.RewardAck,
    errors=(404, 409),
    at_once=True,
)


@scored(EPISODE_PATH + "/rewards", body=c.RewardIn)
async def post_reward(ctx: Ctx) -> web.StreamResponse:
    """Add or correct a reward."""
    body: c.RewardIn = ctx.body
    if body.name in (c.WORDS, c.THUMBS) and "words" in body.meta:
        text = f"a reward {body.name} with meta.words is feedback, which is not taken here"
        raise Problem(
            422, text, field="body.meta.words", fix="POST it to …/feedback as `text`, or name the reward otherwise"
        )
    return await _keep(ctx, body)


@scored(EPISODE_PATH + "/feedback", body=c.FeedbackIn)
async def post_feedback(ctx: Ctx) -> web.StreamResponse:
    """Say in words what was wrong with a run or a call, or give a better reply: the model learns from it."""
    body: c.FeedbackIn = ctx.body
    return await _keep(ctx, body.reward("judge" if ctx.caller.only(JUDGE) else "user"))


async def _acknowledged(ctx: Ctx, key: str, episode: str, idempotency: str | None) -> c.RewardAck | Literal["late"]:
    """How the episode stands, as far as the store answers. Raises ``Problem`` 404: it was forgotten."""
    ack: Standing = c.RewardAck(stored=True, known=False)
    if idempotency:  # the same reward may have been sent a moment ago
        await ctx.deps.mutations.settled()
    if ctx.deps.store_answers:
        with _away_is_fine():  # the spool keeps what is said until the store answers
            asked = RewardAsk(key, episode, idempotency, ctx.begun)
            (ack,) = await ctx.deps.wait_for(ctx.deps.standings.ask([asked]))
    if ack == "forgotten":
        fix = "leave it out: nothing about it is kept; new runs need a new id"
        raise Problem(404, f"episode {episode} was forgotten", field="path.episode", fix=fix)
    return ack


async def _keep(ctx: Ctx, body: c.RewardIn) -> web.StreamResponse:
    """Write a reward down, log first."""
    deps = ctx.deps
    check_teacher(ctx)
    check_reward(ctx.caller, body.name, body.source, deps.judges.written)
    episode = episode_of(ctx)
    key = await _owner(ctx, episode)
    ack = await _acknowledged(ctx, key, episode, body.key)
    if ack == "late":
        text = f"no call of episode {episode} has come, and its rewards have waited long enough"
        fix = "check the episode's id (x-slipstream-episode of its replies); a reward waits reward.orphan_ttl seconds"
        raise Problem(404, text, field="path.episode", fix=fix)
    if ack.known and body.call is not None and not await _call_exists(ctx, key, episode, body.call):
        fix = "name a call by the x-slipstream-call of its reply, or leave `call` out to score the whole episode"
        raise Problem(404, f"episode {episode} has no call {body.call}", field="body.call", fix=fix)
    # the spool keeps the decision itself: a replay under other weights ends the same episodes
    ends = body.ends({name for name, weight in deps.config.reward.weights.items() if weight})
    there = ack.known or ctx.begun
    if ack.stored:
        reward = body.model_copy(update={"done": ends}).model_dump(mode="json")
        change = {"key": key, "episode": episode, "reward": reward}
        wait = 10.0 if deps.store_answers else 0
        await deps.mutate("reward", change, wait=wait, id=ctx.write, soon=there)
    if body.source == "human" and ack.stored:
        # its name and number; the text of notes and edits stays with the reward, which may be forgotten
        detail = {"name": body.name, "value": body.value, "key": key, "edited": "edited" in body.meta}
        await deps.audit.note(ctx.caller.key, "label", episode, detail, write=ctx.write)
    known, why = (True, None) if there else await _known(ctx, key, episode)
    ack = ack.model_copy(update={"known": known})
    fixes = [why] if why else []
    words = c.words_in(body.name, body.meta)
    if words:
        fixes += [EVAL_FIX] if await _of_eval(ctx, key, episode) else []
    if (not words or body.name == c.THUMBS) and not deps.config.reward.weights.get(body.name):
        mine = "the words train; of the thumb: " if words else ""
        fixes.append(mine + unweighted_fix(body.name, deps.config.reward.weights))
    ack = ack.model_copy(update={"fix": "; ".join(fixes) or None})
    answer = reply(ack.model_copy(update={"done": ends}))
    return ended_reply(answer) if ends and known else answer  # what has not begun is not over: its first call joins


@API_ROUTES.add(
    "POST",
    EPISODE_PATH + "/done",
    (INFERENCE, REWARD),
    KeyQuery,
    c.DoneIn,
    body_required=False,
    result=c.RewardAck,
    errors=(404,),
    at_once=True,
)
async def post_done(ctx: Ctx) -> web.StreamResponse:
    """End an episode: no more calls will come."""
    deps, key, episode = ctx.deps, ctx.owner(ctx.query.key), episode_of(ctx)
    ack = await _acknowledged(ctx, key, episode, None)
    there = ctx.begun or (ack != "late" and ack.known)
    await deps.mutate("done", {"key": key, "episode": episode}, id=ctx.write, soon=there)
    known, fix = (True, None) if there else await _known(ctx, key, episode)
    answer = reply(c.RewardAck(stored=True, known=known, fix=fix, done=True))
    return ended_reply(answer) if known else answer


async def _of_eval(ctx: Ctx, key: str, episode: str) -> bool:
    with _away_is_fine():
        if ctx.deps.store_answers:
            return bool(await ctx.deps.ask(ctx.deps.store.rewards.split_of, key, episode) == c.Split.EVAL)
    return False


async def _known(ctx: Ctx, key: str, episode: str) -> tuple[bool, str | None]:
    """Whether the store knows the episode of what was just written down, and else what to do. A store that goes away
    now changes nothing: an error would have it sent and stored again.
    """
    with _away_is_fine():
        if ctx.deps.store_answers and bool(await ctx.deps.ask(ctx.deps.store.episodes.known, key, [episode])):
            return True, None
        return False, await _why_unknown(ctx, key, episode)
    return False, "the store is away just now: this is written down, and counts once the store is back"


@contextmanager
def _away_is_fine() -> Iterator[None]:
    """The block only asks the store, which may go away meanwhile."""
    try:
        yield
    except Problem as e:
        if e.status != 503:
            raise


async def _why_unknown(ctx: Ctx, key: str, episode: str) -> str:
    """What to do about a reward or an end mark of an episode that the store does not know with this key."""
    caller, deps = ctx.caller, ctx.deps
    pending = 1
    if deps.ingester is not None and deps.store_answers:
        pending, _ = await in_thread(deps.ingester.backlog)
    if deps.store_answers and caller.may(OF_OTHERS):
        others = [owner for owner in await deps.ask(deps.store.episodes.owners, episode) if owner != key]
        if others:
            named = " or ".join(f"?key={owner}" for owner in others[:3])
            return f"no call of it has come with the key {key}; another key has an episode of this id: name {named}"
    if pending:
        return (
            "no call of it is in the store yet, which is reading newer ones just now: this counts once the call is "
            "there"
        )
    return (
        "no call of it has come with this key yet; if another key makes its calls, use that key or one of scope grade "
        "(`slipstream keys rotate` changes a key's secret, and its runs stay its own)"
    )


async def _owner(ctx: Ctx, episode: str) -> str:
    """The key whose episode it is. Raises ``Problem`` 403, 404 or 409 if this caller may not score it, or not so."""
    caller, deps = ctx.caller, ctx.deps
    named: str | None = ctx.query.key
    if named is not None and named != caller.key:
        if not caller.may(OF_OTHERS):
            fix = "use a key with the scope grade, or leave ?key= out"
            raise Problem(403, "this key may score its own episodes only", field="query.key", fix=fix)
        return named
    if named is not None or INFERENCE in caller.scopes or not deps.store_answers:
        return caller.key  # its first call may still be on the way
    owners: list[str] = await deps.ask(deps.store.episodes.owners, episode)
    if caller.key in owners:
        return caller.key
    if not caller.may(OF_OTHERS):
        fix = "use the key that made its calls, or a key with the scope grade"
        raise Problem(404, f"this key has no episode {episode}", field="path.episode", fix=fix)
    if len(owners) > 1:
        raise Problem(409, f"several keys have an episode {episode}", field="query.key", fix="name one with ?key=")
    if not owners and not caller.admin:
        fix = "score it after its first call, or name its key with ?key="
        raise Problem(404, f"no key has an episode {episode}", field="path.episode", fix=fix)
    return owners[0] if owners else caller.key


async def _call_exists(ctx: Ctx, key: str, episode: str, call: str) -> bool:
    """A call may have been answered a moment ago. This waits while the spool is ahead of the store."""
    deps = ctx.deps
    until = asyncio.get_running_loop().time() + CALL_PATIENCE
    while True:
        ingester, changed = deps.ingester, deps.changed
        pending, _ = await in_thread(ingester.backlog) if ingester else (1, None)
        if await deps.ask(deps.store.episodes.has_call, key, episode, call):
            return True
        if not pending and not deps.stores.shared:
            return False
        if asyncio.get_running_loop().time() > until:
            return pending > 0  # the store is behind: take the reward, and join it when the call comes
        await rest(0.1, changed)


SHOWN_KINDS = (
    *("annotation", REWARDS_CHANGED, "pause", "resume", "promote", "rollback", "adapter", "refused", "live", "accept"),
)


class AuditQuery(Query):
    key: KeyId | None = Field(None, description="Done with this API key.")
    action: c.Tag | None = None
    target: Label | None = None
    since: Number | None = Field(None, description="Seconds since the epoch.")
    until: Number | None = None
    cursor: Cursor | None = Field(None, description="`next` of the page before.")
    limit: int = Field(100, ge=1, le=1000)


class QueueQuery(Query):
    key: KeyId | None = Field(None, description="Another key's episodes (admin, viewer).")
    task: c.Asked | None = None
    split: Literal["train", "eval"] | None = None
    adapter: Label | None = None
    limit: int = Field(20, ge=1, le=200)
    assigned: Label | None = Field(None, description="Episodes that this person is to label.")
    second: bool = Field(False, description="Episodes that others labelled, and this key did not.")


class AnnotationsQuery(Query):
    since: Number | None = Field(None, description="Seconds since the epoch.")
    until: Number | None = None
    limit: int = Field(500, ge=1, le=5000)


@API_ROUTES.add("GET", "/audit", (VIEWER_SCOPE, ADMIN), AuditQuery, result=c.AuditPage, errors=(404,))
async def get_audit(ctx: Ctx) -> web.StreamResponse:
    """Who promoted, rolled back, labelled, deleted, paused or made keys, the newest first."""
    return await paged(ctx, ctx.deps.store.audit.page, AuditFilter(**ctx.query.model_dump()))


@API_ROUTES.add("GET", "/labels/queue", query=QueueQuery, result=c.LabelCases)
async def get_queue(ctx: Ctx) -> web.StreamResponse:
    """Finished episodes to label, the most uncertain first; label one with a reward of source `human`."""
    q: QueueQuery = ctx.query
    queue = ctx.deps.store.reports.labels
    second = (ctx.caller.key or "-") if q.second else None
    return reply(
        await ctx.deps.ask(queue.read, ctx.visible(q.key), q.task, q.split, q.adapter, q.limit, second, q.assigned)
    )


@API_ROUTES.add("GET", EPISODE_PATH + "/comments", query=KeyQuery, result=c.Comments)
async def get_comments(ctx: Ctx) -> web.StreamResponse:
    """What people said of an episode, and who is to label it."""
    return reply(await ctx.deps.ask(ctx.deps.store.reports.labels.comments, *await _commented(ctx)))


@API_ROUTES.add(
    "POST", EPISODE_PATH + "/comments", (GRADE, ADMIN), KeyQuery, c.CommentIn, result=c.Comments, errors=(404, 409)
)
async def post_comment(ctx: Ctx) -> web.StreamResponse:
    """Say something of an episode, or assign it to a person who is to label it. It is no reward and ends nothing."""
    deps = ctx.deps
    body: c.CommentIn = ctx.body
    if body.text is None and body.to is None:
        raise Problem(409, "neither text nor to is given", field="body.text", fix="give one of them, or both")
    key, episode = await _commented(ctx)
    if not await deps.ask(deps.store.episodes.known, key, [episode]):
        raise unknown(ctx)
    detail = {"key": key, **body.model_dump(exclude_none=True)}
    await deps.audit.put(ctx.caller.key, "comment" if body.to is None else "assign", episode, detail, write=ctx.write)
    found = c.Comments(comments=[])
    with _away_is_fine():
        found = await deps.ask(deps.store.reports.labels.comments, key, episode)
    return reply(found)


async def _commented(ctx: Ctx) -> tuple[str, str]:
    """The episode that is meant: its key and its id."""
    named, episode, caller = ctx.query.key, episode_of(ctx), ctx.caller
    if named is None and caller.sees_all:
        owners = await ctx.deps.ask(ctx.deps.store.episodes.owners, episode)
        named = owners[0] if len(owners) == 1 else None
    if named is None or not (caller.sees_all or caller.may(OF_OTHERS)):
        named = await _owner(ctx, episode)
    return named, episode


switch = partial(API_ROUTES.add, "POST", scopes=(TRAINER, ADMIN), body=c.PauseIn, body_required=False, result=c.Paused)


@switch("/training/pause", audit="pause")
async def pause(ctx: Ctx) -> web.StreamResponse:
    """Hand out no batches until training is resumed; what is leased goes on."""
    return reply(await _switch(ctx, paused=True))


@switch("/training/resume", audit="resume")
async def resume(ctx: Ctx) -> web.StreamResponse:
    """Hand out batches again."""
    return reply(await _switch(ctx, paused=False))


async def _switch(ctx: Ctx, *, paused: bool) -> c.Paused:
    return await ctx.deps.switch.set(ctx.deps, paused=paused, by=_who(ctx), reason=ctx.body.reason)


def _who(ctx: Ctx) -> str:
    """The name of the caller's key, or its id."""
    return ctx.deps.audit.name_of(ctx.caller.key) or ctx.caller.key


@API_ROUTES.add("GET", "/training/paused", result=c.Paused)
async def get_paused(ctx: Ctx) -> web.StreamResponse:
    """Whether training is paused."""
    return reply(await ctx.deps.switch.state(ctx.deps))


@API_ROUTES.add(
    "POST", "/annotations", (TRAINER, GRADE, ADMIN), body=c.AnnotationIn, result=c.Annotations, audit="annotate"
)
async def annotate(ctx: Ctx) -> web.StreamResponse:
    """Write a note on the time axis. With ``rewards_changed`` the gate's evidence begins anew."""
    deps = ctx.deps
    body: c.AnnotationIn = ctx.body
    at = deps.now() if body.at is None else body.at
    kind = REWARDS_CHANGED if body.rewards_changed else "annotation"
    event = c.Event(kind=kind, at=at, data={"text": body.text, "by": _who(ctx)})
    await deps.mutate("event", event.model_dump(mode="json"), id=ctx.write)
    if body.rewards_changed:
        deps.gatekeeper.notify()
    found = c.Annotations(annotations=[])
    with _away_is_fine():
        found = await _annotations(ctx, AnnotationsQuery(since=event.at, limit=1))
    return reply(found)


@API_ROUTES.add("GET", "/annotations", query=AnnotationsQuery, result=c.Annotations)
async def get_annotations(ctx: Ctx) -> web.StreamResponse:
    """Notes, pauses and changes of adapters, oldest first: marks for a time axis."""
    return reply(await _annotations(ctx, ctx.query))


async def _annotations(ctx: Ctx, q: AnnotationsQuery) -> c.Annotations:
    events = await ctx.deps.ask(ctx.deps.store.events.within, SHOWN_KINDS, q.since, q.until, q.limit)
    return c.Annotations(annotations=[_annotation(e) for e in events])


def _annotation(event: c.Event) -> c.Annotation:
    words = [str(event.data[name]) for name in ("text", "adapter", "name", "reason") if event.data.get(name)]
    by = event.data.get("by")
    text = {"text": ": ".join(words), "by": None if by is None else str(by)}
    return c.Annotation.model_validate(event.model_dump(include={"id", "at", "kind"}) | text)
