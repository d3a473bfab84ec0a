"""Episodes: list, look, reward, done, forget; datasets out of them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from aiohttp import web
from pydantic import Field, StringConstraints

from slipstream import contract as c
from slipstream.contract import KeyScope
from slipstream_proxy.control.api.http import (
    JSON_TYPE,
    Ctx,
    Query,
    Routes,
    check_teacher,
    json_of,
    paged,
    reply,
)
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import in_thread
from slipstream_proxy.control.storage.access import away
from slipstream_proxy.control.storage.identity import remember_forgotten
from slipstream_proxy.control.storage.spool_eraser import BLANK_KIND
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.log.records import mark_of
from slipstream_proxy.redaction import redaction_of
from slipstream_proxy.store.conversation.call_rows import PAGE_CALLS, CallPage
from slipstream_proxy.store.tables.rows import dump
from slipstream_proxy.store.values import EpisodeFilter, Forgotten, Name

if TYPE_CHECKING:
    from slipstream_proxy.control.deps import Deps

log = logging.getLogger(__name__)
EPISODE_PATH = "/episodes/{episode:[^/]+}"
"""Any text that a client may have tagged its calls with: ``episode_of`` has its id."""
EXPORT_FORM = (
    f"Calls whole, or each without what it shares with an earlier one (`prefix`). "
    f"auto: whole in runs of up to {c.WHOLE_CALLS} calls, deltas in longer ones."
)
EPISODES_PER_DELETION = 100
"""Episodes that are forgotten in one transaction."""
FORGETTING_PREFIX, MAX_FORGETTINGS = "forget-", 1000
"""How the store's records of requests to forget are named, and how many are kept."""
FORGOTTEN_TRACES = ("batches", "exports", "cases")
"""What such a record holds of ``Forgotten``."""
OF_FORGOTTEN = "trained on episodes that were forgotten"
"""Why a version was taken back."""
GROUPS_TOGETHER = 500
"""Groups that one change asks to train on again."""
TAG_PAIR = r"^[^:]"
Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e15, le=1e15)]
KeyId = Annotated[str, Field(max_length=64, pattern="^[A-Za-z0-9_-]+$")]
Label = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00]+$")]
"""The name of a model or an adapter, or what else a filter is to equal."""
Cursor = Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[\x21-\x7e]+$")]


class FilterQuery(Query):
    key: KeyId | None = Field(None, description="Another key's episodes (admin).")
    task: c.Asked | None = Field(None, description="Any text, as the calls were tagged with it.")
    split: Literal["train", "eval", "sibling"] | None = None
    adapter: Label | None = None
    state: c.EpisodeState | None = None
    model: Label | None = None
    reward_min: Number | None = None
    reward_max: Number | None = None
    since: Number | None = Field(None, description="Started at or after, seconds since the epoch.")
    until: Number | None = Field(None, description="Started before.")
    tag: str | None = Field(
        None,
        pattern=TAG_PAIR,
        max_length=c.IN_A_URL,
        description="`name:value`, or `name` for any value; both are any text. More: `tag.<name>=<value>`.",
    )
    q: Annotated[str, StringConstraints(pattern=r"\S", max_length=200)] | None = Field(
        None,
        description='Words, and "phrases" in quotes, that stand in its messages, id, task or tags, all of them, in any '
        "case; or the id of one of its calls.",
    )
    outcome: Literal["ok", "aborted", "error", "superseded", "failed"] | None = Field(
        None, description="One of its calls has it. `failed`: in none of its calls the model said anything."
    )
    trainable: bool | None = Field(None, description="Whether one of its calls can be trained on.")
    kind: Annotated[str, Field(pattern="^[A-Za-z0-9._-]{1,128}$")] | None = Field(
        None,
        description="One of its calls is of this kind: main, subagent, title, summary, compaction, side, or one that "
        "x-slipstream-kind said.",
    )


