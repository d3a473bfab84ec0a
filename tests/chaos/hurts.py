"""What is done to the proxy, its files and its machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

from tests.chaos.running import Running

WAL = ("torn", "zeroed", "flipped")
KILLS = ("worker", "control", "proxy")
STOPS = {"worker_stops": "data", "control_stops": "control"}
"""Hurts by SIGSTOP, and later SIGCONT → the process."""
STORE_FILES = ("slipstream.duckdb", "slipstream.duckdb.wal")
NEED_MOUNT = ("full", "readonly")
SYSCALLS = {
    "at_write": "write,pwrite64,writev", "at_sync": "fdatasync,fsync", "at_rename": "rename,renameat,renameat2", "sync_fails": "fdatasync,fsync",
}  # fmt: skip
"""Hurts by strace's fault injection: killed at a sampled call of these kinds, or such a call answers EIO."""
JUMPS = (-259_200, -7200, -90, 90, 7200, 259_200)
"""Seconds by which the clock jumps."""


def mounted(folder: Path, megabytes: int) -> bool:
    """A small disk of our own at ``folder``, where we may."""
    folder.mkdir(parents=True, exist_ok=True)
    argv = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    with contextlib.suppress(OSError):
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0
    return False


def strace_works() -> bool:
    argv = ["strace", "-f", "-qq", "-o", os.devnull, "-e", "trace=close", "-e", "inject=close:error=EBADF:when=10000", "true"]  # fmt: skip
    with contextlib.suppress(OSError):
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0
    return False


def clock_library(folder: Path) -> Path | None:
    """What lets a process see another time, compiled here; None: there is no compiler."""
    made = folder / "clock.so"
    argv = ["cc", "-shared", "-fPIC", "-O1", "-o", str(made), str(Path(__file__).with_name("clock.c")), "-ldl"]
    with contextlib.suppress(OSError):
        if subprocess.run(argv, capture_output=True, check=False).returncode == 0:
            return made
    return None


def break_file(path: Path, how: str, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if not data:
        return
    place = rng.randrange(len(data))
    match how:
        case "torn":
            del data[place:]
        case "zeroed":
            data[place : place + 512] = bytes(min(512, len(data) - place))
        case "flipped":
            data[place] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def fill(ballast: Path) -> None:
    """Take what is free of its disk, to the last byte."""
    for size in (65536, 1):
        with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
            while file.write(bytes(size)):
                pass


class Hurts(Running):
    older_since = 0
    """Where in the log the proxy began on the older store."""

    async def hurt(self, how: str) -> int | None:
        """Do it and undo it. Where calls cannot be kept meanwhile: how many the proxy had said so of before."""
        if how in ("worker", "control"):
            self.kills += 1
            if pid := self.child("data" if how == "worker" else how):
                os.kill(pid, signal.SIGKILL)
        elif how in STOPS:
            pid = self.child(STOPS[how])
            await self.stand_still([pid] if pid else [])
        elif how == "proxy":
            await self.kill_all()
            await self.start()
        elif how == "older":
            await self.older()
        elif how in WAL:
            await self.kill_all()
            log = self.data / "slipstream.duckdb.wal"
            if log.exists():
                break_file(log, how, self.rng)
            await self.start()
        elif how == "tail":
            await self.kill_all()
            for path in sorted((self.data / "spool").glob("data*.seg"))[-2:]:
                with path.open("ab") as file:
                    file.write(self.rng.choice([bytes(200), self.rng.randbytes(99), b"\x40\0\0\0half a frame"]))
            await self.start()
        elif how == "full":
            return await self.full()
        elif how == "readonly":
            return await self.readonly()
        elif how == "clock":
            await self.clock()
        elif how in SYSCALLS:
            return await self.syscall(how)
        return None

    async def older(self) -> None:
        """The store of the last such hurt comes back, under the spool of now. The one of now is kept for the next."""
        await self.kill_all()
        self.older_since = (self.folder / "proxy.log").stat().st_size
        now, kept = self.folder / "store-of-now", self.folder / "older-store"
        now.mkdir()
        for name in STORE_FILES:
            if (self.data / name).exists():
                shutil.copy2(self.data / name, now / name)
                if kept.exists():
                    (self.data / name).unlink()
            if (kept / name).exists():
                shutil.copy2(kept / name, self.data / name)
        shutil.rmtree(kept, ignore_errors=True)
        now.rename(kept)
        await self.start()

    def said_older(self) -> bool:
        """Whether the proxy has said since that its store lacks what is gone from the spool."""
        with (self.folder / "proxy.log").open("rb") as log:
            log.seek(self.older_since)
            return b"the store is older than the spool" in log.read()

    async def count_anew(self) -> None:
        """A killed worker's counts are lost with it: what the proxy says of this round begins at 0."""
        await self.kill_all()
        shutil.rmtree(self.data / "metrics", ignore_errors=True)
        await self.start()

    async def full(self) -> int:
        await self.count_anew()
        ballast = self.data / "ballast"
        await asyncio.to_thread(fill, ballast)  # the engine answers in this loop, and is not to hang
        await asyncio.sleep(0.4)
        ballast.unlink()
        return 0

    async def readonly(self) -> int | None:
        await self.kill_all()
        spool = str(self.data / "spool")
        shutil.rmtree(self.data / "metrics", ignore_errors=True)
        if subprocess.run(["mount", "--bind", spool, spool], capture_output=True, check=False).returncode:
            await self.start()
            return None
        subprocess.run(["mount", "-o", "remount,ro,bind", spool], capture_output=True, check=False)
        try:
            await self.start()
            await asyncio.sleep(0.4)
        finally:
            subprocess.run(["mount", "-o", "remount,rw,bind", spool], capture_output=True, check=False)
            subprocess.run(["umount", "-l", spool], capture_output=True, check=False)
        return 0

    async def clock(self) -> None:
        """The proxy's wall clock jumps twice while it works, and is right again after a start."""
        off = self.folder / "clock"
        off.write_bytes(struct.pack("d", 0.0))
        await self.kill_all()
        await self.start({"LD_PRELOAD": str(self.folder / "clock.so"), "CHAOS_CLOCK": str(off)})
        for _ in range(2):
            await asyncio.sleep(0.3)
            with off.open("r+b", buffering=0) as file:
                file.write(struct.pack("d", float(self.rng.choice(JUMPS))))
        await asyncio.sleep(0.3)
        await self.kill_all()
        await self.start()

    async def syscall(self, how: str) -> int | None:
        """A process is killed at its n-th such call, or the call fails."""
        fails = how == "sync_fails"
        before = None
        if fails:
            await self.count_anew()
            before = 0
        pid = self.child(self.rng.choice(("data", "control")))
        if pid is None:
            return before
        kinds, when = SYSCALLS[how], self.rng.randrange(1, 3 if how == "at_rename" else 12)
        what = "error=EIO" if fails else "signal=KILL"
        argv = ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={kinds}", "-e", f"inject={kinds}:{what}:when={when}", "-p", str(pid)]  # fmt: skip
        tracer = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        end = time.monotonic() + 1.0
        while time.monotonic() < end and tracer.poll() is None:
            await asyncio.sleep(0.02)
        self.kills += not fails and tracer.poll() is not None
        tracer.terminate()
        try:
            await asyncio.to_thread(tracer.wait, 2.0)
        except subprocess.TimeoutExpired:  # it may wait for a thread that it has let die; without it the kernel goes on
            tracer.kill()
            await asyncio.to_thread(tracer.wait)
        return before
