"""A day's calls as Parquet, whole: what stays of a day that is dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from slipstream_proxy.store import schema
from slipstream_proxy.store.base import CALL_COLUMNS, IN, Base
from slipstream_proxy.store.compact import Whole
from slipstream_proxy.store.rows import C, call_public, dump, whole

SCHEMA = pa.schema(
    {
        "id": pa.string(), "key": pa.string(), "episode": pa.string(), "task": pa.string(), "split": pa.string(), "tags": pa.string(),
        "reward": pa.float64(), "number": pa.int32(), "at": pa.float64(), "seconds": pa.float64(), "dialect": pa.string(), "model": pa.string(),
        "adapter": pa.string(), "status": pa.int32(), "outcome": pa.string(), "trainable": pa.bool_(), "untrainable_reason": pa.string(),
        "sampling": pa.string(), "messages": pa.string(), "tools": pa.string(), "reply": pa.string(), "finish_reason": pa.string(),
        "error": pa.string(), "prompt_ids": pa.list_(pa.int32()), "completion_ids": pa.list_(pa.list_(pa.int32())),
        "logprobs": pa.list_(pa.list_(pa.float32())),
    }
)  # fmt: skip
"""JSON (messages, tools, reply, sampling, tags) is text."""
JSON = ("sampling", "messages", "tools", "reply")


class Archive(Base):
    def archive_day(self, day: str, folder: Path, batch: int = 200) -> Path | None:
        """Write ``folder/calls-YYYY-MM-DD.parquet`` (by rename, so that it is whole or not there). None: there is no such day."""
        if day not in self._known_days():
            return None
        folder.mkdir(parents=True, exist_ok=True)
        path, part = folder / f"calls-{day}.parquet", folder / f".calls-{day}.parquet.part"
        table = schema.table_of(day)
        with self.db.read() as tx:
            eids = [eid for (eid,) in tx.all(f"SELECT DISTINCT eid FROM {table} ORDER BY eid")]
        with pq.ParquetWriter(part, SCHEMA, compression="zstd") as writer:
            for i in range(0, len(eids), batch):
                writer.write_table(self._archived(table, eids[i : i + batch]))
        part.replace(path)
        return path

    def _known_days(self) -> list[str]:
        with self.db.read() as tx:
            return [day for (day,) in tx.all("SELECT day FROM t_days")]

    def _archived(self, table: str, eids: list[str]) -> pa.Table:
        with self.db.read() as tx:
            eps = self._load(tx, eids)
            rows = tx.all(f"SELECT {CALL_COLUMNS} FROM {table} WHERE eid {IN} ORDER BY eid, number", (eids,))
        columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
        parents: dict[str, Whole] = {}
        for row in rows:
            ep = eps[row[C["eid"]]]
            call = call_public(row, whole(row, parents), tokens=True).model_dump()
            call |= {"key": ep.key, "task": ep.task, "split": ep.split, "tags": ep.tags, "reward": ep.reward}
            call |= {name: dump(call[name]) for name in JSON}
            for name, column in columns.items():
                column.append(call[name])
        return pa.table(columns, schema=SCHEMA)
