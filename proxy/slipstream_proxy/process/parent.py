"""The proxy's parent process: it binds the socket, and keeps the control plane and the workers."""

from __future__ import annotations

import asyncio
import fcntl
import ipaddress
import logging
import os
import re
import signal
import socket
import sys
from pathlib import Path

from slipstream.config import CONFIG_ENV, Config
from slipstream.errors import StartError
from slipstream.shared.backoff import rest
from slipstream.shared.processes.health import answers
from slipstream.shared.processes.proxy_file import PROXY_FILE_NAME, announce_proxy
from slipstream.shared.processes.supervisor import Child, Supervisor
from slipstream_proxy.keys import Keys
from slipstream_proxy.process.settings_file import LOOK_INTERVAL_S, TOLD_FILE_NAME, SettingsFile, SettingsWatch

log = logging.getLogger(__name__)
START_SECONDS = 60.0
TCP_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", 25)
UNSENT_BYTES = 2**16
"""That the kernel takes for a client which does not read. It would take megabytes, and the worker holds what was
relayed until the call is recorded: 200 clients that read a byte a second made a worker hold 549 MB without this, and
165 with it."""
ANNOUNCE_EVERY = 1.0
"""Seconds between tries to write down where the proxy is."""


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_bind(config: Config, *, keyed: bool) -> None:
    """Raises ``StartError`` for a socket that is open to the world where no key is asked for."""
    if not keyed and not is_loopback(config.proxy.host):
        raise StartError(
            f"proxy.host is {config.proxy.host} and there are no API keys: make one with "
            "`slipstream keys add NAME`, or bind to 127.0.0.1"
        )


def bind(host: str, port: int) -> socket.socket:
    """Raises ``StartError``: the port is in use, the address is not this machine's."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
    except OSError as e:
        raise StartError(f"cannot bind {host}:{port}: {e.strerror or e}") from e
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform == "linux":  # connections have it from their listener
            sock.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        sock.bind(address)
        sock.listen(4096)
    except OSError as e:
        sock.close()
        raise StartError(f"cannot bind {host}:{port}: {e.strerror or e}") from e
    return sock


NEWER_STORE_EXIT_CODE = 3
"""Of a control plane whose store a newer program wrote: without its adapters all calls would meet the base model."""


def lock(root: Path) -> int:
    """Own the data folder as long as the file stays open. Raises ``StartError``."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        fd = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as e:
        moved = isinstance(e, FileExistsError | NotADirectoryError | IsADirectoryError)
        fix = "move away what is there" if moved else "run this as its owner"
        text = f"cannot use data_dir {root}: {e.strerror} ({e.filename}): {fix}, or set another data_dir"
        raise StartError(text) from e
    for name, is_folder in (("spool", True), ("metrics", True), ("adapters", True), ("control.sock", False)):
        if (path := root / name).exists() and path.is_dir() is not is_folder:
            os.close(fd)
            kind = "file where a folder" if is_folder else "folder where a socket"
            raise StartError(f"cannot use data_dir {root}: {path} is a {kind} has to be: move it away")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        os.close(fd)
        raise StartError(f"data_dir {root} is used by another proxy") from e
    return fd


