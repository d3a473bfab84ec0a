"""A batch's rows as Arrow: ``contract.BATCH_COLUMNS``, one row per choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from slipstream.contract import BATCH_COLUMNS, Form
from slipstream_proxy.store.call_list import CallList, is_whole
from slipstream_proxy.store.call_rows import choices_of
from slipstream_proxy.store.delta import NO_IDS
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
        "prefix_row": pa.int32(),
        "prefix_tokens": pa.int32(),
    }
)
assert tuple(SCHEMA.names) == BATCH_COLUMNS


EQUAL_ROW = "zero_variance"
"""As the trainer calls it: nothing in its group to compare."""


@dataclass(slots=True)
class BatchEpisode:
    """An episode of a batch, with its group and its calls."""

    group: str
    kind: str
    task: str | None
    ep: EpisodeRow
    calls: list[CallRow] | None
    """None: they are left out, as its group's rewards are all equal."""
    call_rewards: dict[str, float]


def _lists(parts: Sequence[npt.NDArray[np.generic]], kind: pa.DataType, dtype: str) -> pa.ListArray:
    offsets = np.zeros(len(parts) + 1, np.int32)
    np.cumsum([len(p) for p in parts], out=offsets[1:])
    flat = np.concatenate(parts).astype(dtype, copy=False) if parts else np.empty(0, dtype)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat, kind))


def batch_table(episodes: Sequence[BatchEpisode], fresh: Freshness, form: Form = "auto") -> pa.Table:
    """A row for each choice of each call that ended well, in order of group, episode, call, choice.

    An episode without such a call has one row that cannot be trained on (``no_call``; ``zero_variance`` where its calls
    are left out): its reward counts in its group's baseline. In deltas a prompt's row holds what comes after the row
    that it begins with (``prefix_row``).
    """
    rows: list[tuple[object, ...]] = []
    for member in episodes:
        if member.calls is None:
            rows.append(_reward_alone(member, EQUAL_ROW))
            continue
        whole = is_whole(form, len(member.calls))
        rows += _choices(member, member.calls, fresh, len(rows), whole=whole) or [_reward_alone(member, "no_call")]
    columns = list(zip(*rows, strict=True)) or [()] * len(BATCH_COLUMNS)
    arrays = []
    for column, values in zip(SCHEMA, columns, strict=True):
        if pa.types.is_list(column.type):
            dtype = "<f4" if column.name == "logprobs" else "<i4"
            arrays.append(_lists(values, column.type.value_type, dtype))
        else:
            arrays.append(pa.array(values, column.type))
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _choices(
    member: BatchEpisode, calls: list[CallRow], fresh: Freshness, first: int, *, whole: bool
) -> list[tuple[object, ...]]:
    """``first``: the number of the table's row that comes next."""
    rows: list[tuple[object, ...]] = []
    run = CallList(calls)
    placed: dict[str, int] = {}
    """Call → the row of its first choice."""
    for call in calls:
        if call.outcome != "ok":
            continue
        staleness, stale = fresh.staleness(call.adapter), call.trainable and not fresh.trainable(call.adapter)
        found, ids = run.anchored_ids(call, (lambda _: False) if whole else (lambda base: base.id in placed))
        before, keep = (placed[found.base.id], found.keep) if found.base is not None and found.keep else (None, 0)
        for choice, (sampled, logprobs) in enumerate(choices_of(call)):
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
                    ids,
                    sampled,
                    logprobs,
                    member.ep.reward,
                    member.call_rewards.get(call.id),
                    member.ep.key,
                    before,
                    keep,
                )
            )
            if not whole and not choice:
                placed[call.id] = before = first + len(rows) - 1
                keep, ids = keep + len(ids), NO_IDS  # the other choices begin with the first one's prompt
    return rows


def _reward_alone(member: BatchEpisode, reason: str) -> tuple[object, ...]:
    ep, ids, logprobs = member.ep, np.empty(0, np.int32), np.empty(0, np.float32)
    plain = (member.group, member.kind, ep.id, member.task, "", 0, 0, None, 0, None, False, reason)
    return (*plain, ids, ids, logprobs, ep.reward, None, ep.key, None, 0)
