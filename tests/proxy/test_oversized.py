"""A request whose body is too large is told in `status`, whichever parser has read its head."""

from __future__ import annotations

import asyncio

import aiohttp

from slipstream_proxy.data.observe.metrics import OVERSIZED_STATUS, WorkerCounts


async def test_a_body_that_is_too_large_is_counted_as_turned_away(start, tmp_path) -> None:
    proxy = await start(proxy={"body_limit": 2000})
    async with aiohttp.ClientSession() as session:
        for path in ("/v1/chat/completions", "/v1/embeddings"):
            async with session.post(proxy.url + path, data=b"x" * 3000) as reply:
                assert reply.status == OVERSIZED_STATUS
    file = tmp_path / "metrics" / "data0.json"
    await asyncio.to_thread(proxy.plane.metrics.save, file)
    assert WorkerCounts(file.parent).turned_away[OVERSIZED_STATUS][0] == 2
