"""Rewards of episodes and calls, words about them, and the end of an episode."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from aiohttp import web

from slipstream import contract as c
from slipstream.contract import SCORER_SCOPES, KeyScope, RewardSource
from slipstream.shared.backoff import rest
from slipstream_proxy.control.api.http import (
    Ctx,
    Routes,
    check_reward,
    check_teacher,
    reply,
)
from slipstream_proxy.control.api.routes.episodes import (
    EPISODE_PATH,
    KeyQuery,
    ended_reply,
    episode_of,
)
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import in_thread
from slipstream_proxy.control.status.causes.rewards import unweighted_fix
from slipstream_proxy.store.values import RewardAsk, Standing

CALL_PATIENCE = 2.0
"""Seconds that a reward of a call waits for the call to come from the spool into the store."""

EVAL_FIX = "an evaluation run is never trained on: say it about a run without x-slipstream-split: eval"

API_ROUTES = Routes()

scored = partial(
    API_ROUTES.add,
    "POST",
    scopes=(KeyScope.INFERENCE, KeyScope.REWARD, KeyScope.GRADE, KeyScope.JUDGE),
    query=KeyQuery,
    result=c.RewardAck,
    errors=(404, 409),
    at_once=True,
)


@scored(EPISODE_PATH + "/rewards", body=c.RewardIn)
async def post_reward(ctx: Ctx) -> web.StreamResponse:
    """Add or correct a reward."""
    body: c.RewardIn = ctx.body
    if body.name in (c.WORDS_REWARD, c.THUMBS_REWARD) and "words" in body.meta:
        text = f"a reward {body.name} with meta.words is feedback, which is not taken here"
        raise Problem(
            422, text, field="body.meta.words", fix="POST it to …/feedback as `text`, or name the reward otherwise"
        )
    return await _keep(ctx, body)


@scored(EPISODE_PATH + "/feedback", body=c.FeedbackIn)
async def post_feedback(ctx: Ctx) -> web.StreamResponse:
    """Say in words what was wrong with a run or a call, or give a better reply: the model learns from it."""
    body: c.FeedbackIn = ctx.body
    return await _keep(
        ctx, body.reward((RewardSource.JUDGE if ctx.caller.only(KeyScope.JUDGE) else RewardSource.USER).value)
    )


async def _standing(ctx: Ctx, asked: RewardAsk, *, words: bool = False) -> Standing:
    """How the episode stands, as far as the store answers. ``words``: they are about it. Raises ``Problem`` 404: it was
    forgotten.
    """
    if ctx.deps.store_answers and not words and (known := ctx.deps.store.standings.at_once(asked)) is not None:
        return known
    found = Standing(key=asked.key)
    if asked.idempotency:  # the same reward may have been sent a moment ago
        await ctx.deps.mutations.settled()
    if ctx.deps.store_answers:
        with away_is_fine():  # the spool keeps what is said until the store answers
            (found,) = await ctx.deps.wait_for(ctx.deps.standings.ask([asked]))
    if found.how == "forgotten":
        fix = "leave it out: nothing about it is kept; new runs need a new id"
        raise Problem(404, f"episode {asked.episode} was forgotten", field="path.episode", fix=fix)
    return found


async def _keep(ctx: Ctx, body: c.RewardIn) -> web.StreamResponse:
    """Write a reward down, log first. The store is asked once, and again after that of an episode that is new to it."""
    deps = ctx.deps
    check_teacher(ctx)
    check_reward(ctx.caller, body.name, body.source, deps.judges.written)
    episode = episode_of(ctx)
    words = c.words_in(body.name, body.meta)
    asked = _asked(ctx, episode)._replace(idempotency=body.key, call=body.call)
    found = await _standing(ctx, asked, words=bool(words))
    _check_owner(ctx, episode, found)
    key = found.key
    await _check_standing(ctx, episode, found, body.call)
    # the spool keeps the decision itself: a replay under other weights ends the same episodes
    ends = body.ends({name for name, weight in deps.config.reward.weights.items() if weight})
    there = found.known or ctx.begun
    if found.stored:
        reward = body.model_copy(update={"done": ends}).model_dump(mode="json")
        change = {"key": key, "episode": episode, "reward": reward}
        wait = 10.0 if deps.store_answers else 0
        await deps.mutate("reward", change, wait=wait, id=ctx.write, soon=there)
    if body.source == RewardSource.HUMAN and found.stored:
        # its name and number; the text of notes and edits stays with the reward, which may be forgotten
        detail = {"name": body.name, "value": body.value, "key": key, "edited": "edited" in body.meta}
        await deps.audit.note(ctx.caller.key, "label", episode, detail, write=ctx.write)
    known, why = (True, None) if there else await _known(ctx, key, episode, found.owners)
    fixes = [why] if why else []
    if words and found.split == c.Split.EVAL:
        fixes.append(EVAL_FIX)
    if (not words or body.name == c.THUMBS_REWARD) and not deps.config.reward.weights.get(body.name):
        mine = "the words train; of the thumb: " if words else ""
        fixes.append(mine + unweighted_fix(body.name, deps.config.reward.weights))
    answer = reply(c.RewardAck(stored=found.stored, known=known, fix="; ".join(fixes) or None, done=ends))
    return ended_reply(answer) if ends and known else answer  # what has not begun is not over: its first call joins


async def _check_standing(ctx: Ctx, episode: str, found: Standing, call: str | None) -> None:
    """Raises ``Problem`` 404 for a reward that comes too late, or of a call that is not there."""
    if found.how == "late":
        text = f"no call of episode {episode} has come, and its rewards have waited long enough"
        fix = "check the episode's id (x-slipstream-episode of its replies); a reward waits reward.orphan_ttl seconds"
        raise Problem(404, text, field="path.episode", fix=fix)
    if call is not None and found.known and not found.call and not await _call_comes(ctx, found.key, episode, call):
        fix = "name a call by the x-slipstream-call of its reply, or leave `call` out to score the whole episode"
        raise Problem(404, f"episode {episode} has no call {call}", field="body.call", fix=fix)


@API_ROUTES.add(
    "POST",
    EPISODE_PATH + "/done",
    (KeyScope.INFERENCE, KeyScope.REWARD),
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
    found = await _standing(ctx, RewardAsk(key, episode, begun=ctx.begun))
    there = ctx.begun or found.known
    await deps.mutate("done", {"key": key, "episode": episode}, id=ctx.write, soon=there)
    known, fix = (True, None) if there else await _known(ctx, key, episode, found.owners)
    answer = reply(c.RewardAck(stored=True, known=known, fix=fix, done=True))
    return ended_reply(answer) if known else answer


async def _known(ctx: Ctx, key: str, episode: str, owners: Sequence[str]) -> tuple[bool, str | None]:
    """Whether the store knows the episode of what was just written down, and else what to do. A store that goes away
    now changes nothing: an error would have it sent and stored again.
    """
    with away_is_fine():
        if ctx.deps.store_answers and bool(await ctx.deps.ask(ctx.deps.store.episodes.known, key, [episode])):
            return True, None
        return False, await _why_unknown(ctx, key, owners)
    return False, "the store is away just now: this is written down, and counts once the store is back"


@contextmanager
def away_is_fine() -> Iterator[None]:
    """The block only asks the store, which may go away meanwhile."""
    try:
        yield
    except Problem as e:
        if e.status != 503:
            raise


async def _why_unknown(ctx: Ctx, key: str, owners: Sequence[str]) -> str:
    """What to do about a reward or an end mark of an episode that the store does not know with this key."""
    caller, deps = ctx.caller, ctx.deps
    pending = 1
    if deps.ingester is not None and deps.store_answers:
        pending, _ = await in_thread(deps.ingester.backlog)
    if caller.may(SCORER_SCOPES):
        others = [owner for owner in owners if owner != key]
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


def _asked(ctx: Ctx, episode: str) -> RewardAsk:
    """Whose episode is meant. Raises ``Problem`` 403 where this caller may not score another key's."""
    caller = ctx.caller
    named: str | None = ctx.query.key
    if named is not None and named != caller.key and not caller.may(SCORER_SCOPES):
        fix = "use a key with the scope grade, or leave ?key= out"
        raise Problem(403, "this key may score its own episodes only", field="query.key", fix=fix)
    # with the scope inference its first call may still be on the way
    anyone = named is None and KeyScope.INFERENCE not in caller.scopes
    return RewardAsk(named or caller.key, episode, begun=ctx.begun, anyone=anyone)


