"""Which trainer learns for a model, and the names of the versions that it makes."""

from __future__ import annotations

import logging

from aiohttp import web

from slipstream import contract as c
from slipstream.contract import KeyScope
from slipstream_proxy.control.api.http import Ctx, Routes, reply
from slipstream_proxy.control.api.routes.episodes import unpublished
from slipstream_proxy.control.deps import Deps

log = logging.getLogger(__name__)
API_ROUTES = Routes()


@API_ROUTES.add(
    "POST", "/learner", (KeyScope.TRAINER,), body=c.LearnerIn, result=c.LearnerAnswer, errors=(404,), at_once=True
)
async def be_learner(ctx: Ctx) -> web.StreamResponse:
    """Be the one trainer of a model, stay it, or wait for it."""
    deps, wanted = ctx.deps, ctx.body
    model = deps.rollout.registrar.expect_model(wanted.model or deps.config.model_name, "body.model")
    async with deps.leasing:  # no ack is accepted, and no version comes, while another takes over
        answer, settled = await deps.ask(deps.store.learners.take, model, wanted, deps.now())
        if answer.held and not settled:
            await _hand_over(deps, answer)
            await deps.ask(deps.store.learners.settle, model, wanted.token)
    return reply(answer)


async def _hand_over(deps: Deps, answer: c.LearnerAnswer) -> None:
    """What the trainer before this one had: batches that a version was made from are acknowledged in its place, the
    others come back. So do those of steps that it never published, as nobody else has their weights.
    """
    model, ours = answer.model, deps.rollout.registry.items.values()
    await deps.mutations.settled()
    await deps.rollout.fleet.follow()
    made = {batch: a for a in ours if a.model == model for batch in a.batches}
    leased: list[tuple[str, str]] = await deps.ask(deps.store.batches.leased_of, model)
    for batch, lease in leased:
        if (adapter := made.get(batch)) is not None:
            ack = c.BatchAck(lease=lease, outcome="trained", adapter=adapter.name, step=adapter.step)
            if members := await deps.ask(deps.store.batches.takes, batch, ack):
                told = {"batch": batch, "ack": ack.model_dump(mode="json"), "members": members}
                await deps.mutate("ack", told)
    lost = [s.batch for s in await unpublished(deps) if s.model == model and s.step is not None]
    groups: int = await deps.ask(deps.store.batches.take_back, model, lost, list(made), deps.now())
    log.warning("%s at %s learns for %s from now on: %d groups come back", answer.worker, answer.place, model, groups)


@API_ROUTES.add(
    "POST", "/adapters/claim", (KeyScope.TRAINER,), body=c.NameClaimIn, result=c.NameClaim, errors=(409,), at_once=True
)
async def claim_name(ctx: Ctx) -> web.StreamResponse:
    """Get the name of a version that is about to be written. Nobody else gets it."""
    return reply(c.NameClaim(name=await ctx.deps.rollout.registrar.claim(ctx.body)))
