"""The proxy under load: started, killed whole, and asked whether it is there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import tomli_w
from tests.support import slipstream
from tests.support.fake_engine import FakeEngine

API = "/slipstream/v1"
PATIENCE = 300.0
STANDSTILL_S = 1.5


def children(pid: int) -> dict[int, str]:
    """Pid → command line of a process's children."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                if int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) == pid:
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


class Running:
    def __init__(self, folder: Path, engine: FakeEngine, seed: int) -> None:
        self.folder, self.engine, self.rng = folder, engine, random.Random(seed)
        self.data = folder / "data"
        self.refused = 0
        self.kills = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.session: aiohttp.ClientSession

    def settings(self) -> dict[str, dict[str, object] | str]:
        """What stands in the proxy's configuration file."""
        return {
            "data_dir": str(self.data),
            "gate": {"holdout": 0.0},
            "store": {"sql_timeout": 60.0},  # a machine that is busy with other work is no fault of the proxy
            "engine": {"urls": [self.engine.url], "name": "tiny", "health_interval": 0.2},
            "proxy": {"port": 0, "workers": 2, "segment_bytes": 65536, "drain_timeout": 5.0},
        }

    async def start(self, env: dict[str, str] | None = None, flags: tuple[str, ...] = ()) -> None:
        """Until it is ready; a start that is refused is counted, and tried again."""
        for _ in range(3):
            if await self.try_start(env, flags):
                return
            self.refused += 1
            await self.kill_all()
        raise AssertionError(self.log())

    async def try_start(self, env: dict[str, str] | None = None, flags: tuple[str, ...] = ()) -> bool:
        """Whether it became ready."""
        config = self.folder / "slipstream.toml"
        config.write_text(tomli_w.dumps(self.settings()))
        with (self.folder / "proxy.log").open("ab") as log:
            self.process = subprocess.Popen(
                slipstream("proxy", "--config", str(config), *flags), stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True, env={**os.environ, **(env or {})},
            )  # fmt: skip
        self.kills = 0
        return await self.ready()

    async def stand_still(self, pids: Sequence[int], seconds: float = STANDSTILL_S) -> None:
        """These processes are stopped for so long, and go on."""
        for sent in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, sent)
            await asyncio.sleep(seconds if sent == signal.SIGSTOP else 0.0)

    def log(self) -> str:
        return (self.folder / "proxy.log").read_text()[-4000:]

    async def ready(self) -> bool:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            assert self.process is not None
            if self.process.poll() is not None:
                return False
            with contextlib.suppress(OSError, ValueError, aiohttp.ClientError, TimeoutError):
                told = json.loads((self.data / "proxy.json").read_text())
                if told["pid"] == self.process.pid:
                    self.url = told["url"]
                    async with self.session.get(self.url + "/readyz") as r, self.session.get(self.url + API + "/status") as s:  # fmt: skip
                        if r.status == s.status == 200:
                            return True
            await asyncio.sleep(0.03)
        return False

    def child(self, of: str) -> int | None:
        """Pid of a worker (``data``) or of the control plane (``control``)."""
        assert self.process is not None
        pids = [p for p, line in children(self.process.pid).items() if f".{of}.worker" in line]
        return self.rng.choice(pids) if pids else None

    async def kill_all(self) -> None:
        """Everything at once, as when the machine's power goes, but for what the kernel holds."""
        if self.process is None:
            return
        pids = [self.process.pid, *children(self.process.pid)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        end = time.monotonic() + PATIENCE
        while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < end:
            await asyncio.sleep(0.01)
        self.process = None

    async def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self.process.wait, 60)
        await self.kill_all()

    async def said_lost(self) -> int:
        """Calls that the proxy says it could not keep."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with self.session.get(self.url + "/metrics") as r:
                    for line in (await r.text()).splitlines():
                        if line.startswith("slipstream_capture_lost_total"):
                            return int(float(line.split()[-1]))
                return 0
            await asyncio.sleep(0.05)
        raise AssertionError("no metrics")
