"""Child processes as one: each log line prefixed, restarts with backoff, one signal ends all.

A child is the leader of its own process group, so that its own children (vLLM's engine core) end with it, and it gets SIGTERM from
the kernel when the supervisor itself is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from slipstream.operate.process import die_with_parent

BACKOFF_SECONDS = (0.5, 1, 2, 5, 10, 30)
LINE_BYTES = 2**20
STEADY_SECONDS = 60.0
"""A child that ran this long starts with a fresh backoff."""
HOPELESS = (2, 127)
"""Exit codes that another start does not better: what was asked for cannot be; there is no such program."""


def reap_group(pid: int, sig: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, sig)


@dataclass(slots=True)
class Child:
    name: str
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    grace: float = 30.0
    """Seconds between SIGTERM and SIGKILL."""
    restart: bool = True
    max_failures: int = 6
    """Failed starts in a row (none STEADY_SECONDS long) after which it is given up."""
    process: asyncio.subprocess.Process | None = None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=30))
    starts: int = 0
    exit_code: int | None = None
    gave_up: bool = False


class Supervisor:
    """``start`` children as they become possible, then ``wait`` for the signal that ends all."""

    def __init__(self, echo: Callable[[str, str], None] | None = None) -> None:
        self.children: list[Child] = []
        self.stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._echo = _to_stderr if echo is None else echo

    def handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for sig in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(sig, self.stopping.set)

    def start(self, child: Child) -> Child:
        self.children.append(child)
        self._tasks.append(asyncio.create_task(self._keep(child), name=child.name))
        return child

    async def until(self, child: Child, ready: Callable[[], Awaitable[bool]], timeout: float) -> bool:
        """Wait until ``ready``; False when the child ended, the time is over or everything is to end."""
        end = time.monotonic() + timeout
        while time.monotonic() < end and not self.stopping.is_set() and not child.gave_up:
            if not child.restart and child.exit_code is not None:
                return False
            if await ready():
                return True
            await asyncio.sleep(0.2)
        return False

    async def wait(self) -> int:
        """Until a signal, or until a child is given up. Returns the exit code: 1 when something failed for good."""
        await self.stopping.wait()
        return 1 if any(c.gave_up for c in self.children) else 0

    async def stop(self) -> None:
        """End all, last started first, so that nobody loses what it depends on."""
        self.stopping.set()
        for child in reversed(self.children):
            await self._end(child)
        while waiting := [t for t in self._tasks if not t.done()]:
            # a child that was just being started when the signal came was not there to be ended yet
            await asyncio.wait(waiting, timeout=0.2)
            for child in reversed(self.children):
                await self._end(child)

    async def _keep(self, child: Child) -> None:
        failures = 0
        while not self.stopping.is_set():
            began = time.monotonic()
            await self._run_once(child)
            if self.stopping.is_set() or not child.restart:
                return
            failures = 0 if time.monotonic() - began > STEADY_SECONDS else failures + 1
            if child.exit_code == 0:
                return
            if failures >= child.max_failures or child.exit_code in HOPELESS:
                times = "1 failed start" if failures == 1 else f"{failures} failed starts"
                self._echo(child.name, f"given up: exit code {child.exit_code} after {times}")
                child.gave_up = True
                self.stopping.set()
                return
            pause = BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS)) - 1] if failures else BACKOFF_SECONDS[0]
            self._echo(child.name, f"ended with exit code {child.exit_code}; started again in {pause} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), pause)

    async def _run_once(self, child: Child) -> None:
        child.starts += 1
        child.exit_code = None
        # a pipe of our own: with asyncio's, wait() would last until every process that inherited it has ended
        ours, theirs = os.pipe()
        output = asyncio.StreamReader(limit=LINE_BYTES)
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), os.fdopen(ours, "rb", 0)
        )
        try:
            process = await asyncio.create_subprocess_exec(
                *child.argv, env={**os.environ, **child.env}, stdin=asyncio.subprocess.DEVNULL, stdout=theirs,
                stderr=asyncio.subprocess.STDOUT, start_new_session=True, preexec_fn=die_with_parent,
            )  # fmt: skip
        except OSError as e:
            pipe.close()
            self._echo(child.name, f"{child.argv[0]} can't be run: {e.strerror}")
            child.exit_code = 127
            return
        finally:
            os.close(theirs)
        child.process = process
        reading = asyncio.create_task(self._read(child, output))
        code = await process.wait()
        reap_group(process.pid, signal.SIGKILL)  # what it left behind holds ports and memory
        # an orphan outside the group may hold the pipe open for ever: what is there already is read, no more
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reading, 1.0)
        pipe.close()
        child.exit_code = code  # last, so that who sees it sees the last words too

    async def _read(self, child: Child, output: asyncio.StreamReader) -> None:
        while True:
            try:
                raw = await output.readline()
            except ValueError:  # a line over the limit: its first part is dropped
                continue
            if not raw:
                return
            line = raw.decode(errors="replace").rstrip()
            child.tail.append(line)
            self._echo(child.name, line)

    async def _end(self, child: Child) -> None:
        process = child.process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), child.grace)
        except TimeoutError:
            self._echo(child.name, f"did not end within {child.grace:g} s: killed")
        reap_group(process.pid, signal.SIGKILL)


def _to_stderr(name: str, line: str) -> None:
    sys.stderr.write(f"{name:8} | {line}\n")
    sys.stderr.flush()
