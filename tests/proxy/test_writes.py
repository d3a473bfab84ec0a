"""Rewards, end marks and notes, while the control plane dies between writing and answering."""

from __future__ import annotations

import asyncio
import random

import aiohttp
from aiohttp import web
from tests.support.dataplane import Proxy
from tests.support.fake_engine import LoraEngine
from tests.support.plane import API, Plane, make_config, until

from slipstream_proxy.control.api.app import make_app
from slipstream_proxy.control.api.plugins import ControlPlugins
from slipstream_proxy.control.deps import Deps
from slipstream_proxy.control.run import worker
from slipstream_proxy.data.engines import control_link

ROUNDS, POSTS = 4, 25
E1 = "episodes/e1"
NOTED = ("/rewards", "/done", "/comments", "/annotations")


class Dying:
    """Breaks the line so often in place of an answer, after all was done."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.broken = rng, 0

    def app(self, deps: Deps, parts: ControlPlugins) -> web.Application:
        app = make_app(deps, parts)
        app.on_response_prepare.append(self._die)
        return app

    async def _die(self, request: web.Request, _: web.StreamResponse) -> None:
        if request.method == "POST" and request.path.endswith(NOTED) and self.rng.random() < 0.4:
            self.broken += 1
            assert request.transport is not None
            request.transport.abort()


async def test_what_is_sent_again_is_stored_once(tmp_path, monkeypatch):
    """Also where another start of the control plane, with another segment of the spool, gets the second sending."""
    dying = Dying(random.Random(1))
    monkeypatch.setattr(control_link, "RESTART_RETRY_S", 0.01)
    monkeypatch.setattr(worker, "make_app", dying.app)
    engine = await LoraEngine().start()
    config = make_config(tmp_path, engine)
    control = await Plane(config, engine).start()
    await control.control.serve()
    proxy = await Proxy(config).start()
    try:
        async with aiohttp.ClientSession() as session:

            async def post(path: str, body: object) -> None:
                async with session.post(f"{proxy.url}{API}/{path}", json=body) as r:
                    assert r.status == 200, await r.text()

            async def known() -> bool:
                return (await control.ask("GET", f"/{E1}"))[0] == 200

            async def rewards(least: int) -> list[dict[str, object]]:
                _, body = await control.ask("GET", "/episodes/e1")
                return body["rewards"] if len(body.get("rewards", ())) >= least else []

            await control.call("e1")
            await until(known)
            for n in range(ROUNDS):
                some = [post(f"{E1}/rewards", {"name": "small", "value": n + i / POSTS}) for i in range(POSTS)]
                some += [post(f"{E1}/comments", {"text": f"said {n}.{i}"}) for i in range(5)]
                some += [post("annotations", {"text": f"note {n}.{i}"}) for i in range(5)]
                by_hand = post(f"{E1}/rewards", {"value": n, "source": "human"})
                sending = asyncio.gather(*some, post(f"{E1}/done", {}), by_hand)
                await until(lambda n=n: dying.broken > 8 * n)
                await control.again()
                await control.control.serve()
                await sending
            values = [n + i / POSTS for n in range(ROUNDS) for i in range(POSTS)] + [float(n) for n in range(ROUNDS)]
            found = await until(lambda: rewards(len(values)))
            assert dying.broken > 20
            assert sorted(r["value"] for r in found) == sorted(values)
            for action, count in (("label", ROUNDS), ("comment", 5 * ROUNDS), ("annotate", 5 * ROUNDS)):
                assert len((await control.ask("GET", f"/audit?action={action}"))[1]["entries"]) == count
            notes = (await control.ask("GET", "/annotations"))[1]["annotations"]
            said = (await control.ask("GET", f"/{E1}/comments"))[1]["comments"]
            numbers = [f"{n}.{i}" for n in range(ROUNDS) for i in range(5)]
            assert sorted(note["text"] for note in notes) == [f"note {number}" for number in numbers]
            assert sorted(one["text"] for one in said) == [f"said {number}" for number in numbers]
    finally:
        await proxy.stop()
        await control.stop()
        await engine.stop()