PLAIN_FILTERS = set(FilterQuery.model_fields) - {"key", "state", "tag", "outcome"}
"""Filters that the store has under the same name."""


class EpisodesQuery(FilterQuery):
    cursor: Cursor | None = Field(None, description="`next` of the page before.")
    limit: int = Field(50, ge=1, le=1000)
    count: bool = Field(False, description="Say in `total` how many there are on all pages.")
    patience: float = Field(
        1.0,
        ge=0,
        le=30,
        allow_inf_nan=False,
        description="Seconds that `q`, `outcome`, `trainable`, `kind` look back for a page. `next` goes on after it.",
    )


class KeyQuery(Query):
    key: KeyId | None = Field(None, description="The episode's key, when it is another one's (admin).")


class EpisodeQuery(KeyQuery):
    tokens: bool = Field(False, description="With token ids and log-probabilities.")
    form: c.Form = Field("auto", description=EXPORT_FORM)
    calls_from: int = Field(0, ge=0, le=2**31, description="The number of the first call: `next_call` of a page.")
    calls: int = Field(
        PAGE_CALLS,
        ge=1,
        le=PAGE_CALLS,
        description="At most so many calls. A page also ends at about 8 MiB; `next_call` says where to go on.",
    )


class Stored(c.Model):
    stored: bool = True


def episode_of(ctx: Ctx) -> str:
    """The id of the episode that the path names."""
    text, redaction = ctx.path("episode"), redaction_of(ctx.deps.config)
    name = c.id_of(text)
    return name if redaction is None else redaction.id("episode", text, name)


def pair_of(tag: str | None) -> tuple[str, str]:
    """A tag's name and value as they are stored. ``""``: it says none."""
    name, _, value = (tag or "").partition(":")
    return c.name_of(name) if name else "", c.tag_text(value)


def wanted(ctx: Ctx, query: FilterQuery, **more: Any) -> EpisodeFilter:
    for low, high in (("reward_min", "reward_max"), ("since", "until")):
        least, most = getattr(query, low), getattr(query, high)
        if least is not None and most is not None and least > most:
            raise Problem(422, f"query.{low}: {least} is above {high}", field=f"query.{low}", fix="swap the two")
    tags = {c.name_of(name): c.tag_text(value) for name, value in ctx.tags.items()}
    name, value = pair_of(query.tag)
    if value and tags.get(name, value) != value:
        raise Problem(422, f"query.tag: query.tag.{name} says otherwise", field="query.tag", fix="give it once")
    return EpisodeFilter(
        key=ctx.visible(query.key),
        state=query.state.value if query.state else None,
        tags=tags | ({name: value} if value else {}),
        tagged=[name] if name and not value else [],
        replays="replay" in (name, *tags),
        failed=query.outcome == "failed",
        outcome=None if query.outcome == "failed" else query.outcome,
        **query.model_dump(include=PLAIN_FILTERS),
        **more,
    )


API_ROUTES = Routes()


@API_ROUTES.add("GET", "/episodes", query=EpisodesQuery, tags=True, result=c.EpisodePage, errors=(404,))
async def list_episodes(ctx: Ctx) -> web.StreamResponse:
    """List and filter episodes, newest first. Runs of a replay are shown where their tag ``replay`` is asked for."""
    q: EpisodesQuery = ctx.query
    which = wanted(ctx, q, cursor=q.cursor, limit=q.limit, count=q.count, patience=q.patience)
    return await paged(ctx, ctx.deps.store.episodes.page, which)


@API_ROUTES.add("GET", EPISODE_PATH, query=EpisodeQuery, result=c.EpisodeDetail, errors=(404,))
async def get_episode(ctx: Ctx) -> web.StreamResponse:
    """One episode: calls, rewards, adapter, lineage."""
    q: EpisodeQuery = ctx.query
    key, page = ctx.visible(q.key), CallPage(q.form, q.calls_from, q.calls)
    await ctx.deps.arrived()  # a call of it may have ended a moment ago
    found = await ctx.deps.ask(ctx.deps.store.episodes.get, key, episode_of(ctx), tokens=q.tokens, page=page)
    if found is None:
        raise unknown(ctx)
    return web.Response(body=await in_thread(json_of, found), content_type=JSON_TYPE)


