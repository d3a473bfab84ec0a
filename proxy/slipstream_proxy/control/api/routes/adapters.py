"""Adapters: register, list, promote, roll back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from hashlib import blake2b
from typing import Literal

from aiohttp import web
from pydantic import Field

from slipstream import contract as c
from slipstream.contract import KeyScope
from slipstream.contract.adapters import RUN_GROUP_PATTERN
from slipstream_proxy.control.adapters.preview import effect_of
from slipstream_proxy.control.api.http import Ctx, Query, Routes, reply
from slipstream_proxy.control.api.routes.episodes import KeyId, made_of_forgotten, unpublished
from slipstream_proxy.control.api.routes.uploads import AdapterPost, upload_version, uploaded_trial
from slipstream_proxy.control.deps import Deps
from slipstream_proxy.control.gate.report import joined, last_reading
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.log.records import mark_of
from slipstream_proxy.store.learning.groups import DISTILLED_GROUP
from slipstream_proxy.store.read.wording import plural

ADAPTER_PATH = "/adapters/{adapter:[A-Za-z0-9._~@%-]{1,160}}"
POLL_INTERVAL_S = 0.05


class WaitQuery(Query):
    wait: float = Field(
        0.0, ge=0, le=600, allow_inf_nan=False, description="Seconds to wait until it is no longer loading."
    )


API_ROUTES = Routes()


@API_ROUTES.add("GET", "/adapters", result=c.AdapterList, at_once=True)
async def list_adapters(ctx: Ctx) -> web.StreamResponse:
    """Versions and where they stand."""
    registry = ctx.deps.rollout.registry
    live = {m: registry.live(m) for m in registry.models}
    room = {m: ctx.deps.rollout.swapper.room(m) for m in registry.models}
    shown = registry.public(ctx.deps.engines.loaded())
    shown = [_told(ctx.deps, adapter) for adapter in shown]
    return reply(c.AdapterList(adapters=shown, live=live, room=room, forgotten=await _forgotten(ctx.deps)))


async def _forgotten(deps: Deps) -> list[str]:
    """Batches that no version may be made from. While the store is away, a version that comes is looked at instead."""
    if deps.config.store.forget != "retrain":
        return []
    with contextlib.suppress(Problem):
        batches = [s.batch for s in await unpublished(deps)]
        return sorted(await deps.ask(deps.store.batches.with_forgotten, batches))
    return []


CREATED_REPLIES = {201: c.Adapter}


@API_ROUTES.add(
    "POST",
    "/adapters",
    (KeyScope.TRAINER,),
    WaitQuery,
    AdapterPost,
    responses=CREATED_REPLIES,
    errors=(404, 409),
    multipart=True,
)
async def post_adapter(ctx: Ctx) -> web.StreamResponse:
    """Register a folder under adapters.dir, or upload one as multipart/form-data (parts: adapter = this body as
    JSON, adapter_config.json, adapter_model.safetensors).
    """
    deps = ctx.deps
    body: c.AdapterIn = ctx.body if ctx.body is not None else await upload_version(ctx)
    batch = f"of-{blake2b(body.path.encode(), digest_size=12).hexdigest()}"
    if body.episodes:
        body = body.model_copy(update={"batches": [*body.batches, batch]})
    async with deps.leasing if body.learner is not None else contextlib.nullcontext():  # nobody takes over meanwhile
        adapter = await deps.rollout.registrar.register(body)
    if body.episodes:
        await _note_trained_on(deps, adapter, batch, body)
    if adapter.batches:
        await made_of_forgotten(ctx, adapter)
    until = time.monotonic() + ctx.query.wait
    while deps.rollout.registry.items[adapter.name].state == c.AdapterState.LOADING and time.monotonic() < until:
        await asyncio.sleep(POLL_INTERVAL_S)
    return reply(_shown(ctx, deps.rollout.registry.items[adapter.name]), 201)


async def _note_trained_on(deps: Deps, adapter: c.Adapter, batch: str, body: c.AdapterIn) -> None:
    """What it was trained on without a lease becomes a batch, as far as the store knows the episodes."""
    names = [(e.key, e.episode) for e in body.episodes]
    standing = await deps.ask(deps.store.standings.of, names, deps.now())
    marks = {"known": lambda episode: episode, "gone": mark_of}  # of what is forgotten, the spool gets no id
    members = {
        (e.key, e.episode): [e.key, marks[there](e.episode), e.group or DISTILLED_GROUP, e.reward]
        for e in body.episodes
        if (there := standing[e.key, e.episode]) in marks
    }
    ack = c.BatchAck(lease=batch, outcome="trained", adapter=adapter.name, step=body.step).model_dump(mode="json")
    told = {"model": adapter.model, "groups": [], "episodes": [*members.values()], "apart": True}
    await deps.mutate("ack", {"batch": batch, "ack": ack, "members": told})


@API_ROUTES.add(
    "POST",
    "/adapters/try",
    (KeyScope.TRAINER,),
    body=c.AdapterTrialIn,
    result=c.AdapterTrial,
    errors=(404, 409),
    multipart=True,
)
async def try_adapter(ctx: Ctx) -> web.StreamResponse:
    """Ask the engines about an adapter that is to be no version: it is loaded, must change a log-probability, and is
    unloaded.
    """
    registrar = ctx.deps.rollout.registrar
    if ctx.body is not None:
        return reply(await registrar.try_out(ctx.body.path, ctx.body.sha256))
    async with uploaded_trial(ctx) as folder:
        return reply(await registrar.try_out(folder))


@API_ROUTES.add("GET", ADAPTER_PATH + "/evidence", result=c.GateEvidence, errors=(404, 409))
async def get_evidence(ctx: Ctx) -> web.StreamResponse:
    """How the gate's evidence of a version moved: the difference with its interval, and how close it was to being
    taken back.
    """
    deps = ctx.deps
    adapter = deps.rollout.registry.find(ctx.path("adapter"))
    which = adapter.model, adapter.version
    unkept = deps.rollout.trials.unkept(*which)  # first: they may be written meanwhile
    readings = joined(await deps.ask(deps.rollout.trials.readings, deps.store, *which), unkept)
    if adapter.gate is not None and (last := last_reading(adapter.gate, readings, adapter.decided or deps.now())):
        readings = [*readings, last]
    threshold = 1.0 / deps.config.gate.alpha
    return reply(c.GateEvidence(adapter=adapter.name, threshold=threshold, readings=readings))


def _shown(ctx: Ctx, adapter: c.Adapter) -> c.Adapter:
    return _told(ctx.deps, ctx.deps.rollout.registry.shown(adapter, ctx.deps.engines.loaded()))


def _told(deps: Deps, adapter: c.Adapter) -> c.Adapter:
    """With what it waits for, where it is loading."""
    if adapter.state != c.AdapterState.LOADING or adapter.reason:
        return adapter
    return adapter.model_copy(update={"reason": deps.rollout.swapper.why_loading(adapter)})


by_hand = partial(
    API_ROUTES.add,
    "POST",
    scopes=(KeyScope.ADMIN,),
    body=c.GateIn,
    body_required=False,
    result=c.Adapter,
    errors=(404, 409),
)


@by_hand(ADAPTER_PATH + "/promote", audit="promote")
async def promote(ctx: Ctx) -> web.StreamResponse:
    """Make the adapter live. What is on trial ends; a newer version on trial is taken back. `group`: give it back to
    that group's new runs.
    """
    return await _by_hand(ctx, "promote")


@by_hand(ADAPTER_PATH + "/demote", audit="demote")
@by_hand(ADAPTER_PATH + "/rollback", audit="demote")
async def demote(ctx: Ctx) -> web.StreamResponse:
    """Take the adapter back. `group`: for that group's new runs alone. (`rollback` is the older name.)"""
    return await _by_hand(ctx, "demote")


