"""Each file brought into a proxy three times: as it is, again, and with other rewards."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from aiohttp.test_utils import TestServer

from slipstream.chat.report import Report
from slipstream.client import AsyncClient
from slipstream.config import Config
from slipstream_imports.survey import Entry, Survey
from slipstream_imports.upload import bring_in, read_log
from slipstream_proxy.control.api.app import make_app
from slipstream_proxy.control.run.worker import ControlPlane

SCOPES = ["admin", "reward"]


class Standing(NamedTuple):
    """Episodes: new at first, there when the file came again, changed when its rewards were others."""

    new: int
    there: int
    changed: int
    side_branches: int


@asynccontextmanager
async def proxy(folder: Path) -> AsyncIterator[str]:
    """A control plane without an engine. → Its address."""
    tree = {"data_dir": str(folder), "engine": {"urls": ["http://127.0.0.1:9"], "name": "m"}}
    control = ControlPlane(Config.model_validate({**tree, "proxy": {"durability": "process"}}))
    server = TestServer(make_app(await control.start(), control.plugins))
    await server.start_server()
    try:
        yield str(server.make_url("/"))
    finally:
        await server.close()
        await control.stop()


def _others(entries: Iterator[Entry]) -> Iterator[Entry]:
    for entry in entries:
        first = dict(entry.bodies[0])
        if isinstance(reward := first.get("reward"), float):
            first["reward"] = reward + 0.125
        if isinstance(metrics := first.get("metrics"), dict):
            first["metrics"] = {name: value + 0.125 for name, value in metrics.items()}
        yield entry._replace(bodies=[first, *entry.bodies[1:]])


async def standing(url: str, path: Path, key: str) -> Standing:
    """``key``: whose episodes they are; each file has its own."""
    survey = Survey()
    survey.look(read_log([path], None, Report()))
    reports = [Report() for _ in range(3)]
    async with AsyncClient(url) as client:
        client.http.headers["x-slipstream-auth"] = json.dumps({"key": key, "scopes": SCOPES})
        for n, report in enumerate(reports):
            entries = read_log([path], None, report)
            await bring_in(client, survey, _others(entries) if n == 2 else entries, report)
    first, again, other = (report.standing() for report in reports)
    return Standing(first["new"], again["there"], other["changed"], reports[0].side_branches)
