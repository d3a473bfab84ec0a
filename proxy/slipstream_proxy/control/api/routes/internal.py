"""Routes for our own processes, on the Unix socket only: what is live, pins, metrics."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from typing import Literal, TypedDict

from aiohttp import web
from pydantic import BaseModel, TypeAdapter, ValidationError

from slipstream_proxy.assignment import assign
from slipstream_proxy.control.adapters.registry import Arm
from slipstream_proxy.control.api.http import explain
from slipstream_proxy.control.deps import Deps
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.status.status import MetricsScrape
from slipstream_proxy.control.storage.access import ignore
from slipstream_proxy.store.values import Pin, PinAsk

DAY_S = 86_400
PIN_COMMIT_TIMEOUT_S = 1.0
"""Seconds that new runs wait for the store to keep their pins. It keeps them later, too."""


class PinIn(BaseModel):
    key: str
    episode: str
    model: str
    task: str | None = None
    split: str = "train"
    tags: dict[str, str] = {}


PINS_TYPE = TypeAdapter(list[PinIn])


class InUseIn(BaseModel):
    worker: str
    adapters: frozenset[str]


class AllowanceIn(BaseModel):
    what: Literal["calls_per_day", "input_tokens_per_day", "output_tokens_per_day"]


class PinOut(TypedDict):
    adapter: str
    arm: str
    chances: str


def add(app: web.Application, deps: Deps) -> None:
    scrape = MetricsScrape(deps)
    subscribed: dict[str, web.Request] = {}

    async def live(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/x-ndjson"})
        await response.prepare(request)
        worker = request.query.get("worker", "")
        subscribed[worker] = request
        try:
            with deps.endless.one(), contextlib.suppress(ConnectionResetError):
                async for line in deps.live.lines():
                    await response.write(line)
        finally:
            if subscribed.get(worker) is request:  # no newer subscription has taken its place
                del subscribed[worker]
                deps.rollout.registry.in_use.pop(worker, None)
        return response

    async def in_use(request: web.Request) -> web.StreamResponse:
        try:
            told = InUseIn.model_validate_json(await request.read())
        except ValidationError as e:
            raise explain(e, "body", InUseIn) from e
        if told.worker in subscribed:
            deps.rollout.registry.in_use[told.worker] = told.adapters
            deps.rollout.lifecycle.journal.wake.set()
        return web.json_response({})

    async def pins(request: web.Request) -> web.StreamResponse:
        try:
            asked = PINS_TYPE.validate_json(await request.read())
        except ValidationError as e:
            raise explain(e, "body", PinIn) from e
        return web.json_response(await pins_of(deps, asked))

    async def allowance(request: web.Request) -> web.StreamResponse:
        try:
            told = AllowanceIn.model_validate_json(await request.read())
        except ValidationError as e:
            raise explain(e, "body", AllowanceIn) from e
        limit = getattr(deps.config.quota, told.what)
        day = int(deps.now() // DAY_S)
        granted = 0 if limit is None else await deps.ask(deps.store.quotas.take, told.what, day, limit)
        return web.json_response({"granted": granted})

    async def metrics(_: web.Request) -> web.StreamResponse:
        return web.Response(
            body=await scrape.text(), headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def healthz(_: web.Request) -> web.StreamResponse:
        return web.json_response({"ok": True, "store": deps.store_answers, "pid": os.getpid()})

    app.router.add_route("GET", "/internal/live", live)
    app.router.add_route("POST", "/internal/pins", pins)
    app.router.add_route("POST", "/internal/in-use", in_use)
    app.router.add_route("POST", "/internal/allowance", allowance)
    app.router.add_route("GET", "/internal/metrics", metrics)
    app.router.add_route("GET", "/internal/healthz", healthz)


async def pins_of(deps: Deps, asked: Sequence[PinIn]) -> list[PinOut | None]:
    """Each episode's adapter and arm: the stored one while it is served, else by share. None: no trained model. Asked
    for none, it is told that a call of an agent comes.
    """
    deps.rollout.rehearsals.agents_came()
    rules = {
        model: _rule(deps, model) for model in {ask.model for ask in asked}.intersection(deps.rollout.registry.models)
    }
    decided = [_decide(deps, ask, rules[ask.model]) if ask.model in rules else None for ask in asked]
    wanted = [ask for ask in decided if ask is not None]
    kept = await _keep(deps, wanted) if wanted and deps.store_answers else None
    if kept is None:
        return [ask and _answer(ask.adapter, ask.arm, ask.chances) for ask in decided]
    for adapter in {pin.adapter for pin in kept}:
        await deps.rollout.fleet.bring(adapter)
    pins = iter(kept)
    return [ask and _served(deps, ask, next(pins)) for ask in decided]


_Rule = tuple[str, list[Arm], dict[str, str], list[str]]
"""The live adapter, what new episodes get beside it, what groups keep, and who goes first."""


def _rule(deps: Deps, model: str) -> _Rule:
    registry, trials = deps.rollout.registry, deps.rollout.trials
    return registry.live(model), trials.arms(model), registry.kept_from(model), trials.first(model)


def _decide(deps: Deps, asked: PinIn, rule: _Rule) -> PinAsk:
    live, arms, kept, first = rule
    got = assign(live, arms, asked.key, asked.task, asked.episode, asked.split, asked.tags, kept, first)
    pin = got.adapter, got.arm, deps.now(), got.chances
    return PinAsk(asked.key, asked.episode, asked.model, *pin, asked.task, asked.split != "off")


async def _keep(deps: Deps, asks: Sequence[PinAsk]) -> list[Pin] | None:
    """The pins that count. None: the store is away or slow, and the agents do not wait for it."""
    keeping = asyncio.ensure_future(deps.wait_for(deps.pins.ask(asks)))
    if not (await asyncio.wait({keeping}, timeout=PIN_COMMIT_TIMEOUT_S))[0]:
        keeping.add_done_callback(ignore)
        return None
    try:
        return keeping.result()
    except Problem as p:
        if p.status != 503:
            raise
        return None


def _served(deps: Deps, asked: PinAsk, pin: Pin) -> PinOut:
    registry = deps.rollout.registry
    if pin.adapter != registry.base and not registry.servable(pin.adapter):
        # its version was given up or is refused: the episode goes on with the live one
        return _answer(registry.live(asked.model), "live", "")
    if asked.kept:
        registry.pin(pin.adapter)
    return _answer(pin.adapter, pin.arm, pin.chances)


def _answer(adapter: str, arm: str, chances: str) -> PinOut:
    return {"adapter": adapter, "arm": arm, "chances": chances}
