"""Memory that the workers of one proxy share: a file, mapped, and changed under its lock."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def reserve(fd: int, size: int) -> None:
    """Make a file ``size`` bytes long, with a place on the disk for each of them. Raises ``OSError`` where the disk is
    full.

    Of a file with holes, the first write to a page needs a place. In a memory map that finds none, the kernel ends the
    process (SIGBUS).
    """
    if os.fstat(fd).st_size != size:
        os.ftruncate(fd, 0)
    os.posix_fallocate(fd, 0, size)


class SharedMap:
    """``bytes`` is the memory. What it holds and who may change it is its owner's affair."""

    def __init__(self, path: Path | None, size: int) -> None:
        """``path`` None: this worker's alone. Raises ``OSError`` where there is no room for the file."""
        self._fd = -1
        if path is None:
            self.bytes = mmap.mmap(-1, size)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with self.locked():
                reserve(self._fd, size)
            self.bytes = mmap.mmap(self._fd, size)
        except BaseException:
            self.close()
            raise

    @property
    def shared(self) -> bool:
        """Whether other workers see it."""
        return self._fd >= 0

    @contextmanager
    def locked(self) -> Iterator[None]:
        """No other worker changes it meanwhile. The kernel lets go of a lock whose process dies."""
        if self._fd < 0:
            yield
            return
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