def unknown(ctx: Ctx) -> Problem:
    fix, ingester = "`slipstream episodes` (GET episodes) lists them", ctx.deps.stores.ingester
    if ingester is not None and ingester.stats.broken is not None:
        fix = "what came lately is not in the store, which takes nothing just now: `slipstream status` says why"
    return Problem(404, f"no episode {episode_of(ctx)}", field="path.episode", fix=fix)


def ended_reply(response: web.Response) -> web.Response:
    """Tells the data plane, which passes it on, that the next call of this name is another run's."""
    response.headers[c.Headers.DONE] = "true"
    return response


@API_ROUTES.add(
    "DELETE",
    EPISODE_PATH,
    (KeyScope.ADMIN, KeyScope.INFERENCE),
    KeyQuery,
    result=c.Deleted,
    errors=(404,),
    audit="delete",
)
async def delete_episode(ctx: Ctx) -> web.StreamResponse:
    """Forget an episode; names the adapters trained on it."""
    check_teacher(ctx)
    key, episode = ctx.query.key if ctx.caller.admin else ctx.owner(ctx.query.key), episode_of(ctx)
    await _arrived(ctx.deps)
    names = await _named(ctx, key, [episode])
    if not names:
        raise unknown(ctx)
    gone, anew, steps = await _forget(ctx, names, c.ForgetIn.model_construct(key=key, episodes=[episode]))
    ctx.target = mark_of(episode)
    made = c.descendants(ctx.deps.rollout.registry.items, gone.adapters)
    told = {"made_from": made, "anew": anew, "steps": steps, "exports": gone.exports, "cases": gone.cases}
    return reply(c.Deleted(id=episode, adapters=gone.adapters, **told))


def _as_stored(ctx: Ctx, asked: c.ForgetIn) -> c.ForgetIn:
    """The names as the episodes have them."""
    redaction = redaction_of(ctx.deps.config)
    if redaction is None:
        return asked
    tags = {
        (named := redaction.name("tag_name", c.said_of(name))): c.tag_text(
            redaction.text(f"tag.{named}", c.said_of(value))
        )
        for name, value in asked.tags.items()
    }
    episodes = [redaction.id("episode", c.said_of(episode), episode) for episode in asked.episodes]
    user = c.tag_text(redaction.text("tag.user", c.said_of(asked.user))) if asked.user else asked.user
    return asked.model_copy(update={"episodes": episodes, "tags": tags, "user": user})


