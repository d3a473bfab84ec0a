"""The sidecars' work: leases that expire, scores, batches as Arrow, acks, and the trainer's turn on the GPU that it
shares with the engine.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa
from aiohttp import web

from slipstream import contract as c
from slipstream.contract import KeyScope
from slipstream_proxy.control.api.http import Ctx, Routes, check_source, reply
from slipstream_proxy.control.api.routes.episodes import (
    OF_FORGOTTEN,
    FilterQuery,
    Stored,
    ask_again,
    train_anew,
    train_steps_anew,
    wanted,
)
from slipstream_proxy.control.deps import Deps
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import in_thread
from slipstream_proxy.control.storage.spool_eraser import advantages_without
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.log.records import mark_of
from slipstream_proxy.store.tables.rows import clean
from slipstream_proxy.store.values import ArrowBatch

ARROW_TYPE = "application/vnd.apache.arrow.stream"
ID = "[A-Za-z0-9._~-]{1,160}"
GROUP_PATH = "/groups/{group:" + ID + "}"
LOST_LEASE_TEXT = "the lease has expired or belongs to another worker"


class Parked(c.Model):
    groups: list[c.Group]


class Retried(c.Model):
    retried: int


class ReleaseIn(c.Model):
    worker: c.Tag


class Kept(c.Model):
    kept: int
    """Choices whose tokens can be looked at now."""


class Released(c.Model):
    released: int


API_ROUTES = Routes()


@API_ROUTES.add(
    "POST", "/groups/lease", (KeyScope.JUDGE,), body=c.GroupLeaseIn, responses={200: c.GroupLease, 204: None}
)
async def lease_groups(ctx: Ctx) -> web.StreamResponse:
    """Groups to score; 204: none."""
    ctx.deps.activity.seen("judge")
    lease = None if ctx.body.groups else ctx.deps.rollout.rehearsals.current.judging.lease(ctx.body, ctx.deps.now())
    if lease is None:
        lease = await ctx.deps.ask(ctx.deps.store.judging.lease, ctx.body, ctx.deps.now())
    return web.Response(status=204) if lease is None else reply(lease)


@API_ROUTES.add("POST", GROUP_PATH + "/scores", (KeyScope.JUDGE,), body=c.ScoresIn, result=Stored, errors=(409,))
async def post_scores(ctx: Ctx) -> web.StreamResponse:
    """Scores of a leased group."""
    deps, group = ctx.deps, ctx.path("group")
    body: c.ScoresIn = ctx.body
    deps.activity.seen("judge")
    for n, score in enumerate(body.scores):
        check_source(ctx.caller, score.source, f"body.scores.{n}.source")
    _check_scores(body)
    if deps.rollout.rehearsals.current.judging.holds(group, body.lease):
        if strange := deps.rollout.rehearsals.current.judging.misfit(group, body):
            raise _not_its(group, strange)
        deps.rollout.rehearsals.current.judging.scored(group, body)
        return reply(Stored())
    async with deps.scoring:
        await deps.mutations.settled()
        await _post(deps, group, body)
    return reply(Stored())


async def _post(deps: Deps, group: str, body: c.ScoresIn) -> None:
    held = await deps.ask(deps.store.judging.holds, group, body.lease)
    if held is None:
        raise Problem(409, LOST_LEASE_TEXT, field="body.lease", fix="lease the group again")
    if held.last == body.lease:
        if not await deps.ask(deps.store.judging.repeats, group, body):
            text = "something else was posted under this lease, and that stays"
            raise Problem(409, text, field="body.lease", fix="lease the group again")
        return
    if strange := await deps.ask(deps.store.judging.misfit, group, body):
        raise _not_its(group, strange)
    # whose group it is goes with it: a store that is filled again from the spool may know no group of before
    await deps.mutate("scores", {"group": group, "key": held.key, "scores": body.model_dump(mode="json")})


def _not_its(group: str, episode: str) -> Problem:
    text = f"{episode} is no episode of {group} that is to be scored"
    return Problem(422, text, field="body.scores", fix="score the episodes of the lease that are not `context`")


def _check_scores(body: c.ScoresIn) -> None:
    """Raises ``Problem`` 422 for a number that no judge gives, and for two scores of one name."""
    seen: set[tuple[str, str]] = set()
    for n, score in enumerate(body.scores):
        field = f"body.scores.{n}"
        if (score.episode, score.name) in seen:
            raise Problem(422, f"{score.episode} has two scores {score.name!r}", field=field, fix="send one of each")
        seen.add((score.episode, score.name))
        wrong = next((v for v in (score.value, *score.values) if not 0.0 <= v <= 1.0), None)
        if wrong is not None and score.meta.get("mode") != "function":  # such a one may give any number
            text = f"{field}.value: {wrong:g} is no score: a judge's lie between 0 and 1"
            fix = 'send 0 to 1, or meta.mode = "function" for numbers of your own'
            raise Problem(422, text, field=f"{field}.value", fix=fix)


@API_ROUTES.add("POST", "/judge/reruns", (KeyScope.JUDGE,), body=c.RerunIn, result=Stored, audit="judge rerun")
async def begin_rerun(ctx: Ctx) -> web.StreamResponse:
    """Write into the audit log that stored groups are about to be scored again."""
    ctx.target = ctx.body.id
    return reply(Stored())


@API_ROUTES.add("POST", "/judge/report", (KeyScope.JUDGE,), body=c.JudgeReport, result=c.JudgeBacklog)
async def report_judge(ctx: Ctx) -> web.StreamResponse:
    """Report how a copy of the judge is doing. The reply is the judge's queue."""
    deps = ctx.deps
    deps.activity.seen("judge")
    deps.judges.report(ctx.body, deps.now())
    return reply(await deps.ask(deps.judges.backlog, deps.store.judging, deps.now()))


