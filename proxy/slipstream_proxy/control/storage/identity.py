"""Who a data folder is: its instance, the tokens of its starts, and what it has forgotten, whatever store it meets.

``instance`` names the proxy's spool among those of others on one PostgreSQL. ``claim`` has the tokens of the last two
starts. ``forgotten`` has a line for each episode that was forgotten: a hash of its id. ``tenant`` has the name of whose
it is.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from slipstream.config import Config
from slipstream.errors import StartError
from slipstream.shared.files import sync
from slipstream_proxy.log.ids import new_id
from slipstream_proxy.log.records import mark_of
from slipstream_proxy.store.store import Store
from slipstream_proxy.store.values import Name, Position
from slipstream_proxy.store.write.claims import OWNER_KEY, InstanceClaim, twin_of
from slipstream_proxy.store.write.deletion import ALIVE_PREFIX

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 3


def instance_of(root: Path) -> str:
    """Made once, kept in the data folder."""
    file = root / "instance"
    if not file.is_file():
        _replace(file, new_id())
    return file.read_text().strip()


def make_new(config: Config) -> None:
    """A copied folder becomes a proxy of its own. Raises ``StartError`` where it is one already."""
    if not _shared(config):
        why = "a folder with a store of its own is a proxy of its own already: start it without --new-instance"
        raise StartError(f"data_dir {config.root}: {why}")
    root = config.root
    for name in ("instance", "claim"):
        (root / name).unlink(missing_ok=True)


def keep_tenant(config: Config) -> None:
    """The folder says whose it is. Raises ``StartError`` for another tenant's, as an archive in the wrong place is."""
    file = config.root / "tenant"
    known = file.read_text().strip() if file.is_file() else ""
    if known and known != config.tenant:
        raise StartError(
            f"{config.root} has the runs of the tenant {known}: restore what {config.tenant} has of its own, or delete "
            f"the file {file} if these runs are to be {config.tenant}'s"
        )
    if not known:
        config.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        _replace(file, config.tenant)


def _shared(config: Config) -> bool:
    return config.store_url.startswith(("postgresql:", "postgres:"))


def place_of(root: Path) -> str:
    """The host and the folder, as a person would name them, and what tells a copy of the folder from it."""
    there = root.stat()
    return f"{socket.gethostname()}:{root.resolve()} ({there.st_dev:x}-{there.st_ino:x})"


def tokens_of(root: Path) -> list[str]:
    try:
        return [str(token) for token in json.loads((root / "claim").read_text())]
    except (OSError, ValueError, TypeError):
        return []


def claim(root: Path, store: Store) -> None:
    """Take the instance. The token is in the folder first: a kill between the two leaves one that is known.

    Raises ``TwinError``.
    """
    known = tokens_of(root)
    mine = InstanceClaim(store.instance, new_id(), place_of(root))
    _replace(root / "claim", json.dumps([*known[-1:], mine.token]))
    try:
        store.claim(mine, known, time.time())
    except BaseException:
        _replace(root / "claim", json.dumps(known))
        raise
    _replace(root / "claim", json.dumps([mine.token]))


def refuse_twin(config: Config) -> None:
    """Raises ``StartError`` for a copy of a folder that is in use elsewhere. A database that does not answer keeps no
    proxy from starting: then the store refuses it, once it answers.
    """
    if not _shared(config) or not (config.root / "instance").is_file():
        return
    import psycopg

    instance = instance_of(config.root)
    try:
        with psycopg.connect(config.store_url, connect_timeout=CONNECT_TIMEOUT_S, autocommit=True) as connection:
            sql = "SELECT name, value FROM t_meta WHERE name IN (%s, %s)"
            rows = connection.execute(sql, (OWNER_KEY + instance, ALIVE_PREFIX + instance)).fetchall()
            found: dict[str, str] = dict(rows)
    except psycopg.Error as e:
        log.debug("who has the instance is not known yet: %s", e)
        return
    alive = float(found.get(ALIVE_PREFIX + instance) or 0.0)
    known = tokens_of(config.root)
    if why := twin_of(found.get(OWNER_KEY + instance), alive, place_of(config.root), known, time.time()):
        raise StartError(f"data_dir {config.root}: {why}")


def _replace(file: Path, text: str) -> None:
    fresh = file.with_name(f".{file.name}-{os.getpid()}")
    with fresh.open("w") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    fresh.replace(file)
    sync(file.parent)


# --- what the spool and the store have of each other ----------------------------------------------------------------

Segments = Mapping[str, Sequence[tuple[int, Path]]]


def missing_segments(segments: Segments, positions: Mapping[str, Position]) -> list[tuple[str, int, int]]:
    """(writer, from, to) of segments that the store has not read, and that are gone: it is older than the spool.

    A segment goes when the store holds all of it and has begun the next one.
    """
    found = []
    for writer, files in segments.items():
        reached = positions.get(writer)
        wanted = reached.segment if reached is not None else 1
        for number, _ in files:
            if number > wanted:
                found.append((writer, wanted, number - 1))
            wanted = max(wanted, number + 1)
    return found


def ahead(segments: Segments, positions: Mapping[str, Position]) -> list[str]:
    """Writers of which the store has read more than there is: the spool is older than the store. What they write from
    now on would count as read.
    """
    found = []
    for writer, reached in positions.items():
        files = segments.get(writer)
        if files:
            number, path = files[-1]
            if (number, path.stat().st_size) < (reached.segment, reached.offset):
                found.append(writer)
        elif reached.segment:
            found.append(writer)
    return found


class MissingSegments(NamedTuple):
    """That the store has not read, and that are gone."""

    text: str
    fix: str

    @classmethod
    def of(cls, gaps: Sequence[tuple[str, int, int]]) -> Self:
        """``gaps``: writers with the first and the last of these."""
        count = sum(last - first + 1 for _, first, last in gaps)
        which = "; ".join(f"{writer} from {first:08d} to {last:08d}" for writer, first, last in gaps)
        text = f"the store is older than the spool: {count} segments that it has not read are gone ({which}). Their "
        text += "calls and rewards are missing"
        fix = "stop the proxy and restore the store file of the same time as the spool, or these segments from a backup"
        return cls(text, fix)


# --- what was forgotten ---------------------------------------------------------------------------------------------


def remember_forgotten(root: Path, names: Collection[Name]) -> None:
    """Before the store forgets them. Raises ``OSError``."""
    if not names:
        return
    with (root / "forgotten").open("a+b") as f:
        if f.tell() and (f.seek(-1, os.SEEK_END), f.read(1))[1] != b"\n":  # a kill cut the last line off
            f.write(b"\n")
        f.writelines(json.dumps([key, mark_of(episode)]).encode() + b"\n" for key, episode in names)
        f.flush()
        os.fsync(f.fileno())


def forgotten_in(root: Path) -> set[Name]:
    """(key, mark) of each. A line that a kill cut off is passed over: its request was not answered."""
    found: set[Name] = set()
    try:
        lines = (root / "forgotten").read_text().splitlines()
    except FileNotFoundError:
        return found
    for line in lines:
        try:
            key, mark = json.loads(line)
        except ValueError:
            continue
        found.add((key, mark))
    return found