def _check_owner(ctx: Ctx, episode: str, found: Standing) -> None:
    """Raises ``Problem`` 404 or 409 if this caller may not score the episode, or not so."""
    caller = ctx.caller
    named = ctx.query.key is not None or KeyScope.INFERENCE in caller.scopes or not ctx.deps.store_answers
    if named or caller.key in found.owners:
        return
    if not caller.may(SCORER_SCOPES):
        fix = "use the key that made its calls, or a key with the scope grade"
        raise Problem(404, f"this key has no episode {episode}", field="path.episode", fix=fix)
    if len(found.owners) > 1:
        raise Problem(409, f"several keys have an episode {episode}", field="query.key", fix="name one with ?key=")
    if not found.owners and not caller.admin:
        fix = "score it after its first call, or name its key with ?key="
        raise Problem(404, f"no key has an episode {episode}", field="path.episode", fix=fix)


async def owner_of(ctx: Ctx, episode: str) -> str:
    """The key whose episode it is. Raises ``Problem`` 403, 404 or 409 if this caller may not score it, or not so."""
    asked = _asked(ctx, episode)
    if not asked.anyone or not ctx.deps.store_answers:
        return asked.key
    (found,) = await ctx.deps.wait_for(ctx.deps.standings.ask([asked]))
    _check_owner(ctx, episode, found)
    return found.key


async def _call_comes(ctx: Ctx, key: str, episode: str, call: str) -> bool:
    """A call may have been answered a moment ago. This waits while the spool is ahead of the store."""
    deps = ctx.deps
    until = asyncio.get_running_loop().time() + CALL_PATIENCE
    while True:
        ingester, changed = deps.ingester, deps.changed
        pending, _ = await in_thread(ingester.backlog) if ingester else (1, None)
        if ingester and pending:
            ingester.hurry()
        if await deps.ask(deps.store.episodes.has_call, key, episode, call):
            return True
        if not pending and not deps.stores.shared:
            return False
        if asyncio.get_running_loop().time() > until:
            return pending > 0  # the store is behind: take the reward, and join it when the call comes
        await rest(0.1, changed)


def who_asks(ctx: Ctx) -> str:
    """The name of the caller's key, or its id."""
    return ctx.deps.audit.name_of(ctx.caller.key) or ctx.caller.key
