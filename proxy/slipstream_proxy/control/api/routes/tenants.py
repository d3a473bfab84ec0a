"""What the operator sees of tenants: that they run, what they use, and what is worst. Nothing that they wrote."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import aiohttp
from aiohttp import web
from pydantic import ValidationError

from slipstream import contract as c
from slipstream.contract import API_PREFIX, KeyScope
from slipstream.errors import ConfigError
from slipstream.tenants import tenant_config
from slipstream_proxy.control.api.http import OWN_AUTH, Ctx, Routes, reply
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.tenant_states import states_of
from slipstream_proxy.process.settings_file import told_tenants

if TYPE_CHECKING:
    from slipstream.config import Config

API_ROUTES = Routes()
ASKED_AT_ONCE = 8
TENANT_PATIENCE_S = 5.0
DAY_S = 86_400
M = TypeVar("M", bound=c.Model)


@API_ROUTES.add(
    "GET",
    "/tenants",
    (KeyScope.TRAINER, KeyScope.JUDGE, KeyScope.VIEWER),
    result=c.TenantList,
    at_once=True,
)
async def get_tenants(ctx: Ctx) -> web.StreamResponse:
    """The tenants, each with its state, its quota and its worst trouble."""
    config = ctx.deps.config
    if config.tenant:
        raise Problem(403, "only the operator may list tenants", field="header.authorization", fix="ask for status")
    config, states = await asyncio.to_thread(lambda: (told_tenants(config), states_of(config.root)))
    turn = asyncio.Semaphore(ASKED_AT_ONCE)

    async def look(name: str) -> c.TenantStatus:
        async with turn:
            return await _status(config, name, states.get(name, ""), ctx.deps.now())

    found = await asyncio.gather(*(look(name) for name in sorted({*states, *config.tenants})))
    return reply(c.TenantList(tenants=list(found)))


async def _status(config: Config, name: str, why: str, now: float) -> c.TenantStatus:
    try:
        own = tenant_config(config, name)
    except ConfigError as e:
        return c.TenantStatus(name=name, running=False, reason=str(e))
    quota = {what: float(most) for what, most in own.quota.model_dump(exclude_none=True).items()}
    connector, timeout = aiohttp.UnixConnector(str(own.socket)), aiohttp.ClientTimeout(total=TENANT_PATIENCE_S)
    try:
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            status = await _ask(session, "/status", c.Status)
            today = await _ask(session, f"/cost?since={now - now % DAY_S}", c.CostTable) if quota else None
    except (aiohttp.ClientError, OSError, TimeoutError, ValidationError) as e:
        late = isinstance(e, TimeoutError)
        silent = f"it does not answer within {TENANT_PATIENCE_S:g} s" if late else f"it does not answer: {e}"
        return c.TenantStatus(name=name, running=False, reason=why or silent, quota=quota)
    worst = next(iter(status.funnel.troubles()), None)
    return c.TenantStatus(
        name=name,
        running=True,
        calls=status.calls,
        episodes=sum(status.episodes.values()),
        live=status.models,
        quota=quota,
        used=_used(today, quota),
        adapter_use=status.adapter_use,
        trouble=worst and f"{worst.stage}: {worst.cause} ({worst.count})",
    )


def _used(today: c.CostTable | None, quota: dict[str, float]) -> dict[str, float]:
    if today is None:
        return {}
    total = today.total
    found = {
        "calls_per_day": total.calls,
        "input_tokens_per_day": total.prompt_tokens,
        "output_tokens_per_day": total.completion_tokens,
        "judge_dollars_per_day": total.dollars or 0.0,
    }
    return {what: float(found[what]) for what in quota if what in found}


async def _ask(session: aiohttp.ClientSession, path: str, kind: type[M]) -> M:
    # without keys, a control plane answers to this machine's own names alone
    async with session.get(f"http://localhost{API_PREFIX}{path}", headers=OWN_AUTH, raise_for_status=True) as answer:
        return kind.model_validate_json(await answer.read())