@API_ROUTES.add("GET", "/groups/parked", (KeyScope.JUDGE, KeyScope.VIEWER), result=Parked)
async def parked(ctx: Ctx) -> web.StreamResponse:
    """Groups that the judge has given up."""
    return reply(Parked(groups=await ctx.deps.ask(ctx.deps.store.judging.parked)))


@API_ROUTES.add("POST", GROUP_PATH + "/retry", (KeyScope.JUDGE,), result=Retried, errors=(404,))
async def retry(ctx: Ctx) -> web.StreamResponse:
    """Hand a parked group out again."""
    count = await ctx.deps.ask(ctx.deps.store.judging.unpark, ctx.path("group"))
    if not count:
        text = f"no parked group {ctx.path('group')}"
        raise Problem(404, text, field="path.group", fix="list them with GET groups/parked")
    return reply(Retried(retried=count))


@API_ROUTES.add(
    "GET", "/judge/cache/{key:" + ID + "}", (KeyScope.JUDGE, KeyScope.VIEWER), result=c.CacheEntry, errors=(404,)
)
async def cache_get(ctx: Ctx) -> web.StreamResponse:
    """Read from the judge's cache."""
    value = await ctx.deps.ask(ctx.deps.store.cache.get, ctx.path("key"))
    if value is None:
        raise Problem(404, "not in the cache", field="path.key")
    return reply(c.CacheEntry(key=ctx.path("key"), value=value))


@API_ROUTES.add(
    "PUT", "/judge/cache/{key:" + ID + "}", (KeyScope.JUDGE,), body=c.CacheEntry, result=c.CacheEntry, errors=(409,)
)
async def cache_put(ctx: Ctx) -> web.StreamResponse:
    """Write to the judge's cache."""
    body: c.CacheEntry = ctx.body
    if body.key != ctx.path("key"):
        raise Problem(409, "body.key differs from the path's", field="body.key", fix="send the same key in both")
    deps = ctx.deps
    if body.group is not None and not deps.rollout.rehearsals.current.judging.holds(body.group, str(body.lease)):
        held = await deps.ask(deps.store.judging.holds, body.group, str(body.lease))
        if held is None or held.lease != body.lease:
            raise Problem(
                409, LOST_LEASE_TEXT, field="body.lease", fix="keep an answer before its scores, while the lease lasts"
            )
    entry = c.CacheEntry(key=body.key, value=body.value, at=deps.now())
    await deps.mutate("cache", entry.model_dump(mode="json", exclude={"group", "lease"}))
    return reply(entry)


