"""An engine behind a password: calls, relays and questions are sent it, and nothing shows it."""

from __future__ import annotations

import aiohttp
from tests.support.dataplane import ASK

SECRET = "s3cr3t"


async def test_calls_and_relays_carry_it_and_metrics_do_not(start, serve):
    met = []

    async def speak(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
        await reader.readexactly(int(length or 0))
        met.append(head)
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{"data":[]}')
        await writer.drain()

    url = await serve(speak)
    proxy = await start(engine={"urls": [url.replace("://", f"://user:{SECRET}@")]})
    async with aiohttp.ClientSession() as session:
        for path in ("/v1/chat/completions", "/v1/embeddings"):
            async with session.post(proxy.url + path, json=ASK) as reply:
                assert reply.status == 200
        async with session.get(proxy.url + "/metrics") as reply:
            assert SECRET not in await reply.text()
    assert len(met) >= 2 and all(b"basic dxnlcjpzm2nym3q=" in head.lower() for head in met)
    assert SECRET not in str([frame.head for frame in await proxy.record()])
