"""Values that left the memory, in a file without a name: it is gone when the process ends."""

from __future__ import annotations

import logging
import pickle
import tempfile
from typing import IO

log = logging.getLogger(__name__)


class Spill:
    """A value is taken back once. What cannot be written (the disk is full) is forgotten: it is only a memory.

    ``most``: bytes of the file beyond which all of it is forgotten.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._file: IO[bytes] | None = None
        self._places: dict[str, tuple[int, int]] = {}
        self._end = 0

    def put(self, name: str, value: object) -> None:
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        if self._end + len(data) > self._most:
            self.clear()
        if len(data) > self._most:
            return
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="slipstream-")  # noqa: SIM115  # open as long as this is
            self._file.seek(self._end)
            self._file.write(data)
        except OSError as e:
            log.warning("what is known of past calls cannot be kept on the disk: %s", e)
            self.clear()
            return
        self._places[name] = (self._end, len(data))
        self._end += len(data)

    def take(self, name: str) -> object | None:
        """None: it is not there."""
        place = self._places.pop(name, None)
        if place is None or self._file is None:
            return None
        try:
            self._file.seek(place[0])
            found: object = pickle.loads(self._file.read(place[1]))  # noqa: S301  # this process wrote it
        except (OSError, EOFError, pickle.UnpicklingError) as e:
            log.warning("what is known of past calls cannot be read back: %s", e)
            return None
        if not self._places:
            self._end = 0
        return found

    def clear(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
        self._places.clear()
        self._end = 0