@API_ROUTES.add(
    "POST", "/forget", (KeyScope.ADMIN, KeyScope.INFERENCE), body=c.ForgetIn, result=c.ForgetOut, audit="forget"
)
async def forget_episodes(ctx: Ctx) -> web.StreamResponse:
    """Forget many episodes: by id, key, tags or user."""
    check_teacher(ctx)
    asked = _as_stored(ctx, ctx.body)
    if asked.key is None and not (asked.episodes or asked.tags or asked.user):
        raise Problem(422, "this names no episode", field="body", fix="give episodes, key, tags or user")
    key = asked.key if ctx.caller.admin else ctx.owner(asked.key)
    tags = asked.tags | ({"user": asked.user} if asked.user else {})
    await _arrived(ctx.deps)
    if asked.episodes:
        names = await _named(ctx, key, asked.episodes)
        if tags:
            there = await ctx.deps.ask(ctx.deps.store.episodes.many, names)
            names = [n for n in names if n in there and tags.items() <= there[n].tags.items()]
    else:
        names = await ctx.deps.ask(ctx.deps.store.episodes.names, EpisodeFilter(key=key, tags=tags))
    copied = await ctx.deps.ask(ctx.deps.store.cases.named, key, asked.episodes, tags)
    names = list(dict.fromkeys([*names, *copied]))
    found = {episode for _, episode in names}
    gone, anew, steps = await _forget(ctx, names[: c.FORGET_MOST], asked.model_copy(update={"key": key}))
    count = sum(not c.is_sibling(episode) for _, episode in gone.names)
    # a hash of what the caller wrote: the entry outlives the person
    said = {name: mark_of(text) for name, text in tags.items()}
    ctx.detail = {"forgotten": count, "ids": len(asked.episodes), "key": key, "tags": said, "adapters": gone.adapters}
    return reply(
        c.ForgetOut(
            forgotten=count,
            adapters=gone.adapters,
            made_from=c.descendants(ctx.deps.rollout.registry.items, gone.adapters),
            anew=anew,
            steps=steps,
            exports=gone.exports,
            cases=gone.cases,
            unknown=[e for e in asked.episodes if e not in found],
            more=len(names) > c.FORGET_MOST,
        )
    )


async def _arrived(deps: Deps) -> None:
    """What this proxy has acknowledged is in the store. A run that is not there yet would be neither found nor
    swallowed when it comes.
    """
    if not await deps.mutate(BLANK_KIND, {}):
        raise away()


async def _named(ctx: Ctx, key: str | None, ids: Sequence[str]) -> list[Name]:
    """Those of these episodes that there are, of this key or (None: an admin asks) of any."""
    store = ctx.deps.store
    copied = await ctx.deps.ask(store.cases.named, key, ids, {})
    return list(dict.fromkeys([*await ctx.deps.ask(store.episodes.known, key, ids), *copied]))


async def _forget(
    ctx: Ctx, names: Sequence[Name], asked: c.ForgetIn
) -> tuple[Forgotten, list[str], list[c.TaughtStep]]:
    """→ What is gone, the versions that are trained anew for that, and the steps that no version has yet.

    What it finds is recorded before anything is deleted: once an episode is gone, nothing else tells who asked for it.
    A request that was cut off is ended from that (``end_forgetting``), and the same request finds it again.
    """
    deps, parts = ctx.deps, list[Forgotten]()
    names = [*names, *await deps.ask(deps.store.episodes.siblings, names)]
    record = FORGETTING_PREFIX + mark_of(dump(asked.model_dump()))
    async with deps.forgetter.turn(record):
        before = await deps.ask(deps.store.cache.get, record) or {}
        parts.append(await deps.ask(deps.store.deletion.traces, names))
        found = _with_traces(before, parts) | {"key": ctx.caller.key, "instance": deps.store.instance}
        if found != before and any(found[name] for name in FORGOTTEN_TRACES):
            await _keep(deps, record, found)
        gone: list[Name] = []
        for at in range(0, len(names), EPISODES_PER_DELETION):
            some = names[at : at + EPISODES_PER_DELETION]
            # into the spool first: should the store be rebuilt from it, they are forgotten again
            marks = [[key, mark_of(episode)] for key, episode in some]
            await deps.mutate("delete", {"episodes": [list(name) for name in some], "marks": marks}, wait=0)
            await in_thread(remember_forgotten, deps.config.root, some)
            parts.append(await deps.ask(deps.store.forget, some, deps.now()))
            gone += parts[-1].names
            deps.forgetter.told(parts[-1])
            deps.judges.forget()
        found = _with_traces(found, parts)  # a batch may have been leased meanwhile
        anew, steps = await _unlearn(deps, record, found)
    adapters = sorted(await _taught(deps, found["batches"]))
    items = deps.rollout.registry.items
    anew = sorted({*anew, *(name for name in adapters if name in items and items[name].anew)})
    return Forgotten(gone, adapters, found["exports"], found["cases"], found["batches"]), anew, steps