@by_hand(ADAPTER_PATH + "/freeze", audit="freeze")
async def freeze(ctx: Ctx) -> web.StreamResponse:
    """The adapter on trial or live stays what it is: it is not accepted, and newer versions wait."""
    return await _by_hand(ctx, "freeze")


@by_hand(ADAPTER_PATH + "/unfreeze", audit="unfreeze")
async def unfreeze(ctx: Ctx) -> web.StreamResponse:
    """The gate decides on the adapter again, and no guard freezes it."""
    return await _by_hand(ctx, "unfreeze")


async def _by_hand(ctx: Ctx, action: c.Action) -> web.StreamResponse:
    adapter = await ctx.deps.rollout.lifecycle.by_hand(ctx.path("adapter"), action, ctx.body.reason, ctx.body.group)
    ctx.deps.rollout.publisher.publish()
    ctx.deps.rollout.gatekeeper.notify()
    return reply(_shown(ctx, adapter))


@API_ROUTES.add(
    "POST", ADAPTER_PATH + "/keep", (KeyScope.ADMIN,), body=c.AdapterKeepIn, result=c.Adapter, errors=(404, 409)
)
async def keep(ctx: Ctx) -> web.StreamResponse:
    """For a replay: load the version, and keep it in the engines for so many seconds, though no run needs it."""
    adapter = ctx.deps.rollout.registry.find(ctx.path("adapter"))
    await ctx.deps.rollout.swapper.keep(adapter, ctx.body.seconds)
    return reply(_shown(ctx, adapter))


