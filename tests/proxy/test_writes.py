"""Rewards and end marks, while the control plane dies between writing and answering."""

from __future__ import annotations

import asyncio
import random

import aiohttp
from aiohttp import web
from tests.support.dataplane import Proxy, eventually
from tests.support.fake_engine import LoraEngine
from tests.support.plane import API, Plane, make_config, until

from slipstream_proxy.control.api.app import make_app
from slipstream_proxy.control.deps import Deps
from slipstream_proxy.control.run import worker
from slipstream_proxy.data.engines import control_link

ROUNDS, POSTS = 4, 25


class Dying:
    """Breaks the line so often in place of an answer, after all was done."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.broken = rng, 0

    def app(self, deps: Deps) -> web.Application:
        app = make_app(deps)
        app.on_response_prepare.append(self._die)
        return app

    async def _die(self, request: web.Request, _: web.StreamResponse) -> None:
        if request.path.endswith(("/rewards", "/done")) and self.rng.random() < 0.4:
            self.broken += 1
            assert request.transport is not None
            request.transport.abort()


async def test_what_is_sent_again_is_stored_once(tmp_path, monkeypatch):
    """Also where another start of the control plane, with another segment of the spool, gets the second sending."""
    dying = Dying(random.Random(1))
    monkeypatch.setattr(control_link, "RESTARTING", 0.01)
    monkeypatch.setattr(worker, "make_app", dying.app)
    engine = await LoraEngine().start()
    config = make_config(tmp_path, engine)
    control = await Plane(config, engine).start()
    await control.control.serve()
    proxy = await Proxy(config).start()
    try:
        async with aiohttp.ClientSession() as session:

            async def post(path: str, body: object) -> None:
                async with session.post(f"{proxy.url}{API}/episodes/e1/{path}", json=body) as r:
                    assert r.status == 200, await r.text()

            async def rewards(least: int) -> list[dict[str, object]]:
                _, body = await control.ask("GET", "/episodes/e1")
                return body["rewards"] if len(body.get("rewards", ())) >= least else []

            await control.call("e1")
            for n in range(ROUNDS):
                some = [post("rewards", {"name": "small", "value": n + i / POSTS}) for i in range(POSTS)]
                sending = asyncio.gather(*some, post("done", {}), post("rewards", {"value": n, "source": "human"}))
                await eventually(lambda n=n: dying.broken > 8 * n)
                await control.again()
                await control.control.serve()
                await sending
            values = [n + i / POSTS for n in range(ROUNDS) for i in range(POSTS)] + [float(n) for n in range(ROUNDS)]
            found = await until(lambda: rewards(len(values)))
            assert dying.broken > 20
            assert sorted(r["value"] for r in found) == sorted(values)
            assert len((await control.ask("GET", "/audit?action=label"))[1]["entries"]) == ROUNDS
    finally:
        await proxy.stop()
        await control.stop()
        await engine.stop()
