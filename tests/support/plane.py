"""A control plane as it runs, in the test's own process."""

from __future__ import annotations

import json
from pathlib import Path

from aiohttp.test_utils import TestClient, TestServer
from tests.support import until
from tests.support.adapters import write_adapter
from tests.support.fake_engine import LoraEngine

from slipstream.config import Config
from slipstream_proxy.control.api.app import REQUEST_LINE, make_app
from slipstream_proxy.control.run.worker import ControlPlane
from slipstream_proxy.log.ids import new_id
from slipstream_proxy.log.records import CallHead, Kind
from slipstream_proxy.log.spool import SpoolWriter

ALL = ["inference", "reward", "judge", "trainer", "admin"]
API = "/slipstream/v1"


class Plane:
    """A control plane as it runs, a data-plane's spool writer beside it, and a client as the data plane would forward one."""

    def __init__(self, config: Config, engine: LoraEngine) -> None:
        self.config = config
        self.engine = engine
        self.control = ControlPlane(config)
        self.port: int | None = None
        """Where the API is to be; None: anywhere."""

    async def start(self) -> Plane:
        self.deps = await self.control.start()
        server = TestServer(make_app(self.deps, self.control.plugins), port=self.port)
        await server.start_server(
            shutdown_timeout=1.0, max_line_size=REQUEST_LINE
        )  # a page that is open does not hold up its end
        self.client = TestClient(server)
        self.writer = SpoolWriter(
            self.config.spool_dir, "data0", segment_bytes=self.config.proxy.segment_bytes, durability="process"
        )
        return self

    async def stop(self) -> None:
        await self.writer.close()
        await self.client.close()
        await self.control.stop()

    async def again(self) -> Plane:
        """Stopped and started anew on the same folder."""
        await self.stop()
        self.control = ControlPlane(self.config)
        return await self.start()

    def as_(self, key: str = "-", scopes=None) -> dict[str, str]:
        return {"x-slipstream-auth": json.dumps({"key": key, "scopes": ALL if scopes is None else scopes})}

    async def ask(self, method: str, path: str, body=None, *, key: str = "-", scopes=None, **kwargs):
        r = await self.client.request(method, API + path, json=body, headers=self.as_(key, scopes), **kwargs)
        text = await r.text()
        return r.status, json.loads(
            text
        ) if text and "json" in r.content_type and "ndjson" not in r.content_type else text

    async def call(
        self,
        episode: str = "e1",
        *,
        key: str = "-",
        task: str | None = "t1",
        adapter: str = "tiny",
        text: str = "hello",
        done: bool = False,
        request: dict | None = None,
        reply: str = "hi",
        message: dict | None = None,
        answer: dict | None = None,
        **head,
    ) -> str:
        """Spool a chat call as a data plane would, with ids and log-probabilities."""
        request = {
            "model": "gpt-4o",
            "messages": [{"role": "user", "content": text}],
            "temperature": 1.0,
            **(request or {}),
        }
        answer = {
            **{"id": "c", "object": "chat.completion", "model": adapter, "prompt_token_ids": [1, 2, 3],
            "choices": [{"index": 0, "finish_reason": "stop", "message": message or {"role": "assistant", "content": reply}, "token_ids": [4, 5],
                         "logprobs": {"content": [{"token": "h", "logprob": -0.5, "bytes": [104], "top_logprobs": []},
                                                  {"token": "i", "logprob": -0.25, "bytes": [105], "top_logprobs": []}]}}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}, **(answer or {}),
        }  # fmt: skip
        now = self.deps.now()
        fields = {
            "id": new_id(), "key": key, "episode": episode, "task": task, "split": "train", "tags": {}, "model": "gpt-4o", "trained": self.config.model_name,
            "adapter": adapter, "arm": "live", "pin": "control", "dialect": "chat", "stream": False, "at": now, "seconds": 0.01, "first_byte": 0.01,
            "status": 200, "outcome": "ok", "upstream": self.engine.url, "done": done, "grouped": task is not None,
        }  # fmt: skip
        h = CallHead(**{**fields, **head})
        assert await self.writer.put(Kind.CALL, h, json.dumps(request).encode(), json.dumps(answer).encode())
        return h.id

    async def seen(self, episode: str = "e1", **query):
        """The episode once it is in the store."""

        async def look():
            status, body = await self.ask("GET", f"/episodes/{episode}", params=query)
            return body if status == 200 else None

        return await until(look)


def make_config(tmp_path: Path, fake: LoraEngine, **sections) -> Config:
    tree = {
        "data_dir": str(tmp_path / "data"),
        "engine": {"urls": [fake.url], "name": "tiny", "health_interval": 0.1},
        "gate": {"holdout": 0.0},
        "proxy": {"durability": "process"},
    }
    for name, section in sections.items():
        tree[name] = {**tree.get(name, {}), **section}  # type: ignore[dict-item]
    return Config.model_validate(tree)


async def register(plane, n: int, *, wait: float = 30, rank: int = 8, fill: int = 0, **extra):
    write_adapter(plane.config.adapters_dir / f"tiny@{n}", rank, fill or n)
    return await plane.ask("POST", f"/adapters?wait={wait}", {"path": f"tiny@{n}", **extra})


async def state(plane, n: int) -> dict:
    _, body = await plane.ask("GET", "/adapters")
    return next(a for a in body["adapters"] if a["version"] == n)


SHARED = {"engine": {"share": True}}


def take(plane, worker="t", seconds=60.0):
    return plane.ask("POST", "/engine/hold", {"worker": worker, "seconds": seconds})


def give(plane, worker="t"):
    return plane.ask("POST", "/engine/release", {"worker": worker})
