"""An engine whose answers cost nothing: what it takes must not be what is measured."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import cast

MODELS = {"object": "list", "data": [{"id": "m", "root": "m", "max_model_len": 4096}]}


def answer(body: bytes, kind: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(body), body)


MODELS_ANSWER = answer(json.dumps(MODELS).encode())


async def serve(port: int, replied: Callable[[bytes], bytes]) -> None:
    """Without end. ``replied``: a call's body → the whole answer. Anything else is asked for the models."""

    class Connection(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport, self.data = cast(asyncio.Transport, transport), b""

        def data_received(self, data: bytes) -> None:
            self.data += data
            end = self.data.find(b"\r\n\r\n") + 4
            head = self.data[:end].lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or b"0")
            if end < 4 or len(self.data) < end + length:
                return
            body, self.data = self.data[end : end + length], self.data[end + length :]
            self.transport.write(replied(body) if head.startswith(b"post /v1/") else MODELS_ANSWER)

    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()