def _with_traces(record: JsonObject, parts: Sequence[Forgotten]) -> JsonObject:
    """``open``: batches of which nobody has named and taken back the versions yet. The same request may have done so
    for some already.
    """
    fresh = {b for p in parts for b in p.batches}.difference(record.get("batches", ()))
    found = {
        name: sorted({*record.get(name, ()), *(x for p in parts for x in getattr(p, name))})
        for name in FORGOTTEN_TRACES
    }
    return {**record, **found, "open": sorted(fresh.union(record.get("open", ())))}


async def _keep(deps: Deps, record: str, found: JsonObject) -> None:
    change = {"key": record, "value": found, "at": deps.now(), "newest": [FORGETTING_PREFIX, MAX_FORGETTINGS]}
    await deps.mutate("cache", change)


async def _taught(deps: Deps, batches: Collection[str]) -> set[str]:
    """Versions that were trained on these batches. The store may not have one yet that was registered just now."""
    listed = {a.name for a in deps.rollout.registry.items.values() if not set(batches).isdisjoint(a.batches)}
    return listed | await deps.ask(deps.store.batches.adapters_of, batches)


async def _unlearn(deps: Deps, record: str, found: JsonObject) -> tuple[list[str], list[c.TaughtStep]]:
    """→ The versions that are taken back because of ``found["open"]``, and the steps that no version has yet."""
    anew, batches = list[str](), set(found["open"])
    steps = [s for s in await unpublished(deps) if s.batch in found["batches"]] if found["batches"] else []
    if deps.config.store.forget == "retrain":
        anew = await _retrain(deps, found["key"], sorted(await _taught(deps, batches)))
        for model in sorted({s.model for s in steps if s.step is not None and s.batch in batches}):
            await train_steps_anew(deps, found["key"], model)
        steps = [s.model_copy(update={"dropped": True}) for s in steps]
    if batches:
        await _keep(deps, record, {**found, "open": []})
    return anew, steps


async def end_forgetting(deps: Deps) -> None:
    """What requests to forget have left undone, because this proxy was stopped or the store was away."""
    if not deps.rollout.registry.items:  # it is not read yet, or there is no version
        return
    for record in await deps.ask(deps.store.cache.begins, FORGETTING_PREFIX):
        async with deps.forgetter.turn(record):  # a request that is answered meanwhile ends it itself
            found = await deps.ask(deps.store.cache.get, record)
            if found and found["open"] and found["instance"] == deps.store.instance:
                await _end_cut_off(deps, record, found)


async def _end_cut_off(deps: Deps, record: str, found: JsonObject) -> None:
    adapters = sorted(await _taught(deps, found["open"]))
    log.warning("a request to forget was cut off: ask again for the rest; trained on: %s", ", ".join(adapters))
    anew, _ = await _unlearn(deps, record, found)
    for name in {*adapters} - {*anew}:
        detail = {"batches": found["open"], "fix": f"slipstream adapters retrain {name}"}
        await deps.audit.note(found["key"], "trained on forgotten", name, detail)


async def unpublished(deps: Deps) -> list[c.TaughtStep]:
    """Batches that the trainer has, and steps that no version has yet."""
    ours = [a for a in deps.rollout.registry.items.values() if a.batches]
    leased = [a for a in ours if "offline" not in a.meta]  # another counts steps of its own
    newest = {a.model: a.step or 0 for a in sorted(leased, key=lambda a: a.step or 0)}
    listed = {batch for a in ours for batch in a.batches}
    return [s for s in await deps.ask(deps.store.batches.unpublished, newest) if s.batch not in listed]


