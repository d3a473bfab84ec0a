"""Names of sessions that stand for many runs: every worker of a proxy knows them, and after a restart, too.

A worker that forgot one would take the next conversation under it for the run of that name, which another user began.
The file holds digests alone, 16 bytes each, so it shows no name and no key.
"""

from __future__ import annotations

import hashlib
import logging
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

DIGEST_BYTES: Final = 16
MAX_NAMES: Final = 65_536
"""Of more than these, the older half is forgotten at the next start."""


class SplitNames:
    """One worker's view of the file. A disk that takes no more costs the memory over a restart, and no call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: set[bytes] = set()
        self._read = 0
        """Bytes of the file that are known."""
        self._look()
        if len(self._known) > MAX_NAMES:
            self._shorten()

    def has(self, key: str, name: str) -> bool:
        """Whether a worker has found that the name stands for many runs. Costs no look at the disk if this one did."""
        digest = _digest(key, name)
        if digest not in self._known:
            self._look()
        return digest in self._known

    def add(self, key: str, name: str) -> None:
        """Remember it. The append is one write, so those of several workers never mix."""
        digest = _digest(key, name)
        if digest in self._known:
            return
        self._known.add(digest)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, digest)
            finally:
                os.close(fd)
        except OSError as e:
            log.error("session names that stand for many runs are forgotten at a restart: %s", e)

    def _look(self) -> None:
        """Read what was added since; all of it if the file was shortened."""
        try:
            size = self.path.stat().st_size
            if size == self._read:
                return
            with self.path.open("rb") as file:
                start = self._read if size > self._read else 0
                file.seek(start)
                data = file.read()
        except OSError:
            return
        whole = len(data) - len(data) % DIGEST_BYTES
        self._known.update(data[at : at + DIGEST_BYTES] for at in range(0, whole, DIGEST_BYTES))
        self._read = start + whole

    def _shorten(self) -> None:
        kept = self.path.read_bytes()
        kept = kept[: len(kept) - len(kept) % DIGEST_BYTES][-MAX_NAMES // 2 * DIGEST_BYTES :]
        fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            fresh.write_bytes(kept)
            fresh.chmod(0o600)
            fresh.replace(self.path)
        except OSError as e:
            log.error("the file of session names that stand for many runs stays as long as it is: %s", e)
            fresh.unlink(missing_ok=True)
            return
        self._known, self._read = set(), 0
        self._look()


def _digest(key: str, name: str) -> bytes:
    return hashlib.blake2b(f"{key}\0{name}".encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()
