"""The proxy's parent process: binds, starts the control plane and the workers, starts them again when they die, ends them in order."""

from __future__ import annotations

import fcntl
import ipaddress
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from slipstream.config import Config
from slipstream.errors import StartError

log = logging.getLogger(__name__)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
        sock.bind(address)
        sock.listen(4096)
    except OSError as e:
        sock.close()
        raise StartError(f"cannot bind {host}:{port}: {e.strerror or e}") from e
    return sock


def lock(root: Path) -> int:
    """Own the data folder as long as the file stays open. Raises ``StartError``."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        fd = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise StartError(f"cannot use data_dir {root}: {e.strerror}") from e
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        os.close(fd)
        raise StartError(f"data_dir {root} is used by another proxy") from e
    return fd


@dataclass(slots=True)
class Child:
    """A process that is kept alive, with a pause that doubles while it dies young."""

    name: str
    command: list[str]
    fds: tuple[int, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    pause: float = 0.2
    again: float = 0.0

    def start(self, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            self.command, env=env, pass_fds=self.fds, stdin=subprocess.DEVNULL, start_new_session=True
        )
        self.started = time.monotonic()

    def watch(self, env: dict[str, str]) -> None:
        now = time.monotonic()
        if self.process is not None and (code := self.process.poll()) is not None:
            self.pause = 0.2 if now - self.started > 30 else min(self.pause * 2, 10.0)
            log.error("%s ended with %s; started again in %.1f s", self.name, code, self.pause)
            self.process = None
            self.again = now + self.pause
        if self.process is None and now >= self.again:
            self.start(env)

    def stop(self, timeout: float) -> None:
        """SIGTERM, then SIGKILL."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            log.error("%s did not end within %.0f s and is killed", self.name, timeout)
            self.process.kill()
            self.process.wait()


class Parent:
    def __init__(self, config: Config, sock: socket.socket, *, keyed: bool = False) -> None:
        """``keyed``: every call needs a key, also of workers that are started when the last one is revoked: the socket may be open to the world."""
        self.config = config
        self.sock = sock
        self.env = {
            **os.environ,
            "SLIPSTREAM_CONFIG_JSON": config.model_dump_json(),
            "SLIPSTREAM_PARENT": str(os.getpid()),
            "SLIPSTREAM_KEYED": "1" if keyed else "0",
        }
        run = [sys.executable, "-m"]
        fd = sock.fileno()
        self.control = Child("control plane", [*run, "slipstream_proxy.control.worker"])
        self.workers = [
            Child(f"worker {n}", [*run, "slipstream_proxy.data.worker", str(n), str(fd)], (fd,))
            for n in range(config.proxy.workers)
        ]
        self.stopping = False

    @property
    def url(self) -> str:
        host, port = self.sock.getsockname()[:2]
        shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - where to reach it
        return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"

    def start(self) -> None:
        shutil.rmtree(self.config.root / "metrics", ignore_errors=True)  # of an earlier run
        for child in (self.control, *self.workers):
            child.start(self.env)

    def wait_up(self, timeout: float = 60.0) -> None:
        """Until the data plane answers. Raises ``StartError``."""
        until = time.monotonic() + timeout
        while not self.stopping:
            try:
                with urllib.request.urlopen(f"{self.url}/healthz", timeout=2.0):  # noqa: S310 - our own http URL
                    return
            except (urllib.error.URLError, OSError):
                pass
            dead = next((w for w in self.workers if w.process is not None and w.process.poll() is not None), None)
            if dead is not None or time.monotonic() > until:
                raise StartError(
                    f"the data plane did not start ({dead.name} ended)" if dead else "the data plane did not start"
                )
            time.sleep(0.05)

    def announce(self) -> None:
        path = self.config.root / "proxy.json"
        temp = path.with_suffix(".tmp")
        temp.write_text(json.dumps({"url": self.url, "pid": os.getpid()}))
        temp.replace(path)
        print(f"slipstream proxy on {self.url}", flush=True)

    def watch(self) -> None:
        """Until SIGTERM or SIGINT."""
        while not self.stopping:
            for child in (self.control, *self.workers):
                child.watch(self.env)
            time.sleep(0.1)

    def stop(self) -> bool:
        """Workers first, so that the control plane ingests what they drained. Returns whether all ended by themselves."""
        timeout = self.config.proxy.drain_timeout + 15.0
        for worker in self.workers:
            if worker.process is not None and worker.process.poll() is None:
                worker.process.terminate()
        for child in (*self.workers, self.control):
            child.stop(timeout)
        (self.config.root / "proxy.json").unlink(missing_ok=True)
        fine = (0, -signal.SIGTERM)  # a child that had just been started again may not have its handler yet
        return all(c.process is None or c.process.returncode in fine for c in (*self.workers, self.control))
