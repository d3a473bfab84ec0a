"""Files of logs whose runs have no ids: a file that is read in again has the name that it had before.

A file is the same if all rows that both imports read are equal, wherever it lies: it may have been renamed or have
grown. At the same place it is also the same if some rows are edited: their rewards alone, or less than half of them.
Another file is another one, even if it says the same.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import web

from slipstream.contract import KeyScope
from slipstream_imports.contract import LogFile, LogFiles, LogFilesIn
from slipstream_proxy.control.api.http import Ctx, Routes, reply
from slipstream_proxy.control.api.plugins import ControlPlugin
from slipstream_proxy.control.api.routes.episodes import KeyQuery
from slipstream_proxy.control.api.routes.plugins import plugin_of
from slipstream_proxy.control.deps import Deps
from slipstream_proxy.control.storage.access import Change
from slipstream_proxy.json_types import JsonObject

TEXT_DIGITS = 8
"""Of a row's hash: what the run says. The rest is of its rewards."""
FILES_KEPT = 10_000
"""Files of a key that are known again."""
FILE_ROUTES = Routes()


class NamesFiles(ControlPlugin):
    """Imports name their files one after the other, so that each knows of the others' files."""

    def __init__(self, deps: Deps, settings: None) -> None:
        super().__init__(deps, settings)
        self.naming = asyncio.Lock()


@dataclass(slots=True)
class _Known:
    name: str
    path: str
    rows: dict[str, str]


def likeness(known: _Known, file: LogFile) -> tuple[bool, int]:
    """Whether a file lies where a known one lay, and how many rows are equal. 0: it is another file."""
    shared = known.rows.keys() & file.rows.keys()
    equal = sum(known.rows[place] == file.rows[place] for place in shared)
    here = known.path == file.path
    if equal < len(shared):
        says = all(known.rows[place][:TEXT_DIGITS] == file.rows[place][:TEXT_DIGITS] for place in shared)
        if not here or not (says or 2 * equal >= len(shared)):
            return here, 0
    return here, equal


class _Files:
    """The files of one key. A list of their paths says where each one's rows stand."""

    def __init__(self, deps: Deps, key: str) -> None:
        self.deps = deps
        self.files, self.paths = f"import-file/{key}/", f"import-path/{key}/"
        self.changes: list[Change] = []
        self.homes: dict[str, list[str]] = defaultdict(list)
        """By path, and by the hash of the first row: names of values with rows."""

    async def begin(self) -> None:
        listed: dict[str, JsonObject] = await self.deps.ask(self.deps.store.cache.begins, self.paths)
        for name, value in listed.items():
            path, where = name.removeprefix(self.paths).partition("/")[0], value["file"]
            self.homes[path].append(where)
            self.homes[where.removeprefix(self.files).partition("/")[0]].append(where)

    async def find(self, file: LogFile) -> list[_Known]:
        found: list[_Known] = []
        for where in dict.fromkeys([*self.homes[file.path], *self.homes[_first(file.rows)]]):
            value: JsonObject | None = await self.deps.ask(self.deps.store.cache.get, where)
            if value is not None:
                found.append(_Known(where.rpartition("/")[2], value["path"], value["rows"]))
        return found

    def keep(self, name: str, file: LogFile, known: Mapping[str, str]) -> None:
        rows = {**known, **file.rows}
        if rows != known:
            where = f"{self.files}{_first(rows)}/{name}"
            self._put(where, {"path": file.path, "rows": rows})
            self._put(f"{self.paths}{file.path}/{name}", {"file": where})

    def _put(self, name: str, value: JsonObject) -> None:
        self.changes.append(("cache", {"key": name, "value": value, "at": self.deps.now()}))

    async def write(self) -> None:
        for n, prefix in enumerate((self.paths, self.files), start=1):  # the last two changes are one of each
            if self.changes:
                self.changes[-n][1]["newest"] = [prefix, FILES_KEPT]
        await self.deps.mutate_all(self.changes)


def _first(rows: Mapping[str, str]) -> str:
    return next(iter(rows.values()))[:TEXT_DIGITS]


def _fresh(file: LogFile) -> str:
    said = f"{file.path} {sorted(file.rows.items())}"
    return hashlib.blake2b(said.encode(), digest_size=8).hexdigest()


@FILE_ROUTES.add("POST", "/import/files", (KeyScope.ADMIN,), KeyQuery, LogFilesIn, result=LogFiles)
async def post_files(ctx: Ctx) -> web.StreamResponse:
    """Name log files whose runs have no ids. A file that was imported before has the name that it had.

    Files of one import are different files, even if they say the same.
    """
    body: LogFilesIn = ctx.body
    files = _Files(ctx.deps, ctx.owner(ctx.query.key))
    names: list[str] = [""] * len(body.files)
    async with plugin_of(ctx, NamesFiles).naming:
        await files.begin()
        found = [await files.find(file) for file in body.files]
        ranked = sorted(
            ((likeness(known, file), n, known) for n, file in enumerate(body.files) for known in found[n]),
            key=lambda r: r[0],
            reverse=True,
        )
        for (_, equal), n, known in ranked:  # a file at its old place comes before one that may be its copy
            if equal and not names[n] and known.name not in names:
                names[n] = known.name
                files.keep(known.name, body.files[n], known.rows)
        for n, file in enumerate(body.files):
            if not names[n]:
                names[n] = _fresh(file)
                files.keep(names[n], file, {})
        await files.write()
    return reply(LogFiles(names=names))
