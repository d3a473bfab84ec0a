"""What people and the gate did: the audit log."""

from __future__ import annotations

from aiohttp import web
from pydantic import Field

from slipstream import contract as c
from slipstream.contract import KeyScope
from slipstream_proxy.control.api.http import (
    Ctx,
    Query,
    Routes,
    paged,
)
from slipstream_proxy.control.api.routes.episodes import (
    Cursor,
    KeyId,
    Label,
    Number,
)
from slipstream_proxy.store.tables.small import AuditFilter

API_ROUTES = Routes()


class AuditQuery(Query):
    key: KeyId | None = Field(None, description="Done with this API key.")
    action: c.Tag | None = None
    target: Label | None = None
    since: Number | None = Field(None, description="Seconds since the epoch.")
    until: Number | None = None
    cursor: Cursor | None = Field(None, description="`next` of the page before.")
    limit: int = Field(100, ge=1, le=1000)


@API_ROUTES.add("GET", "/audit", (KeyScope.VIEWER, KeyScope.ADMIN), AuditQuery, result=c.AuditPage, errors=(404,))
async def get_audit(ctx: Ctx) -> web.StreamResponse:
    """Who promoted, rolled back, labelled, deleted, paused or made keys, the newest first."""
    return await paged(ctx, ctx.deps.store.audit.page, AuditFilter(**ctx.query.model_dump()))
