"""What a first look at an import's files says: which runs have no ids, and which reward of an episode is the last."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from slipstream.client import AsyncClient
from slipstream_chat.report import Counts, Value
from slipstream_chat.values import mapping
from slipstream_imports.contract import LOG_ROWS_MOST, LogFile, LogFilesIn, import_files

Body = dict[str, Value]
ROWS_MOST = 500_000
"""Rows of all files by which they are known again."""


class Entry(NamedTuple):
    """One episode of a file: the requests that bring it in, one after the other."""

    where: str
    """File and line, for errors."""
    share: float
    """How much of the file is read once this entry is, 0 … 1."""
    bodies: list[Body]
    whole: bool = False
    """True: an episode as ``export`` wrote it; False: conversations of elsewhere."""
    counts: Counts = Counts()
    file: str = ""
    place: str = ""
    """In the file, of a run without an id. Empty: it has an id."""
    said: str = ""
    """Hashes of what a run without an id says, and of its rewards."""

    @property
    def text(self) -> str:
        """Of the hashes, the one of what it says."""
        return self.said[:8]

    @property
    def rewards(self) -> dict[str, Value]:
        first = self.bodies[0]
        told = {} if first.get("reward") is None else {"reward": first["reward"]}
        return {} if self.whole else {**mapping(first.get("metrics")), **told}

    def named(self, name: str) -> Entry:
        return self._replace(bodies=[{**body, "id": name} for body in self.bodies])

    def without(self, rewards: Iterable[str]) -> Entry:
        first = dict(self.bodies[0])
        metrics = {name: value for name, value in mapping(first.pop("metrics", None)).items() if name not in rewards}
        first |= {"metrics": metrics} if metrics else {}
        first |= {"reward": None} if "reward" in rewards else {}
        return self._replace(bodies=[first, *self.bodies[1:]])


@dataclass(slots=True)
class Survey:
    files: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    """File → place → hashes, of runs without ids."""
    last: dict[int, int] = field(default_factory=dict)
    """Hash of an episode and a reward's name → number of the entry that has the last one."""
    names: Mapping[str, str] = field(default_factory=dict)
    """File → the proxy's name for it."""

    def look(self, entries: Iterable[Entry]) -> None:
        for number, entry in enumerate(entries):
            if entry.place:
                rows = self.files[entry.file]
                if len(rows) < LOG_ROWS_MOST:
                    rows[entry.place] = entry.said
            else:
                self.last |= {hash((entry.bodies[0]["id"], name)): number for name in entry.rewards}

    async def name_files(self, client: AsyncClient) -> None:
        """Ask the proxy which of the files it knows."""
        if self.files:
            most = max(1, ROWS_MOST // len(self.files))
            asked = [LogFile(path=_hash(file), rows=dict([*rows.items()][:most])) for file, rows in self.files.items()]
            names = (await client.ask(import_files(LogFilesIn(files=asked)))).names
            self.names = dict(zip(self.files, names, strict=True))

    def settled(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """A run without an id is named by file, place and text. Of an episode's rewards the last one counts."""
        for number, entry in enumerate(entries):
            if entry.place:
                yield entry.named(f"import-{self.names[entry.file]}-{entry.place}-{entry.text}")
                continue
            name = entry.bodies[0].get("id")
            early = [n for n in entry.rewards if self.last.get(hash((name, n)), number) > number]
            yield entry.without(early) if early else entry


def _hash(file: str) -> str:
    where = str(Path(file).resolve()).encode("utf-8", "surrogateescape")
    return hashlib.blake2b(where, digest_size=8).hexdigest()
