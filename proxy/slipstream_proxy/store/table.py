"""A batch's rows as Arrow: ``contract.BATCH_COLUMNS``, one row per choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from slipstream.contract import BATCH_COLUMNS
from slipstream_proxy.store.compact import Whole
from slipstream_proxy.store.driver import Row
from slipstream_proxy.store.rows import C, Ep, choices_of, whole

SCHEMA = pa.schema(
    {
        "group": pa.string(), "kind": pa.string(), "episode": pa.string(), "task": pa.string(), "call": pa.string(), "number": pa.int32(),
        "choice": pa.int32(), "adapter": pa.string(), "staleness": pa.int32(), "temperature": pa.float32(), "trainable": pa.bool_(),
        "untrainable_reason": pa.string(), "prompt_ids": pa.list_(pa.int32()), "completion_ids": pa.list_(pa.int32()),
        "logprobs": pa.list_(pa.float32()), "reward": pa.float64(), "call_reward": pa.float64(),
    }
)  # fmt: skip
assert tuple(SCHEMA.names) == BATCH_COLUMNS


@dataclass(slots=True)
class Member:
    """An episode of a batch."""

    group: str
    kind: str
    task: str | None
    ep: Ep
    calls: list[Row]
    call_rewards: dict[str, float]


def _lists(parts: list[Any], kind: pa.DataType, dtype: str) -> pa.ListArray:
    offsets = np.zeros(len(parts) + 1, np.int32)
    np.cumsum([len(p) for p in parts], out=offsets[1:])
    flat = np.concatenate(parts).astype(dtype, copy=False) if parts else np.empty(0, dtype)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat, kind))


def batch_table(members: list[Member], versions: dict[str, int], live: int) -> pa.Table:
    """A row for each choice of each call that ended well, in order of group, episode, call, choice."""
    columns: dict[str, list[Any]] = {name: [] for name in BATCH_COLUMNS}
    for member in members:
        parents: dict[str, Whole] = {}
        for row in member.calls:
            made = whole(row, parents, text=False)
            if row[C["outcome"]] != "ok":
                continue
            for choice, (ids, logprobs) in enumerate(choices_of(row)):
                values = (
                    member.group, member.kind, member.ep.id, member.task, row[C["id"]], row[C["number"]], choice, row[C["adapter"]],
                    max(0, live - versions.get(row[C["adapter"]] or "", 0)), row[C["temperature"]], row[C["trainable"]], row[C["reason"]],
                    made.ids, ids, logprobs, member.ep.reward, member.call_rewards.get(row[C["id"]]),
                )  # fmt: skip
                for name, value in zip(BATCH_COLUMNS, values, strict=True):
                    columns[name].append(value)
    arrays = []
    for column in SCHEMA:
        if pa.types.is_list(column.type):
            arrays.append(
                _lists(columns[column.name], column.type.value_type, "<f4" if column.name == "logprobs" else "<i4")
            )
        else:
            arrays.append(pa.array(columns[column.name], column.type))
    return pa.Table.from_arrays(arrays, schema=SCHEMA)