async def _not_learned(deps: Deps, adapter: c.Adapter, action: c.Action) -> list[str]:
    """What training loses where a version is taken back."""
    taken, tried = None, deps.rollout.registry.of(adapter.model, c.AdapterState.CANDIDATE)
    if action == "demote" and adapter.state in (c.AdapterState.CANDIDATE, c.AdapterState.LIVE):
        taken = adapter.name
    elif action == "promote" and tried is not None and tried.name != adapter.name:
        newer = adapter.state == c.AdapterState.LIVE or tried.version > adapter.version
        taken = tried.name if newer else None
    if taken is None:
        return []
    groups: int = await deps.ask(deps.store.batches.untrained_of, taken)
    says = [
        f"If the trainer works on a step from {taken}, that step is lost: it goes on from the version that is live."
    ]
    if groups:
        waiting = plural(groups, "group not trained on yet has", "groups not trained on yet have")
        says.insert(0, f"{waiting} runs of {taken}: these runs teach nothing.")
    return says


class EffectQuery(Query):
    action: c.Action
    group: str | None = Field(None, pattern=RUN_GROUP_PATTERN, description="As in the action's body.")


@API_ROUTES.add("GET", ADAPTER_PATH + "/effect", query=EffectQuery, result=c.AdapterEffect, errors=(404, 409))
async def effect(ctx: Ctx) -> web.StreamResponse:
    """What `promote`, `demote`, `freeze` or `unfreeze` would do now. Nothing is changed."""
    adapter = ctx.deps.rollout.registry.find(ctx.path("adapter"))
    group = ctx.query.group
    says = effect_of(ctx.deps.rollout.registry, adapter, ctx.query.action, group)
    if group is None:
        says += await _not_learned(ctx.deps, adapter, ctx.query.action)
    elif ctx.deps.rollout.trials.is_strange(adapter.model, group):
        says.append(f"The gate has counted no run of {group} so far: check the name.")
    return reply(c.AdapterEffect(adapter=adapter.name, action=ctx.query.action, says=says))


class BehaviourQuery(Query):
    key: KeyId | None = Field(None, description="Another key's (admin, viewer).")
    split: Literal["train", "eval"] | None = None
    task: c.Asked | None = None


@API_ROUTES.add("GET", ADAPTER_PATH + "/behaviour", query=BehaviourQuery, result=c.Behaviour, errors=(404,))
async def behaviour(ctx: Ctx) -> web.StreamResponse:
    """What the version changed: length, turns, tools, refusals and cut-offs of its runs beside the base model's."""
    adapter, q = ctx.deps.rollout.registry.find(ctx.path("adapter")), ctx.query
    read = ctx.deps.store.reports.behaviour.read
    key = ctx.visible(q.key)
    return reply(await ctx.deps.ask(read, adapter.name, adapter.model, key=key, split=q.split, task=q.task))