class Parent:
    """Control plane and workers under one supervisor. It starts again what ends, and ends all of them in order."""

    def __init__(
        self, config: Config, sock: socket.socket, *, keyed: bool = False, file: SettingsFile | None = None
    ) -> None:
        """``keyed``: every call needs a key, also in workers that start after the last key is revoked. ``file``: what
        ``config`` was read from, if it may change.
        """
        self.config = config
        self.settings = SettingsWatch(file, config) if file is not None else None
        self.sock = sock
        self.supervisor = Supervisor(self._say)
        env = {CONFIG_ENV: config.model_dump_json(), "SLIPSTREAM_KEYED": "1" if keyed else "0"}
        fd = sock.fileno()
        # SIGKILL: the store's file is locked as long as the control plane lives, and a new proxy may be waiting for it
        self.control = self._child("control plane", env, "slipstream_proxy.control.run.worker", dies_by=signal.SIGKILL)
        self.tenants = self._child(
            "tenants", env, "slipstream_proxy.control.run.tenants", dies_by=signal.SIGKILL, essential=False
        )
        self.workers = [
            self._child(f"worker {n}", env, "slipstream_proxy.data.worker", str(n), str(fd), fds=(fd,), stage="workers")
            for n in range(config.proxy.workers)
        ]

    def _child(
        self,
        name: str,
        env: dict[str, str],
        *command: str,
        dies_by: signal.Signals = signal.SIGTERM,
        fds: tuple[int, ...] = (),
        stage: str | None = None,
        essential: bool = True,
    ) -> Child:
        """Kept for ever: a proxy without one of its parts serves nobody. It logs by itself."""
        argv = [sys.executable, "-P", "-m", *command]  # no file of the folder it starts in is taken for a library
        grace = self.config.proxy.drain_timeout + 15.0
        return Child(
            name,
            argv,
            env,
            grace,
            max_failures=None,
            hopeless=(NEWER_STORE_EXIT_CODE,),
            pauses=(0.2, 10.0),
            dies_by=dies_by,
            fds=fds,
            stage=stage,
            essential=essential,
            capture=False,
        )

    def _say(self, name: str, line: str) -> None:
        """A part that was asked to end and did so is no error, whoever asked it."""
        ended = next((c.exit_code for c in self.supervisor.children if c.name == name), None)
        log.log(logging.INFO if ended in (0, -signal.SIGTERM) else logging.ERROR, "%s %s", name, line)

    @property
    def url(self) -> str:
        host, port = self.sock.getsockname()[:2]
        shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - where to reach it
        return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"

    async def run(self) -> bool:
        """Serve until SIGTERM or SIGINT. Returns whether all children ended by themselves. Raises ``StartError``."""
        self.supervisor.handle_signals()
        self._clear_metrics()
        for name in ("hangs", TOLD_FILE_NAME):
            (self.config.root / name).unlink(missing_ok=True)
        if self.settings is not None:
            self.supervisor.watch(self._follow(self.settings))
        self.supervisor.watch(self._tend_tenants())
        try:
            for child in (self.control, *self.workers):
                self.supervisor.start(child)
            await self._wait_up()
            await self.supervisor.wait()
        finally:
            # workers first, so that the control plane ingests what they drained
            await self.supervisor.stop()
            (self.config.root / PROXY_FILE_NAME).unlink(missing_ok=True)
        fine = (0, -signal.SIGTERM, None)  # a child that was just being started may not have its handler yet
        return all(c.exit_code in fine for c in (*self.workers, self.tenants, self.control))

    async def _tend_tenants(self) -> None:
        """Keep their control planes once there is a tenant: without one nothing runs for them."""
        keys = Keys(self.config.keys_file, serving=True)
        while not (self._settled().tenants or keys.tenants()):
            await asyncio.sleep(LOOK_INTERVAL_S)
        self.supervisor.start(self.tenants)
        self.supervisor.ends_last(self.tenants)

    def _settled(self) -> Config:
        return self.config if self.settings is None else self.settings.config

    async def _follow(self, settings: SettingsWatch) -> None:
        """Hand on what changes in the settings file, until all end."""
        asked = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, asked.set)
        while True:
            told = settings.look(asked=await rest(LOOK_INTERVAL_S, asked))
            asked.clear()
            if told is None:
                continue
            for child in (self.control, self.tenants, *self.workers):
                child.env[CONFIG_ENV] = settings.config.model_dump_json()
            while True:
                try:
                    told.write(self.config.root)
                    break
                except OSError as e:
                    log.warning("changed settings cannot be handed on: %s", e)
                    await asyncio.sleep(ANNOUNCE_EVERY)

    def _clear_metrics(self) -> None:
        """An earlier run's; but what was lost stays lost."""
        for path in (self.config.root / "metrics").glob("*"):
            if not re.fullmatch(r"lost\d+", path.name):
                path.unlink(missing_ok=True)

    async def _wait_up(self) -> None:
        """Until the data plane answers."""
        if await self.supervisor.until(self.workers[0], self._answers, START_SECONDS):
            print(f"slipstream proxy on {self.url}", flush=True)
            await self._announce()
        elif not self.supervisor.stopping.is_set():
            raise StartError("the data plane did not start")

    async def _answers(self) -> bool:
        dead = next((w for w in self.workers if w.exit_code is not None or w.starts > 1), None)
        if dead is not None:
            raise StartError(f"the data plane did not start ({dead.name} ended)")
        return await answers(f"{self.url}/healthz")

    async def _announce(self) -> None:
        """Write down where it is. Agents are served meanwhile, should the disk be full."""
        told = False
        while not self.supervisor.stopping.is_set():
            try:
                announce_proxy(self.config.root, self.url)
                return
            except OSError as e:
                if not told:
                    text = "%s cannot be written, so commands find this proxy by --url only: %s"
                    log.warning(text, self.config.root / PROXY_FILE_NAME, e)
                told = True
            await rest(ANNOUNCE_EVERY, self.supervisor.stopping)