def arrow_bytes(table: pa.Table) -> bytes:
    """An Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@API_ROUTES.add(
    "POST",
    "/batches/lease",
    (KeyScope.TRAINER,),
    body=c.BatchLeaseIn,
    responses={200: ARROW_TYPE, 204: None},
    errors=(409,),
    at_once=True,
)
async def lease_batch(ctx: Ctx) -> web.StreamResponse:
    """A batch to train on, as an Arrow IPC stream; 204: not enough groups, or it is paused or out of its hours."""
    deps = ctx.deps
    body: c.BatchLeaseIn = ctx.body
    deps.activity.seen("trainer")
    deps.activity.pace = min(body.min_groups, body.max_groups), body.max_wait
    if (await deps.switch.state(deps)).paused or not await deps.schedule.admits(deps):
        return web.Response(status=204)
    # the most groups of a batch are enough for one
    least = min(body.min_groups, body.max_groups)
    asked = body.model_copy(update={"model": clean(body.model) or deps.config.model_name, "min_groups": least})
    versions, live = deps.rollout.registry.versions(str(asked.model))
    async with deps.leasing:
        await deps.rollout.registrar.expect_learner(str(asked.model), body.learner, deps.now())
        lease = partial(deps.ask, deps.store.batches.lease, asked, versions, live)
        leased: ArrowBatch | None = await lease(deps.now())
        if leased is None and await deps.mutations.settled():
            leased = await lease(deps.now())
    if leased is None:
        return web.Response(status=204)
    told = {"batch": leased.id, "lease": leased.lease, "until": repr(leased.until)}
    headers = {f"x-slipstream-{name}": text for name, text in told.items()}
    return web.Response(body=await in_thread(arrow_bytes, leased.table), content_type=ARROW_TYPE, headers=headers)


@API_ROUTES.add(
    "POST",
    "/training/again",
    (KeyScope.TRAINER, KeyScope.ADMIN),
    FilterQuery,
    c.TrainAgainIn,
    tags=True,
    result=c.TrainAgain,
)
async def train_again(ctx: Ctx) -> web.StreamResponse:
    """Train on stored groups with such a run again, until each was trained on ``epochs`` times with its rewards."""
    deps, q = ctx.deps, ctx.query
    body: c.TrainAgainIn = ctx.body
    names = await deps.ask(deps.store.episodes.names, wanted(ctx, q))
    groups, plan = await deps.ask(deps.store.batches.plan_again, names, body.epochs)
    if groups and not body.dry_run:
        await ask_again(deps, groups, body.epochs)
        said = q.model_dump(exclude_none=True) | {f"tag.{name}": value for name, value in ctx.tags.items()}
        detail = {"epochs": body.epochs, "groups": plan.groups, "passes": plan.passes, "filters": said}
        await deps.audit.note(ctx.caller.key, "train again", "training", detail)
    return reply(plan)


@API_ROUTES.add("POST", "/training/anew", (KeyScope.ADMIN,), body=c.TrainAnewIn, result=c.TrainAnew, errors=(404, 409))
async def make_anew(ctx: Ctx) -> web.StreamResponse:
    """Take versions back, and train anew on what they were trained on: without some episodes."""
    deps, body = ctx.deps, ctx.body
    names = await deps.ask(deps.store.episodes.known, None, body.without) if body.without else []
    if body.adapter is not None:
        first = [deps.rollout.registry.find(body.adapter).name]
    else:
        first = [a for a in await deps.ask(deps.store.batches.trained_on, names) if a in deps.rollout.registry.items]
    if not first:
        fix = "give adapter: the first version that is to be made anew"
        raise Problem(404, "no version was trained on them", field="body.without", fix=fix)
    models = {deps.rollout.registry.items[name].model for name in first}
    if len(models) > 1:
        raise Problem(409, f"they trained several models: {', '.join(sorted(models))}", field="body.without")
    reason = "made anew by hand"
    plan = await train_anew(deps, first, reason, names, dry_run=body.dry_run)
    if not body.dry_run:
        detail = {"adapters": plan.adapters, "start": plan.start, "groups": plan.groups, "without": len(names)}
        await deps.audit.note(ctx.caller.key, "train anew", first[0], detail)
    return reply(plan)


@API_ROUTES.add(
    "DELETE",
    "/training/again",
    (KeyScope.TRAINER, KeyScope.ADMIN),
    result=c.TrainAgainStopped,
    audit="train again, stop",
)
async def stop_training_again(ctx: Ctx) -> web.StreamResponse:
    """Train on no stored group again. What is leased goes on."""
    left = (await ctx.deps.ask(ctx.deps.store.batches.again)).groups
    if left:
        await ctx.deps.mutate("again", {"groups": [], "epochs": 0})
    return reply(c.TrainAgainStopped(groups=left))


@API_ROUTES.add(
    "POST",
    "/batches/{batch:" + ID + "}/ack",
    (KeyScope.TRAINER,),
    body=c.BatchAck,
    result=Stored,
    errors=(409,),
    at_once=True,
)
async def ack_batch(ctx: Ctx) -> web.StreamResponse:
    """Acknowledge a batch: it was trained on, or it goes back."""
    deps, batch = ctx.deps, ctx.path("batch")
    body: c.BatchAck = ctx.body
    async with deps.leasing:
        members: JsonObject | None = await deps.ask(deps.store.batches.takes, batch, body)
        if members and body.learner is not None:
            await deps.rollout.registrar.expect_learner(str(members["model"]), body.learner, deps.now())
        if members is None:
            raise Problem(409, LOST_LEASE_TEXT, field="body.lease", fix="its groups come back with another batch")
        if members:
            gone = {mark for _, mark, *_ in members["episodes"] if mark == mark_of(mark)}
            kept = advantages_without(body.advantages, gone)
            told = body.model_copy(update={"advantages": kept}).model_dump(mode="json")
            await deps.mutate("ack", {"batch": batch, "ack": told, "members": members})
    if body.outcome == "trained":
        deps.last_step = deps.now()
        retrain = members and deps.config.store.forget == "retrain"
        # before the trainer told of the step, an episode was forgotten, or the step's version was taken back for one
        if retrain and (
            any(a.reason == OF_FORGOTTEN and batch in a.batches for a in deps.rollout.registry.items.values())
            or await deps.ask(deps.store.batches.with_forgotten, [batch])
        ):
            await train_steps_anew(deps, ctx.caller.key, str(members["model"]), [batch])
    return reply(Stored())


@API_ROUTES.add(
    "POST",
    "/batches/{batch:" + ID + "}/gaps",
    (KeyScope.TRAINER,),
    body=c.BatchGaps,
    result=Kept,
    errors=(409,),
    at_once=True,
)
async def take_gaps(ctx: Ctx) -> web.StreamResponse:
    """Report the gap between trainer and engine at each token. Only the newest are kept."""
    deps = ctx.deps
    kept = await deps.ask(deps.store.reports.gaps.put, ctx.path("batch"), ctx.body, deps.now())
    if kept is None:
        raise Problem(
            409, LOST_LEASE_TEXT, field="body.lease", fix="send them with the lease that the batch was trained under"
        )
    return reply(Kept(kept=kept))


@API_ROUTES.add("POST", "/leases/release", (KeyScope.JUDGE, KeyScope.TRAINER), body=ReleaseIn, result=Released)
async def release(ctx: Ctx) -> web.StreamResponse:
    """Release everything that a worker holds."""
    body: ReleaseIn = ctx.body
    return reply(Released(released=await ctx.deps.ask(ctx.deps.store.release_leases, body.worker)))


@API_ROUTES.add("POST", "/engine/hold", (KeyScope.TRAINER,), body=c.HoldIn, result=c.Hold, errors=(409,))
async def hold_engine(ctx: Ctx) -> web.StreamResponse:
    """Hold the engine: calls wait and it sleeps (engine.share). A repeat extends the hold."""
    deps = ctx.deps
    if not deps.config.engine.share:
        raise Problem(409, "engine and trainer do not share a GPU here", fix="set engine.share = true")
    return reply(await deps.lease.hold(ctx.body))


@API_ROUTES.add("POST", "/engine/release", (KeyScope.TRAINER,), body=c.EngineReleaseIn, result=c.EngineReleased)
async def release_engine(ctx: Ctx) -> web.StreamResponse:
    """Release the engine: it wakes and the calls go on."""
    return reply(await ctx.deps.lease.release(ctx.body.worker))
