"""Rewards: who may write which, for whose episode."""

from __future__ import annotations

import asyncio

from aiohttp import web

from slipstream import contract as c
from slipstream.backoff import rest
from slipstream_proxy.control.http import GRADE, INFERENCE, JUDGE, REWARD, Ctx, Routes, reply
from slipstream_proxy.control.permissions import OF_OTHERS, check_reward
from slipstream_proxy.control.problem import Problem
from slipstream_proxy.control.routes.episodes import EPISODE, KeyQuery, ended_reply, episode_of
from slipstream_proxy.control.threads import in_thread

CALL_PATIENCE = 2.0
"""Seconds that a reward of a call waits for the call to come from the spool into the store."""


ROUTES = Routes()


@ROUTES.add(
    "POST",
    EPISODE + "/rewards",
    (INFERENCE, REWARD, GRADE, JUDGE),
    KeyQuery,
    c.RewardIn,
    result=c.RewardAck,
    errors=(404, 409),
)
async def post_reward(ctx: Ctx) -> web.StreamResponse:
    """Add or correct a reward."""
    deps = ctx.deps
    body: c.RewardIn = ctx.body
    check_reward(ctx.caller, body.name, body.source, deps.judges.written)
    episode = episode_of(ctx)
    key = await _owner(ctx, episode)
    ack: c.RewardAck | None = c.RewardAck(stored=True, known=False)
    if deps.store_answers:  # else the spool keeps it until the store does
        ack = await deps.ask(deps.store.rewards.acknowledge, key, episode, body.key, deps.now())
    if ack is None:
        text = f"no call of episode {episode} has come, and its rewards have waited long enough"
        fix = "check the episode's id (x-slipstream-episode of its replies); a reward waits reward.orphan_ttl seconds"
        raise Problem(404, text, field="path.episode", fix=fix)
    if ack.known and body.call is not None and not await _call_exists(ctx, key, episode, body.call):
        fix = "name a call by the x-slipstream-call of its reply, or leave `call` out to score the whole episode"
        raise Problem(404, f"episode {episode} has no call {body.call}", field="body.call", fix=fix)
    # the spool keeps the decision itself: a replay under other weights ends the same episodes
    ends = body.ends({name for name, weight in deps.config.reward.weights.items() if weight})
    if ack.stored:
        reward = body.model_copy(update={"done": ends}).model_dump(mode="json")
        change = {"key": key, "episode": episode, "reward": reward}
        await deps.mutate("reward", change, wait=10.0 if deps.store_answers else 0)
    if body.source == "human" and ack.stored:
        # its name and number; the text of notes and edits stays with the reward, which may be forgotten
        detail = {"name": body.name, "value": body.value, "key": key, "edited": "edited" in body.meta}
        await deps.audit.note(ctx.caller.key, "label", episode, detail)
    if not ack.known and deps.store_answers:
        there = await deps.ask(deps.store.episodes.known, key, [episode])
        ack = ack.model_copy(update={"known": bool(there)})  # its call was read from the spool before this reward
    if not ack.known:
        ack = ack.model_copy(update={"fix": await _why_unknown(ctx, key, episode)})
    return ended_reply(reply(ack.model_copy(update={"done": True}))) if ends else reply(ack)


async def _why_unknown(ctx: Ctx, key: str, episode: str) -> str:
    """What to do about a reward of an episode that the store does not know with this key."""
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
            "no call of it is in the store yet, which is reading newer ones just now: the reward counts once the call "
            "is there"
        )
    return (
        "no call of it has come with this key yet; if another key makes its calls, use that key or one of scope grade"
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