async def train_steps_anew(deps: Deps, key: str, model: str, also: Collection[str] = ()) -> None:
    """The trainer drops the steps that no version has yet, because of an episode that was forgotten. What else they
    were trained on comes to it once more. ``also``: more batches of which that is so.
    """
    steps = [s for s in await unpublished(deps) if s.model == model and s.step is not None]
    epochs, plan = await deps.ask(deps.store.batches.plan_anew, {*also, *(s.batch for s in steps)}, ())
    for times, groups in epochs.items():
        await ask_again(deps, groups, times)
    detail = {"steps": [s.step for s in steps], "groups": plan.groups, "cause": "store.forget"}
    await deps.audit.note(key, "train anew", model, detail)


async def made_of_forgotten(ctx: Ctx, adapter: c.Adapter) -> None:
    """A version is here whose episodes were in part forgotten since the trainer got them: it is taken back at once
    (``store.forget = "retrain"``), or the audit log names it.
    """
    deps = ctx.deps
    found: dict[str, int] = await deps.ask(deps.store.batches.with_forgotten, adapter.batches)
    if not found or adapter.anew:
        return
    if deps.config.store.forget == "retrain":
        await _retrain(deps, ctx.caller.key, [adapter.name])
        return
    count = sum(found.values())
    log.warning("%s was trained on %d episodes that were forgotten before it came", adapter.name, count)
    detail = {"batches": sorted(found), "episodes": count, "fix": f"slipstream adapters retrain {adapter.name}"}
    await deps.audit.note(ctx.caller.key, "trained on forgotten", adapter.name, detail)


async def train_anew(
    deps: Deps, names: Sequence[str], reason: str, without: Sequence[Name] = (), *, dry_run: bool = False
) -> c.TrainAnew:
    """These versions of a model, and what was made from them, are taken back, so that the trainer goes on from before
    them. What else they were trained on comes to it once more, as stored groups do; so does what is lost with them.
    ``without``: episodes whose groups are left out.
    """
    items = deps.rollout.registry.items
    gone = sorted({*names, *c.descendants(items, names)} & items.keys(), key=lambda name: items[name].version)
    model = items[gone[0]].model
    change = deps.rollout.lifecycle.changes.anew(model, gone, reason)
    start = deps.rollout.registry.live(model, {**items, **{a.name: a for a in change.changed}} if change else None)
    between = c.left_behind(items, gone, start)
    batches = list(dict.fromkeys(batch for name in [*between, *gone] for batch in items[name].batches))
    newest = max((a for a in items.values() if a.model == model and a.batches), key=lambda a: a.version, default=None)
    if newest is not None and newest.name in gone:  # the steps since then are its trainer's, and go with it
        steps = await unpublished(deps)
        batches += [s.batch for s in steps if s.model == model and s.step is not None]
    epochs, plan = await deps.ask(deps.store.batches.plan_anew, batches, without)
    if not dry_run:
        await deps.rollout.lifecycle.anew(model, gone, reason)
        for times, groups in epochs.items():
            await ask_again(deps, groups, times)
    return c.TrainAnew(**plan.model_dump(), adapters=gone, start=start, between=between)


async def ask_again(deps: Deps, groups: Sequence[str], epochs: int) -> None:
    """That these groups are trained on until they were so often."""
    for at in range(0, len(groups), GROUPS_TOGETHER):
        await deps.mutate("again", {"groups": groups[at : at + GROUPS_TOGETHER], "epochs": epochs})


async def _retrain(deps: Deps, key: str, adapters: Sequence[str]) -> list[str]:
    """Those that were trained on what is forgotten are taken back and trained anew, each model's by themselves."""
    anew, items = list[str](), deps.rollout.registry.items
    for model in sorted({items[name].model for name in adapters if name in items}):
        of = [name for name in adapters if name in items and items[name].model == model]
        plan = await train_anew(deps, of, OF_FORGOTTEN)
        anew += plan.adapters
        detail = {"adapters": plan.adapters, "start": plan.start, "groups": plan.groups, "cause": "store.forget"}
        await deps.audit.note(key, "train anew", of[0], detail)
    return anew
