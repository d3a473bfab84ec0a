"""The plug-in's part in the control plane."""

from __future__ import annotations

from typing import Literal

from aiohttp import web
from pydantic import Field

from slipstream_export.rows import send
from slipstream_proxy.control.api.http import Ctx, Routes
from slipstream_proxy.control.api.plugins import ControlPlugin
from slipstream_proxy.control.api.routes.episodes import FilterQuery, wanted

EXPORT_ROUTES = Routes()


class ExportQuery(FilterQuery):
    format: Literal["jsonl", "sft", "dpo", "parquet"] = "jsonl"
    edits: bool = Field(
        True,
        description="Answers that people wrote (`meta.edited` of a reward with source `human`) stand in place of the "
        "agent's (sft), or are preferred to them (dpo).",
    )
    form: Literal["auto", "deltas"] = Field("auto", description="Of the calls in jsonl and parquet, as in one episode.")
    temporary: bool = Field(False, description="Nobody keeps the file, so forgetting does not name it.")


@EXPORT_ROUTES.add("GET", "/export", query=ExportQuery, tags=True, result="application/octet-stream")
async def get_export(ctx: Ctx) -> web.StreamResponse:
    """Datasets: JSON lines of episodes, SFT or DPO rows, Parquet."""
    q: ExportQuery = ctx.query
    return await send(ctx, wanted(ctx, q, limit=1000), q.format, form=q.form, edited=q.edits, temporary=q.temporary)


class ExportPlugin(ControlPlugin):
    """``GET export``."""

    routes = tuple(EXPORT_ROUTES)
