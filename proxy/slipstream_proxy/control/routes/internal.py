"""Routes for our own processes, on the Unix socket only: what is live, pins, metrics."""

from __future__ import annotations

import contextlib
import os

from aiohttp import web
from pydantic import BaseModel, ValidationError

from slipstream_proxy.assignment import assign
from slipstream_proxy.control.deps import Deps
from slipstream_proxy.control.http import explain
from slipstream_proxy.control.metrics_scrape import MetricsScrape
from slipstream_proxy.control.problem import Problem
from slipstream_proxy.store.values import PinAsk


class PinIn(BaseModel):
    key: str
    episode: str
    model: str
    task: str | None = None
    split: str = "train"


def add(app: web.Application, deps: Deps) -> None:
    scrape = MetricsScrape(deps)

    async def live(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/x-ndjson"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionResetError):
            async for line in deps.live.lines():
                await response.write(line)
        return response

    async def pin(request: web.Request) -> web.StreamResponse:
        try:
            asked = PinIn.model_validate_json(await request.read())
        except ValidationError as e:
            raise explain(e, "body", PinIn) from e
        return web.json_response(await pin_of(deps, asked))

    async def metrics(_: web.Request) -> web.StreamResponse:
        return web.Response(
            body=await scrape.text(), headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def healthz(_: web.Request) -> web.StreamResponse:
        return web.json_response({"ok": True, "store": deps.store_answers, "pid": os.getpid()})

    app.router.add_route("GET", "/internal/live", live)
    app.router.add_route("POST", "/internal/pin", pin)
    app.router.add_route("GET", "/internal/metrics", metrics)
    app.router.add_route("GET", "/internal/healthz", healthz)


async def pin_of(deps: Deps, asked: PinIn) -> dict[str, str]:
    """The episode's adapter and arm: the stored one while it is still served, else by share."""
    registry = deps.registry
    if asked.model not in registry.models:
        raise Problem(404, f"no trained model {asked.model}", field="body.model")
    live = registry.live(asked.model)
    got = assign(live, deps.trials.arms(asked.model), asked.key, asked.task, asked.episode, asked.split)
    unkept = {"adapter": got.adapter, "arm": got.arm, "chances": got.chances}
    if not deps.store_answers:
        return unkept
    ask = PinAsk(asked.key, asked.episode, asked.model, got.adapter, got.arm, deps.now(), got.chances)
    try:
        kept = await deps.wait_for(deps.pins.pin(ask))
    except Problem as p:
        if p.status != 503:
            raise
        return unkept  # the agent does not wait for the database
    await deps.fleet.bring(kept.adapter)
    if kept.adapter != registry.base and not registry.servable(kept.adapter):
        # its version was given up or is refused: the episode goes on with the live one
        return {"adapter": live, "arm": "live", "chances": ""}
    registry.pin(kept.adapter)
    return {"adapter": kept.adapter, "arm": kept.arm, "chances": kept.chances}
