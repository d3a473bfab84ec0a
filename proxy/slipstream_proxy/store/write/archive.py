"""A day's calls as Parquet, whole: what stays of a day that is dropped. And which episodes stand in which dataset."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from slipstream_proxy.log.records import mark_of
from slipstream_proxy.store.conversation.call_rows import ID_BYTES, PAGE_BYTES, CallList
from slipstream_proxy.store.conversation.calls import CallTable
from slipstream_proxy.store.read.episodes import EpisodeTable
from slipstream_proxy.store.tables import schema
from slipstream_proxy.store.tables.driver import IN, Driver
from slipstream_proxy.store.tables.rows import CALL_COLUMNS, CallRow, dump, eid_of, name_of
from slipstream_proxy.store.values import Name

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from pyarrow.parquet import ParquetWriter

ARCHIVE_SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "key": pa.string(),
        "episode": pa.string(),
        "task": pa.string(),
        "split": pa.string(),
        "tags": pa.string(),
        "reward": pa.float64(),
        "number": pa.int32(),
        "at": pa.float64(),
        "seconds": pa.float64(),
        "dialect": pa.string(),
        "model": pa.string(),
        "adapter": pa.string(),
        "status": pa.int32(),
        "outcome": pa.string(),
        "trainable": pa.bool_(),
        "untrainable_reason": pa.string(),
        "sampling": pa.string(),
        "messages": pa.string(),
        "tools": pa.string(),
        "reply": pa.string(),
        "finish_reason": pa.string(),
        "error": pa.string(),
        "prompt_ids": pa.list_(pa.int32()),
        "completion_ids": pa.list_(pa.list_(pa.int32())),
        "logprobs": pa.list_(pa.list_(pa.float32())),
        "trained": pa.string(),
        "temperature": pa.float64(),
        "prompt_tokens": pa.int32(),
        "completion_tokens": pa.int32(),
        "finish": pa.string(),
        "attempt": pa.int32(),
        "extends": pa.string(),
        "kind": pa.string(),
        "keep_messages": pa.int32(),
    }
)
"""JSON (messages, tools, reply, sampling, tags, finish) is text. ``keep_messages``: so many of the first messages are
an earlier call's too. Archives of releases before lack the columns behind ``logprobs``.
"""
JSON_COLUMNS = ("sampling", "messages", "tools", "reply")
ROW_COLUMNS = ("temperature", "finish", "attempt", "keep_messages")
"""As the store has them."""
ARCHIVE_ATTEMPTS = 3
"""Of archiving one day, while calls of it come."""


class ArchivePlace:
    """A folder of this machine, or one of an object store (``s3://BUCKET/PATH?region=…``, ``gs://BUCKET/PATH``)."""

    def __init__(self, setting: str) -> None:
        """``setting``: ``store.archive``. Nothing is asked of it before the first use."""
        self.setting = setting

    @cached_property
    def _found(self) -> tuple[FileSystem, str]:
        """Raises ``OSError`` and ``ValueError`` (of pyarrow)."""
        from pyarrow import fs

        if "://" in self.setting:
            files, root = fs.FileSystem.from_uri(self.setting)
            return files, root.rstrip("/")
        return fs.LocalFileSystem(), str(Path(self.setting).expanduser())

    def has(self, name: str) -> bool:
        from pyarrow import fs

        files, root = self._found
        return bool(files.get_file_info(f"{root}/{name}").type == fs.FileType.File)

    def batches(self, name: str) -> Iterator[pa.RecordBatch]:
        """What a file holds, in today's columns."""
        from pyarrow import dataset

        files, root = self._found
        read = dataset.dataset(f"{root}/{name}", schema=ARCHIVE_SCHEMA, filesystem=files, format="parquet")
        yield from read.to_batches(batch_size=1000, batch_readahead=1, fragment_readahead=1)

    @contextmanager
    def written(self, name: str, part: str) -> Iterator[ParquetWriter]:
        """The file appears whole under its name when the block ends, or not at all. ``part``: its name until then."""
        from pyarrow import fs
        from pyarrow.parquet import ParquetWriter

        files, root = self._found
        if isinstance(files, fs.LocalFileSystem):
            files.create_dir(root, recursive=True)
        with ParquetWriter(f"{root}/{part}", ARCHIVE_SCHEMA, compression="zstd", filesystem=files) as writer:
            yield writer
        files.move(f"{root}/{part}", f"{root}/{name}")


def forget_archived(place: ArchivePlace, name: str, names: Collection[Name], proxy: str) -> int:
    """Write an archive again without these episodes, of which the marks are given. → Their calls that are gone.

    ``proxy``: whose file it is meanwhile, where several have one folder.
    """
    import pyarrow.compute as pc

    gone = 0
    with place.written(name, f".{name}.{proxy}.part") as writer:
        for batch in place.batches(name):
            whose = zip(batch["key"].to_pylist(), batch["episode"].to_pylist(), strict=True)
            mine = pa.array([(key, mark_of(episode)) in names for key, episode in whose], pa.bool_())
            gone += pc.sum(mine).as_py() or 0
            writer.write_table(pa.Table.from_batches([batch.filter(pc.invert(mine))], schema=ARCHIVE_SCHEMA))
    return gone


class CallArchive:
    def __init__(self, db: Driver, calls: CallTable, episodes: EpisodeTable) -> None:
        self.db = db
        self.calls = calls
        self.episodes = episodes

    def days(self) -> list[str]:
        """Days with calls, ``YYYY-MM-DD``, oldest first."""
        return self.calls.days.all()

    def drop(self, day: str, archived: int | None = None) -> int:
        """Drop a day's calls, text and tokens; episodes and rewards stay. → Calls dropped."""
        count = self.calls.days.drop(day, archived)
        self.calls.known.clear()
        return count

    def retire(self, day: str, place: ArchivePlace) -> int:
        """Archive a day and drop it. → Calls dropped; 0 if calls came meanwhile each time: ask again later."""
        for _ in range(ARCHIVE_ATTEMPTS):
            archived = self._count(day)
            if not archived or self.write(day, place) is None:
                return 0
            if dropped := self.drop(day, archived):
                return dropped
        return 0

    def _count(self, day: str) -> int:
        if day not in self.days():
            return 0
        with self.db.read() as tx:
            return int(tx.all(f"SELECT count(*) FROM {schema.table_of(day)}")[0][0])

    def write(self, day: str, place: ArchivePlace, batch: int = 200) -> str | None:
        """Write ``calls-YYYY-MM-DD.parquet``. → Its name; None: there are no calls.

        Calls of a day that was archived before, which came late, are put to those. Raises ``OSError``.
        """
        if day not in self.days():
            return None
        name, table = f"calls-{day}.parquet", schema.table_of(day)
        with self.db.read() as tx:
            eids = [eid for (eid,) in tx.all(f"SELECT DISTINCT eid FROM {table} ORDER BY eid")]
        if not eids:
            return None
        with place.written(name, f".{name}.part") as writer:
            for earlier in self._archived(place, name, table):
                writer.write_table(earlier)
            for i in range(0, len(eids), batch):
                for part_of_it in self._tables(table, eids[i : i + batch]):
                    writer.write_table(part_of_it)
        self.note_export(name, "archive", list(map(name_of, eids)), time.time())
        return name

    def _archived(self, place: ArchivePlace, name: str, table: str) -> Iterator[pa.Table]:
        """What an archive of this day holds, without calls that the table has too: the last try was killed."""
        import pyarrow.compute as pc

        if not place.has(name):
            return
        for batch in place.batches(name):
            with self.db.read() as tx:
                again = [i for (i,) in tx.all(f"SELECT id FROM {table} WHERE id {IN}", (batch["id"].to_pylist(),))]
            mine = pc.is_in(batch["id"], pa.array(again, pa.string()))
            yield pa.Table.from_batches([batch.filter(pc.invert(mine))], schema=ARCHIVE_SCHEMA)

    def note_export(self, export: str, format: str, names: Collection[Name], now: float) -> None:
        """The manifest: these (key, id) stand in the dataset of this id. Again for more of them."""
        eids = {eid_of(*name) for name in names}
        with self.db.write() as tx:
            if not tx.all("SELECT 1 FROM t_exports WHERE id = ?", (export,)):
                tx.insert("t_exports", [(export, now, format)])
            sql = f"SELECT eid FROM t_exported WHERE export = ? AND eid {IN}"
            known = {eid for (eid,) in tx.all(sql, (export, list(eids)))}
            tx.insert("t_exported", [(export, eid) for eid in sorted(eids - known)])

    def _tables(self, table: str, eids: list[str]) -> Iterator[pa.Table]:
        """The calls of these episodes, each whole, ``PAGE_BYTES`` at a time."""
        with self.db.read() as tx:
            eps = self.episodes.load(tx, eids)
            rows = tx.all(f"SELECT {CALL_COLUMNS} FROM {table} WHERE eid {IN} ORDER BY eid, number", (eids,))
        columns: dict[str, list[object]] = {name: [] for name in ARCHIVE_SCHEMA.names}
        size = 0
        for eid, run in groupby(map(CallRow._make, rows), key=lambda r: r.eid):
            ep, calls = eps[eid], CallList(list(run))
            for row in calls.rows:
                call = calls.whole(row, tokens=True).model_dump()
                call |= {"key": ep.key, "task": ep.task, "split": ep.split, "tags": ep.tags, "reward": ep.reward}
                call |= {name: dump(call[name]) for name in JSON_COLUMNS}
                call |= {name: getattr(row, name) for name in ROW_COLUMNS}
                size += len(call["messages"]) + ID_BYTES * len(call["prompt_ids"])
                for name, column in columns.items():
                    column.append(call[name])
                if size > PAGE_BYTES:
                    yield pa.table(columns, schema=ARCHIVE_SCHEMA)
                    columns, size = {name: [] for name in ARCHIVE_SCHEMA.names}, 0
        if columns["id"]:
            yield pa.table(columns, schema=ARCHIVE_SCHEMA)
