"""A day's calls as Parquet, whole: what stays of a day that is dropped. And which episodes stand in which dataset."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from slipstream_proxy.store import schema
from slipstream_proxy.store.call_list import ID_BYTES, CallList
from slipstream_proxy.store.call_page import PAGE_BYTES
from slipstream_proxy.store.calls import CallTable
from slipstream_proxy.store.codec import dump
from slipstream_proxy.store.driver import IN, Driver
from slipstream_proxy.store.episodes import EpisodeTable
from slipstream_proxy.store.rows import CALL_COLUMNS, CallRow, eid_of
from slipstream_proxy.store.values import Name

SCHEMA = pa.schema(
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
    }
)
"""JSON (messages, tools, reply, sampling, tags) is text."""
JSON = ("sampling", "messages", "tools", "reply")
TRIES = 3
"""Of archiving one day, while calls of it come."""


def forget_archived(path: Path, names: Collection[Name]) -> int:
    """Write an archive again without these episodes. → Their calls that are gone."""
    eids = pa.array([eid_of(*name) for name in names], pa.string())
    part, gone = path.with_name(f".{path.name}.part"), 0
    with pq.ParquetWriter(part, SCHEMA, compression="zstd") as writer:
        for batch in pq.ParquetFile(path).iter_batches(1000):
            mine = pc.is_in(pc.binary_join_element_wise(batch["key"], batch["episode"], "/"), eids)
            gone += pc.sum(mine).as_py() or 0
            writer.write_table(pa.Table.from_batches([batch.filter(pc.invert(mine))], schema=SCHEMA))
    part.replace(path)
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

    def retire(self, day: str, folder: Path) -> int:
        """Archive a day and drop it. → Calls dropped; 0 if calls came meanwhile each time: ask again later."""
        for _ in range(TRIES):
            archived = self._count(day)
            if not archived or self.write(day, folder) is None:
                return 0
            if dropped := self.drop(day, archived):
                return dropped
        return 0

    def _count(self, day: str) -> int:
        if day not in self.days():
            return 0
        with self.db.read() as tx:
            return int(tx.all(f"SELECT count(*) FROM {schema.table_of(day)}")[0][0])

    def write(self, day: str, folder: Path, batch: int = 200) -> Path | None:
        """Write ``folder/calls-YYYY-MM-DD.parquet`` (by rename, so that it is whole or not there).

        Calls of a day that was archived before, which came late, are put to those. None: there are no calls.
        """
        if day not in self.days():
            return None
        folder.mkdir(parents=True, exist_ok=True)
        path, part = folder / f"calls-{day}.parquet", folder / f".calls-{day}.parquet.part"
        table = schema.table_of(day)
        with self.db.read() as tx:
            eids = [eid for (eid,) in tx.all(f"SELECT DISTINCT eid FROM {table} ORDER BY eid")]
        if not eids:
            return None
        with pq.ParquetWriter(part, SCHEMA, compression="zstd") as writer:
            for earlier in self._archived(path, table):
                writer.write_table(earlier)
            for i in range(0, len(eids), batch):
                for part_of_it in self._tables(table, eids[i : i + batch]):
                    writer.write_table(part_of_it)
        part.replace(path)
        names = [(key, episode) for key, _, episode in (eid.partition("/") for eid in eids)]
        self.note_export(path.name, "archive", names, time.time())
        return path

    def _archived(self, path: Path, table: str) -> Iterator[pa.Table]:
        """What an archive of this day holds, without calls that the table has too: the last try was killed."""
        if not path.exists():
            return
        for batch in pq.ParquetFile(path).iter_batches(1000):
            with self.db.read() as tx:
                again = [i for (i,) in tx.all(f"SELECT id FROM {table} WHERE id {IN}", (batch["id"].to_pylist(),))]
            mine = pc.is_in(batch["id"], pa.array(again, pa.string()))
            yield pa.Table.from_batches([batch.filter(pc.invert(mine))], schema=SCHEMA)

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
        columns: dict[str, list[object]] = {name: [] for name in SCHEMA.names}
        size = 0
        for eid, run in groupby(map(CallRow._make, rows), key=lambda r: r.eid):
            ep, calls = eps[eid], CallList(list(run))
            for row in calls.rows:
                call = calls.whole(row, tokens=True).model_dump()
                call |= {"key": ep.key, "task": ep.task, "split": ep.split, "tags": ep.tags, "reward": ep.reward}
                call |= {name: dump(call[name]) for name in JSON}
                size += len(call["messages"]) + ID_BYTES * len(call["prompt_ids"])
                for name, column in columns.items():
                    column.append(call[name])
                if size > PAGE_BYTES:
                    yield pa.table(columns, schema=SCHEMA)
                    columns, size = {name: [] for name in SCHEMA.names}, 0
        if columns["id"]:
            yield pa.table(columns, schema=SCHEMA)
