"""Many at once, again while the proxy is away, and the first refusal ends it."""

from __future__ import annotations

import pytest
from tests.support.server import Reply, Seen, Server

from slipstream.client import AsyncClient
from slipstream.errors import ApiError
from slipstream.operate import upload as module
from slipstream.operate.logs import Entry
from slipstream.operate.upload import upload


def entries(count: int, *, whole: bool = False) -> list[Entry]:
    return [
        Entry(f"f:{i}", i / count, [{"id": f"e{i}"}, {"id": f"e{i}", "more": 1}], whole=whole) for i in range(count)
    ]


async def test_all_of_them_each_in_its_order(server: Server) -> None:
    server.on("POST", "/import", {})
    async with AsyncClient(server.url) as client:
        assert await upload(client, iter(entries(50))) == 50
    seen = [s.json for s in server.asked("POST", "/slipstream/v1/import")]
    assert len(seen) == 100
    for i in range(50):
        assert ["more" in body for body in seen if body["id"] == f"e{i}"] == [False, True]


async def test_a_proxy_that_is_away_for_a_moment(server: Server) -> None:
    tries: dict[str, int] = {}

    def answer(seen: Seen) -> Reply:
        name = seen.json["id"]
        tries[name] = tries.get(name, 0) + 1
        return Reply({"error": {"type": "x", "message": "away"}}, 503) if tries[name] == 1 else Reply({})

    server.routes["POST", "/import/episode"] = answer
    async with AsyncClient(server.url) as client:
        assert await upload(client, iter(entries(5, whole=True))) == 5


async def test_one_that_stays_away_ends_it(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.3)
    server.on("POST", "/import", {"error": {"type": "x", "message": "away"}}, 503)
    async with AsyncClient(server.url) as client:
        with pytest.raises(ApiError, match="f:[0-9]+: away"):
            await upload(client, iter(entries(5)))
