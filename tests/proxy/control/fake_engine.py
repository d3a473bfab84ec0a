"""vLLM's admin routes and a one-token completion, over real HTTP: the network boundary that these tests stop at."""

from __future__ import annotations

import json
from pathlib import Path

from aiohttp import web
from tests.support.sleeping import Sleeping


class FakeEngine:
    def __init__(self, base: str = "tiny") -> None:
        self.base = base
        self.adapters: dict[str, str] = {}
        """Name → path it was loaded from, which ``/v1/models`` tells as ``root``."""
        self.keep_all = False
        """Unloading answers 500."""
        self.refuse: dict[str, int] = {}
        """Adapter → status that loading it is answered with."""
        self.up = True
        self.calls: list[tuple[str, str]] = []
        self.sleeping = Sleeping()
        self.url = ""
        self._runner: web.AppRunner | None = None
        self._port = 0

    async def start(self) -> FakeEngine:
        app = web.Application()
        self.sleeping.add(app)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/load_lora_adapter", self._load)
        app.router.add_post("/v1/unload_lora_adapter", self._unload)
        app.router.add_post("/v1/completions", self._complete)
        self._runner = web.AppRunner(app, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self._port}"
        return self

    async def stop(self) -> None:
        if self._runner:
            await self._runner.cleanup()

    def restart(self) -> None:
        self.adapters.clear()

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.up else 503)

    async def _models(self, _: web.Request) -> web.Response:
        listed = [{"id": self.base, "root": "/models/tiny", "parent": None}]
        listed += [{"id": n, "root": path, "parent": self.base} for n, path in self.adapters.items()]
        return web.json_response({"object": "list", "data": listed})

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        name, path = body["lora_name"], body["lora_path"]
        self.calls.append(("load", name))
        if name in self.refuse:
            return web.json_response({"error": {"message": "no"}}, status=self.refuse[name])
        if name in self.adapters:
            return web.json_response({"error": {"message": "already loaded"}}, status=400)
        if not (Path(path) / "adapter_config.json").exists():
            return web.json_response({"error": {"message": "No adapter found"}}, status=404)
        self.adapters[name] = path
        return web.Response(text="Success")

    async def _unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        self.calls.append(("unload", name))
        if self.keep_all:
            return web.json_response({"error": {"message": "no"}}, status=500)
        if self.adapters.pop(name, None) is None:
            return web.json_response({"error": {"message": "not found"}}, status=404)
        return web.Response(text="Success")

    async def _complete(self, request: web.Request) -> web.Response:
        await self.sleeping.wait()
        name = (await request.json())["model"]
        self.calls.append(("warm", name))
        if name != self.base and name not in self.adapters:
            return web.json_response({"error": {"message": "no such model"}}, status=404)
        return web.json_response({"choices": [{"text": "x"}]})


def write_adapter(folder: Path, rank: int = 8, fill: int = 0, **config: object) -> Path:
    """A folder that looks like PEFT's: one float32 tensor of ``rank`` × 4."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank, "peft_type": "LORA", "bias": "none", **config}))
    data = bytes([fill, 0, 0, 0]) * (rank * 4)
    header = json.dumps(
        {"a.lora_A.weight": {"dtype": "F32", "shape": [rank, 4], "data_offsets": [0, len(data)]}}
    ).encode()
    (folder / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    return folder
