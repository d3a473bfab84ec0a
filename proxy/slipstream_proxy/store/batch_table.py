"""A batch's rows as Arrow: ``contract.BATCH_COLUMNS``, one row per choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from slipstream.contract import BATCH_COLUMNS
from slipstream_proxy.store.call_rows import choices_of, whole
from slipstream_proxy.store.delta import Whole
from slipstream_proxy.store.freshness import STALE, Freshness
from slipstream_proxy.store.rows import CallRow, EpisodeRow

SCHEMA = pa.schema(
    {
        "group": pa.string(),
        "kind": pa.string(),
        "episode": pa.string(),
        "task": pa.string(),
        "call": pa.string(),
        "number": pa.int32(),
        "choice": pa.int32(),
        "adapter": pa.string(),
        "staleness": pa.int32(),
        "temperature": pa.float32(),
        "trainable": pa.bool_(),
        "untrainable_reason": pa.string(),
        "prompt_ids": pa.list_(pa.int32()),
        "completion_ids": pa.list_(pa.int32()),
        "logprobs": pa.list_(pa.float32()),
        "reward": pa.float64(),
        "call_reward": pa.float64(),
        "key": pa.string(),
    }
)
assert tuple(SCHEMA.names) == BATCH_COLUMNS


@dataclass(slots=True)
class BatchEpisode:
    """An episode of a batch, with its group and its calls."""

    group: str
    kind: str
    task: str | None
    ep: EpisodeRow
    calls: list[CallRow]
    call_rewards: dict[str, float]


def _lists(parts: Sequence[npt.NDArray[np.generic]], kind: pa.DataType, dtype: str) -> pa.ListArray:
    offsets = np.zeros(len(parts) + 1, np.int32)
    np.cumsum([len(p) for p in parts], out=offsets[1:])
    flat = np.concatenate(parts).astype(dtype, copy=False) if parts else np.empty(0, dtype)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat, kind))


def batch_table(episodes: Sequence[BatchEpisode], fresh: Freshness) -> pa.Table:
    """A row for each choice of each call that ended well, in order of group, episode, call, choice.

    An episode without such a call has one row that cannot be trained on (``no_call``): its reward counts in its group's
    baseline.
    """
    rows = [row for member in episodes for row in (_choices(member, fresh) or [_no_call(member)])]
    columns = list(zip(*rows, strict=True)) or [()] * len(BATCH_COLUMNS)
    arrays = []
    for column, values in zip(SCHEMA, columns, strict=True):
        if pa.types.is_list(column.type):
            dtype = "<f4" if column.name == "logprobs" else "<i4"
            arrays.append(_lists(values, column.type.value_type, dtype))
        else:
            arrays.append(pa.array(values, column.type))
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _choices(member: BatchEpisode, fresh: Freshness) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    wholes: dict[str, Whole] = {}
    for call in member.calls:
        made = whole(call, wholes, text=False)
        if call.outcome != "ok":
            continue
        staleness, stale = fresh.staleness(call.adapter), call.trainable and not fresh.trainable(call.adapter)
        for choice, (ids, logprobs) in enumerate(choices_of(call)):
            rows.append(
                (
                    member.group,
                    member.kind,
                    member.ep.id,
                    member.task,
                    call.id,
                    call.number,
                    choice,
                    call.adapter,
                    staleness,
                    call.temperature,
                    call.trainable and not stale,
                    STALE if stale else call.reason,
                    made.ids,
                    ids,
                    logprobs,
                    member.ep.reward,
                    member.call_rewards.get(call.id),
                    member.ep.key,
                )
            )
    return rows


def _no_call(member: BatchEpisode) -> tuple[object, ...]:
    ep, ids, logprobs = member.ep, np.empty(0, np.int32), np.empty(0, np.float32)
    plain = (member.group, member.kind, ep.id, member.task, "", 0, 0, None, 0, None, False, "no_call")
    return (*plain, ids, ids, logprobs, ep.reward, None, ep.key)
