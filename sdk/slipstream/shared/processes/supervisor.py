"""Child processes as one: log lines with a prefix, restarts with backoff, one signal that ends all.

``slipstream up`` keeps engine, proxy, trainer and judge with it, and the proxy's parent its control plane and workers.
A child leads a process group of its own, so that its own children (vLLM's engine core) end with it. The kernel ends it
when the supervisor itself is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from slipstream.shared.backoff import Backoff
from slipstream.shared.processes.process import die_with_parent, how_ended, reap_group
from slipstream.shared.processes.remedies import error_in

FIRST_PAUSE, LAST_PAUSE = 0.5, 30.0
"""Seconds between the end of a child and its next start."""
LINE_BYTES = 2**20
STEADY_SECONDS = 60.0
"""A child that ran this long starts with a fresh backoff."""
NO_PROGRAM = 127
HOPELESS_EXIT_CODES = (2, NO_PROGRAM)
"""Exit codes that another start can't improve: a setting that cannot work, and no such program."""


class ChildState(StrEnum):
    RUNNING = "running"
    RESTARTING = "restarting"
    """It ended, and is started again after a pause."""
    DOWN = "down"
    """Given up."""
    ENDED = "ended"
    """Its work is done, or it was asked to end."""


@dataclass(slots=True)
class Child:
    name: str
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    grace: float = 30.0
    """Seconds between SIGTERM and SIGKILL."""
    restart: bool = True
    slow_start: bool = False
    """It serves a while after its start only, and who started it says when (``Supervisor.answered``)."""
    essential: bool = True
    """All end when it is given up. False (trainer, judge): the others go on without it."""
    may_end: bool = False
    """Exit code 0 means that its work is done. False: it is started again, as after a failure."""
    max_failures: int | None = 6
    """Failed starts in a row (none STEADY_SECONDS long) after which it is given up; None: never."""
    hopeless: tuple[int, ...] = HOPELESS_EXIT_CODES
    """Exit codes after which it is given up at once."""
    pauses: tuple[float, float] | None = None
    """First and longest pause before another start, in seconds; None: FIRST_PAUSE and LAST_PAUSE."""
    stage: str | None = None
    """Neighbours of one stage are ended side by side, not one after the other."""
    dies_by: signal.Signals = signal.SIGTERM
    """What the kernel sends it when the supervisor is killed."""
    fds: tuple[int, ...] = ()
    capture: bool = True
    """False: it writes to our own stdout and stderr."""
    process: asyncio.subprocess.Process | None = None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=300))
    """Last lines of this run. What an engine core died of stands far above the last one."""
    starts: int = 0
    exit_code: int | None = None
    ended_for: str | None = None
    """Why the supervisor ended this run."""
    last_end: str | None = None
    """How the run before this one ended."""
    answers: bool = True
    """False: it runs and does not serve yet. ``Supervisor.answered`` says that it does; each start begins anew."""
    state: ChildState = ChildState.RUNNING
    since: float = field(default_factory=time.time)
    """When ``state`` was entered, in seconds since the epoch."""

    @property
    def gave_up(self) -> bool:
        return self.state is ChildState.DOWN

    def last_words(self) -> str:
        """For one that did not start: the line that says why, else the last line."""
        said = [line.strip() for line in self.tail if line.strip()]
        return error_in(said) or (said or ["it printed nothing"])[-1]

    def end(self) -> str:
        """How this run ended, and the last error of its log if there is one: `ended with exit code 1: OSError: x`."""
        if self.ended_for is not None:
            return f"was ended by `slipstream up`: {self.ended_for}"
        how, error = how_ended(self.exit_code), error_in(self.tail)
        if error is None:
            return how
        return f"{how}: {error[:500]}" if (self.exit_code or 0) > 0 else f"{how}; its last error: {error[:500]}"


