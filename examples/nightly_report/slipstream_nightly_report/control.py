"""The part in the control plane: a table, a job, a route, a metric and a view of the page."""

import json
import time

import aiohttp
from prometheus_client import Counter
from pydantic import BaseModel

from slipstream.contract import KeyScope
from slipstream.contract.plugins import PluginBlock, PluginView
from slipstream_proxy.control.api.http import Routes, reply
from slipstream_proxy.control.api.plugins import ControlPlugin
from slipstream_proxy.control.api.routes.plugins import plugin_of
from slipstream_proxy.store.tables.extensions import Extension
from slipstream_proxy.store.tables.schema import ExtensionTable

SECONDS_OF_A_DAY = 86_400.0
REWARDS_SQL = """SELECT coalesce(adapter, 'base') AS version, count(*) AS runs, avg(reward) AS mean FROM episodes
    WHERE ended >= {since} AND split = 'train' GROUP BY 1 ORDER BY 1"""


class Report(BaseModel):
    day: str | None = None
    versions: list[list] = []


def write(tx, mutation):
    day, body = mutation.data["day"], json.dumps(mutation.data["versions"])
    tx.run(f"DELETE FROM {REPORTS} WHERE day = ?", (day,))
    tx.run(f"INSERT INTO {REPORTS} VALUES (?, ?)", (day, body))


EXTENSION = Extension(
    name="nightly_report",
    tables={"sent": ExtensionTable({"day": "TEXT", "body": "TEXT"}, key="day")},
    mutations={"nightly_report": write},
)
REPORTS = EXTENSION.table("sent")
ROUTES = Routes()


@ROUTES.add("GET", "/nightly-report", (KeyScope.VIEWER, KeyScope.ADMIN), result=Report)
async def get_report(ctx):
    """The report that was sent last."""
    return reply(await plugin_of(ctx, NightlyReport).last())


class NightlyReport(ControlPlugin):
    routes = ROUTES
    extension = EXTENSION
    views = {"last": "Nightly report"}

    async def start(self):
        self.sent = Counter("slipstream_nightly_reports", "Reports sent.", registry=self.deps.metrics.registry)
        self.every(60.0, self.look)

    async def look(self):
        now = time.gmtime(self.deps.now())
        day = time.strftime("%Y-%m-%d", now)
        if self.settings.webhook and now.tm_hour == self.settings.hour and (await self.last()).day != day:
            await self.send(day)

    async def send(self, day):
        since = self.deps.now() - SECONDS_OF_A_DAY
        found = await self.deps.ask(self.deps.store.sql, REWARDS_SQL.format(since=since), 1000, 30.0)
        report = {"day": day, "versions": [list(row) for row in found.rows]}
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(30)) as http:
            async with http.post(self.settings.webhook, json=report) as answer:
                answer.raise_for_status()
        await self.keep("nightly_report", report)
        self.sent.inc()

    async def last(self):
        def read():
            with self.deps.store.db.read() as tx:
                return tx.all(f"SELECT day, body FROM {REPORTS} ORDER BY day DESC LIMIT 1")

        rows = await self.deps.ask(read)
        return Report(day=rows[0][0], versions=json.loads(rows[0][1])) if rows else Report()

    async def view(self, name):
        report = await self.last()
        rows = PluginBlock(kind="table", columns=["version", "runs", "mean reward"], rows=report.versions)
        return PluginView(title=f"Report of {report.day or 'no day yet'}", blocks=[rows])
