"""Sets of cases: copies of episodes that a new version is tried on before it goes live."""

from __future__ import annotations

from aiohttp import web
from pydantic import Field

from slipstream import contract as c
from slipstream.contract import KeyScope
from slipstream.settings.gate import AUTOMATIC_CASE_SETS
from slipstream_proxy.control.api.http import JSON_TYPE, Ctx, Query, Routes, json_of, reply
from slipstream_proxy.control.api.routes.episodes import FilterQuery, KeyId, wanted
from slipstream_proxy.control.api.routes.plugins import plugin_of
from slipstream_proxy.control.api.routes.restore import EpisodesIn, as_stored
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import in_thread
from slipstream_replay.server.case_keeper import KeepsCases, case_change, sample

CASE_SET = f"/cases/{{set:{c.CASE_NAME}}}"
AT_ONCE = 1000


class CasesQuery(Query):
    version: int | None = Field(
        None, ge=1, le=2**31 - 1, description="As the set was at this version; default: as it is."
    )
    after: str = Field("", max_length=400, description="`next` of the page before.")
    limit: int = Field(100, ge=1, le=1000)
    whole: bool = Field(False, description="With each episode's calls, token ids and log-probabilities.")


class CaseKeyQuery(Query):
    key: KeyId | None = Field(None, description="Only episodes of this key.")


CASE_ROUTES = Routes()


@CASE_ROUTES.add("GET", "/cases", (KeyScope.ADMIN, KeyScope.VIEWER), result=c.CaseSets)
async def list_case_sets(ctx: Ctx) -> web.StreamResponse:
    """List sets of cases."""
    return reply(c.CaseSets(sets=await ctx.deps.ask(ctx.deps.store.cases.sets)))


@CASE_ROUTES.add("GET", CASE_SET, (KeyScope.ADMIN, KeyScope.VIEWER), CasesQuery, result=c.CasePage, errors=(404,))
async def get_case_set(ctx: Ctx) -> web.StreamResponse:
    """A page of a set's cases, at any version."""
    q: CasesQuery = ctx.query
    page = await ctx.deps.ask(ctx.deps.store.cases.page, ctx.path("set"), q.version, q.after, q.limit, whole=q.whole)
    if page is None:
        raise _unknown(ctx)
    if page.version > page.set.version:
        newest = f"its versions are 1 to {page.set.version}"
        raise Problem(404, f"{page.set.name} has no version {page.version}", field="query.version", fix=newest)
    return web.Response(body=await in_thread(json_of, page), content_type=JSON_TYPE)


@CASE_ROUTES.add(
    "POST", CASE_SET, (KeyScope.ADMIN,), FilterQuery, c.CasesIn, tags=True, result=c.CasesChanged, audit="cases add"
)
async def add_cases(ctx: Ctx) -> web.StreamResponse:
    """Add episodes to a set: by id, by filters, or a stratified sample. It is made if there is none."""
    name, asked = _by_hand(ctx), ctx.body
    q: FilterQuery = ctx.query
    filtered = bool(ctx.tags) or any(getattr(q, name) is not None for name in FilterQuery.model_fields if name != "key")
    if not asked.episodes and not filtered and asked.sample is None:
        fix = "give episodes, a filter in the query, or sample"
        raise Problem(422, "this names no episode", field="body", fix=fix)
    deps = ctx.deps
    names = await deps.ask(deps.store.episodes.known, ctx.visible(q.key), asked.episodes) if asked.episodes else []
    there = {episode for _, episode in names}
    found: list[c.Episode] = []
    more = False
    if filtered or asked.sample is not None:
        found, more = await plugin_of(ctx, KeepsCases).cases.find(wanted(ctx, q, limit=AT_ONCE))
        if asked.by is not None and found and not any(asked.by in e.tags for e in found):
            fix = "give a tag that some have, or none: then tasks are the strata"
            raise Problem(422, f"none of {len(found)} episodes has the tag {asked.by}", field="body.by", fix=fix)
        taken = found if asked.sample is None else sample(found, asked.sample, asked.by)
        more = more or (asked.sample is None and len(taken) > c.CASES_MOST)
        names += [(e.key, e.id) for e in taken[: c.CASES_MOST]]
    changed = await plugin_of(ctx, KeepsCases).cases.copy(name, list(dict.fromkeys(names)))
    changed.unknown = [e for e in asked.episodes if e not in there]
    changed.found, changed.more = len(found), more
    return reply(changed)


@CASE_ROUTES.add(
    "POST", CASE_SET + "/import", (KeyScope.ADMIN,), body=EpisodesIn, result=c.CasesChanged, audit="cases import"
)
async def import_cases(ctx: Ctx) -> web.StreamResponse:
    """Add episodes that another Slipstream exported. They are cases only, and are never trained on. Those that were
    forgotten here are left out, and named.
    """
    name, deps = _by_hand(ctx), ctx.deps
    # one that comes twice counts as it came first: else each import of the same would change the set
    brought = {(e.key, e.id): e for e in reversed(ctx.body.episodes)}
    episodes = [e for e in ctx.body.episodes if brought[e.key, e.id] is e]
    standing = await deps.ask(deps.store.standings.of, list(brought), deps.now())
    forgotten = [e.id for e in episodes if standing[e.key, e.id] == "gone"]
    episodes = await as_stored(ctx, [e for e in episodes if standing[e.key, e.id] != "gone"])
    changed = await plugin_of(ctx, KeepsCases).cases.write(name, [case_change(e) for e in episodes])
    return reply(changed.model_copy(update={"forgotten": forgotten}))


@CASE_ROUTES.add(
    "POST",
    CASE_SET + "/remove",
    (KeyScope.ADMIN,),
    CaseKeyQuery,
    c.CasesRemoved,
    result=c.CasesChanged,
    audit="cases remove",
)
async def remove_cases(ctx: Ctx) -> web.StreamResponse:
    """Take episodes out of a set's newest version. Earlier versions keep them."""
    asked, deps = ctx.body, ctx.deps
    await _stored(ctx)
    names = await deps.ask(deps.store.cases.named, ctx.query.key, asked.episodes, {})
    there = {episode for _, episode in names}
    changes = [("uncase", {"key": key, "episode": episode}) for key, episode in names]
    changed = await plugin_of(ctx, KeepsCases).cases.write(ctx.path("set"), changes)
    changed.unknown = [e for e in asked.episodes if e not in there]
    return reply(changed)


@CASE_ROUTES.add("DELETE", CASE_SET, (KeyScope.ADMIN,), result=c.CaseSet, errors=(404,), audit="cases drop")
async def drop_case_set(ctx: Ctx) -> web.StreamResponse:
    """Delete a set with all its versions. Episodes in the store stay."""
    found = await _stored(ctx)
    await plugin_of(ctx, KeepsCases).cases.drop(found.name)
    return reply(found)


async def _stored(ctx: Ctx) -> c.CaseSet:
    found = await plugin_of(ctx, KeepsCases).cases.known(ctx.path("set"))
    if found is None:
        raise _unknown(ctx)
    return found


def _by_hand(ctx: Ctx) -> str:
    """The name of a set that people fill."""
    name = ctx.path("set")
    if name.partition(".")[0] in AUTOMATIC_CASE_SETS:
        raise Problem(422, f"{name} fills itself", field="path.set", fix="add to a set of another name")
    return name


def _unknown(ctx: Ctx) -> Problem:
    return Problem(404, f"no set of cases {ctx.path('set')}", field="path.set", fix="list them with GET cases")
