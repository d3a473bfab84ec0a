"""Groups, batches, and the tokens of a call: what was compared, what was trained on, and what came of it."""

from __future__ import annotations

from typing import Literal

from aiohttp import web
from pydantic import Field

from slipstream import contract as c
from slipstream_proxy.control.api.http import Ctx, Query, Routes, paged, reply
from slipstream_proxy.control.api.routes.episodes import Cursor, KeyId, Label
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.token_text import TokenTexts
from slipstream_proxy.store.read.groups import BatchFilter, GroupFilter
from slipstream_proxy.store.read.tokens import StoredTokens
from slipstream_proxy.store.tables.rows import Floats

ID = "[A-Za-z0-9._~-]{1,160}"
NOT_A_VERB = "(?!lease$|parked$)"
"""Paths beside those of groups and batches."""
GroupState = Literal[
    "forming", "waiting_reward", "ready", "leased", "trained", "skipped", "stale", "dropped", "eval", "window"
]


class PageQuery(Query):
    cursor: Cursor | None = Field(None, description="`next` of the page before.")
    limit: int = Field(50, ge=1, le=500)


class GroupsQuery(PageQuery):
    key: KeyId | None = Field(None, description="Another key's (admin, viewer).")
    task: c.Asked | None = None
    model: Label | None = None
    split: Literal["train", "eval", "sibling"] | None = None
    state: GroupState | None = None
    kind: Literal["task", "like", "window"] | None = None
    batch: c.Id | None = Field(None, description="Groups that were in this batch.")
    adapter: Label | None = Field(None, description="That one of its runs is of, or that came of it.")


class BatchesQuery(PageQuery):
    model: Label | None = None
    state: Literal["leased", "trained", "skipped", "released", "expired"] | None = None
    adapter: Label | None = Field(None, description="What came of it.")
    step: int | None = Field(None, ge=0, le=2**31 - 1)


class TokensQuery(Query):
    prompt: int = Field(2000, ge=0, le=200_000, description="At most so many of the prompt's last tokens.")
    text: bool = Field(True, description="With texts.")


API_ROUTES = Routes()


@API_ROUTES.add("GET", "/groups", query=GroupsQuery, result=c.GroupPage, errors=(404,))
async def list_groups(ctx: Ctx) -> web.StreamResponse:
    """Groups, newest first: runs of a task that are compared."""
    q: GroupsQuery = ctx.query
    wanted = GroupFilter(**q.model_dump(exclude={"key"}), key=ctx.visible(q.key))
    return await paged(ctx, ctx.deps.store.reports.groups.page, wanted)


@API_ROUTES.add("GET", "/groups/{group:" + NOT_A_VERB + ID + "}", result=c.GroupDetail)
async def get_group(ctx: Ctx) -> web.StreamResponse:
    """One group: its runs side by side, rewards, advantages, judgements with votes, and its batches."""
    found = await ctx.deps.ask(ctx.deps.store.reports.groups.get, ctx.visible(), ctx.path("group"))
    if found is None:
        raise Problem(404, f"no group {ctx.path('group')}", field="path.group", fix="list them with GET groups")
    return reply(found)


@API_ROUTES.add("GET", "/batches", query=BatchesQuery, result=c.BatchPage, errors=(404,))
async def list_batches(ctx: Ctx) -> web.StreamResponse:
    """Batches, newest first: groups that the trainer leased together, and the step and adapter that came of them."""
    return await paged(ctx, ctx.deps.store.reports.groups.batch_page, BatchFilter(**ctx.query.model_dump()))


@API_ROUTES.add("GET", "/batches/{batch:" + NOT_A_VERB + ID + "}", result=c.BatchDetail)
async def get_batch(ctx: Ctx) -> web.StreamResponse:
    """One batch: its groups and episodes, with rewards and advantages."""
    found = await ctx.deps.ask(ctx.deps.store.reports.groups.batch, ctx.path("batch"))
    if found is None:
        raise Problem(404, f"no batch {ctx.path('batch')}", field="path.batch", fix="list them with GET batches")
    if not ctx.caller.sees_all:
        own = [e for e in found.episodes if e.key == ctx.caller.key]
        groups = list(dict.fromkeys(e.group for e in own))
        found = found.model_copy(update={"episodes": own, "groups": groups})
    return reply(found)


def why_masked(stored: StoredTokens) -> str | None:
    """Why no sampled token of this call counts in a loss; None: they do, or will."""
    if not stored.call.trainable:
        return stored.call.reason or "not trainable"
    if stored.ep.split == "eval":
        return "split eval: compared, never trained on"
    if stored.trained is None and stored.group_state in ("stale", "dropped", "skipped"):
        return f"its group is {stored.group_state}: {stored.group_cause or 'no cause was told'}"
    return None


def _tokens(
    ids: list[int],
    texts: list[str] | None,
    masked: str | None,
    advantage: float | None = None,
    logprobs: Floats | None = None,
    gaps: Floats | None = None,
) -> list[c.Token]:
    if gaps is not None and len(gaps) != len(ids):
        gaps = None
    return [
        c.Token(
            id=token,
            text=texts[i] if texts is not None else None,
            logprob=float(logprobs[i]) if logprobs is not None and i < len(logprobs) else None,
            trained=masked is None,
            masked=masked,
            advantage=advantage,
            gap=float(f"{gaps[i]:.4g}") if gaps is not None else None,
        )
        for i, token in enumerate(ids)
    ]


@API_ROUTES.add("GET", "/calls/{call:" + ID + "}/tokens", query=TokensQuery, result=c.CallTokens)
async def get_tokens(ctx: Ctx) -> web.StreamResponse:
    """A call token by token: text, log-probability, advantage, and what is masked and why.

    Prompts are never trained on: the tokens of replies in them count in the calls that sampled them.
    """
    deps, q = ctx.deps, ctx.query
    stored = await deps.ask(deps.store.reports.tokens.get, ctx.visible(), ctx.path("call"))
    if stored is None:
        raise Problem(404, f"no call {ctx.path('call')}", field="path.call", fix="find it with GET episodes?q=<call>")
    ep, row = stored.ep, stored.call
    prompt = stored.prompt[len(stored.prompt) - min(q.prompt, len(stored.prompt)) :]
    lists = [prompt.tolist(), *(ids.tolist() for ids, _ in stored.choices)]
    urls = [e.url for e in deps.engines.engines if e.healthy]
    said = TokenTexts(None, None, "text=false")
    if q.text:
        said = await deps.texter.texts(row.adapter or row.model, lists, urls)
    masked, advantage = why_masked(stored), stored.trained.advantage if stored.trained else None
    gaps: tuple[float | None, float | None] = (None, None)
    if stored.step is not None:
        gaps = await deps.ask(deps.store.reports.groups.gap, stored.step)
    texts = said.texts or [None] * len(lists)
    found = c.CallTokens(
        call=row.id,
        episode=ep.id,
        key=ep.key,
        adapter=row.adapter,
        trainable=row.trainable,
        untrainable_reason=row.reason,
        prompt=_tokens(lists[0], texts[0], "prompt"),
        prompt_left_out=len(stored.prompt) - len(prompt),
        choices=[
            _tokens(ids, text, masked, advantage, logprobs, stored.gaps.get(n))
            for n, ((_, logprobs), ids, text) in enumerate(zip(stored.choices, lists[1:], texts[1:], strict=True))
        ],
        tokenizer=said.source,
        no_text=said.why if said.texts is None else None,
        advantage=advantage,
        batch=stored.trained.batch if stored.trained else None,
        step=stored.step,
        gap_mean=gaps[0],
        gap_max=gaps[1],
    )
    return reply(found)