class Supervisor:
    """``start`` children as they become possible, then ``wait`` for the signal that ends all."""

    def __init__(
        self,
        echo: Callable[[str, str], None] | None = None,
        changed: Callable[[Sequence[Child]], None] | None = None,
        shown: Callable[[str, str], str | None] | None = None,
    ) -> None:
        """``echo`` gets a child's name and a line: one about the child, or what ``shown`` makes of the child's own.
        ``changed`` gets all children after a state has changed.
        """
        self.children: list[Child] = []
        self.stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._watches: list[asyncio.Task[None]] = []
        self.echo = to_stderr if echo is None else echo
        self._changed = changed or (lambda _: None)
        self._shown = shown or (lambda _name, line: line)

    def handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for sig in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(sig, self.stopping.set)

    def start(self, child: Child) -> Child:
        self.children.append(child)
        self._tasks.append(asyncio.create_task(self._keep(child), name=child.name))
        return child

    def ends_first(self, child: Child) -> None:
        """``stop`` ends it before all that were started so far."""
        self.children.remove(child)
        self.children.append(child)

    def ends_last(self, child: Child) -> None:
        """``stop`` ends it after all that were started so far, whenever it came."""
        self.children.remove(child)
        self.children.insert(0, child)

    def watch(self, watching: Coroutine[None, None, None]) -> None:
        """Run ``watching`` beside the children, until all end."""
        self._watches.append(asyncio.create_task(watching))

    async def until(self, child: Child, ready: Callable[[], Awaitable[bool]], timeout: float) -> bool:
        """Wait until ``ready``. False: the child ended, the time is over, or everything is to end."""
        end = time.monotonic() + timeout
        while time.monotonic() < end and not self.stopping.is_set() and not child.gave_up:
            if not child.restart and child.exit_code is not None:
                return False
            if await ready():
                return True
            await asyncio.sleep(0.05 if time.monotonic() < end - timeout + 5 else 0.2)
        return False

    def answered(self, child: Child) -> None:
        """``child`` serves."""
        if not child.answers:
            child.answers = True
            self._changed(self.children)

    async def wait(self) -> int:
        """Until a signal, or until an essential child is given up. Returns the exit code: 1 when one was given up."""
        await self.stopping.wait()
        return 1 if any(c.gave_up and c.essential for c in self.children) else 0

    async def stop(self) -> None:
        """End all, the last started first, so that nobody loses what it depends on."""
        self.stopping.set()
        for task in self._watches:
            task.cancel()
        await self._end_all()
        while waiting := [t for t in self._tasks if not t.done()]:
            # a child that was just being started when the signal came was not there to be ended yet
            await asyncio.wait(waiting, timeout=0.2)
            await self._end_all()
        await asyncio.gather(*self._watches, return_exceptions=True)

    async def end(self, child: Child, why: str | None = None) -> None:
        """SIGTERM, then SIGKILL after its grace. Where it is kept, it is started again. ``why``: for `status`."""
        process = child.process
        if process is None or process.returncode is not None:
            return
        child.ended_for = why
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), child.grace)
        except TimeoutError:
            self.echo(child.name, f"did not end within {child.grace:g} s: killed")
        reap_group(process.pid, signal.SIGKILL)

    async def _end_all(self) -> None:
        for _, stage in itertools.groupby(reversed(self.children), lambda c: c.stage or c.name):
            await asyncio.gather(*(self.end(child) for child in stage))

    def _enter(self, child: Child, state: ChildState) -> None:
        if state is not child.state or state is ChildState.RUNNING:
            child.state, child.since = state, time.time()
            self._changed(self.children)

    async def _keep(self, child: Child) -> None:
        backoff, failures = Backoff(*(child.pauses or (FIRST_PAUSE, LAST_PAUSE))), 0
        while not self.stopping.is_set():
            began = time.monotonic()
            await self._run_once(child)
            if self.stopping.is_set() or not child.restart or (child.exit_code == 0 and child.may_end):
                self._enter(child, ChildState.ENDED)
                return
            if time.monotonic() - began > STEADY_SECONDS:
                failures = 0
                backoff.reset()
            failures += 1
            child.last_end = child.end()
            if child.exit_code in child.hopeless or (child.max_failures and failures >= child.max_failures):
                self._give_up(child, failures)
                return
            self._enter(child, ChildState.RESTARTING)
            self.echo(child.name, f"{how_ended(child.exit_code)}; restarted in {backoff.pause:g} s")
            await backoff.sleep(self.stopping)

    def _give_up(self, child: Child, failures: int) -> None:
        times = "1 failed start" if failures == 1 else f"{failures} failed starts"
        self.echo(child.name, f"given up after {times}: it {how_ended(child.exit_code)}")
        self._enter(child, ChildState.DOWN)
        if child.essential:
            self.stopping.set()
        else:
            self.echo(child.name, "stays down until you restart `slipstream up`; the other parts keep running")

    async def _run_once(self, child: Child) -> None:
        child.starts += 1
        child.exit_code = child.ended_for = None
        child.tail.clear()
        child.answers = child.slow_start is False
        self._enter(child, ChildState.RUNNING)
        async with contextlib.AsyncExitStack() as output:
            theirs = await self._output(child, output) if child.capture else None
            try:
                process = await asyncio.create_subprocess_exec(
                    *child.argv,
                    env={**os.environ, **child.env},
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=theirs,
                    stderr=asyncio.subprocess.STDOUT if child.capture else None,
                    start_new_session=True,
                    pass_fds=child.fds,
                    preexec_fn=partial(die_with_parent, child.dies_by, os.getpid()),
                )
            except OSError as e:
                self.echo(child.name, f"{child.argv[0]} can't be run: {e.strerror}")
                child.exit_code = NO_PROGRAM
                return
            finally:
                if theirs is not None:
                    os.close(theirs)
            child.process = process
            code = await process.wait()
            reap_group(process.pid, signal.SIGKILL)  # what it left behind holds ports and memory
        child.exit_code = code  # last, so that who sees it sees the last words too

    async def _output(self, child: Child, stack: contextlib.AsyncExitStack) -> int:
        """A pipe whose lines are echoed; returns the end for the child. Leaving ``stack`` reads what is there, then
        closes it.

        It is a pipe of our own: with asyncio's, ``wait()`` would last until every process that inherited it has ended.
        """
        ours, theirs = os.pipe()
        lines = asyncio.StreamReader(limit=LINE_BYTES)
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(ours, "rb", 0)
        )
        reading = asyncio.create_task(self._read(child, lines))

        async def finish() -> None:
            # an orphan outside the group may hold the pipe open for ever: what is there already is read, no more
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reading, 1.0)
            pipe.close()

        stack.push_async_callback(finish)
        return theirs

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
            if (said := self._shown(child.name, line)) is not None:
                self.echo(child.name, said)


def to_stderr(name: str, line: str) -> None:
    sys.stderr.write(f"{name:8} | {line}\n")
    sys.stderr.flush()
