"""A leased batch's prompts put together: in a long run a row's prompt begins with an earlier row's.

A row's *sequence* is its prompt and its completion. ``prefix_row`` names the earlier row that a prompt begins with,
``prefix_tokens`` how many tokens of that row's sequence; ``prompt_ids`` holds what comes after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int32]
S = TypeVar("S", bound=np.generic)


@dataclass(slots=True)
class PackedPrompts:
    """The prompts of a table as they came, one entry a row.

    Raises ``ValueError`` for a row that begins with one that does not stand before it.
    """

    prompts: Sequence[Ints]
    completions: Sequence[Ints]
    prefix_rows: Sequence[int | None]
    keeps: Sequence[int]

    def __post_init__(self) -> None:
        for row, before in enumerate(self.prefix_rows):
            if before is not None and not 0 <= before < row:
                raise ValueError(f"row {row} begins with row {before}, which does not stand before it")

    def whole(self) -> list[Ints]:
        """Every row's whole prompt.

        A row that a later one repeats token by token lies in that one's memory: a conversation of many calls is held
        once.
        """
        continued = self._continued()
        sequences: list[Ints | None] = [None] * len(self.prompts)
        made: list[Ints] = []
        for row in range(len(self.prompts)):
            if sequences[row] is None:
                self._build(row, continued, sequences)
            sequence = sequences[row]
            assert sequence is not None
            made.append(sequence[: len(sequence) - len(self.completions[row])])
        return made

    def _continued(self) -> dict[int, int]:
        """Row → a later one that begins with all of its sequence."""
        lengths: list[int] = []
        found: dict[int, int] = {}
        for row, before in enumerate(self.prefix_rows):
            own = len(self.prompts[row]) + len(self.completions[row])
            if before is None:
                lengths.append(own)
                continue
            lengths.append(self.keeps[row] + own)
            if self.keeps[row] == lengths[before]:
                found[before] = row
        return found

    def _build(self, row: int, continued: dict[int, int], sequences: list[Ints | None]) -> None:
        """The sequences of a row and of those that go on with it, in one piece of memory."""
        line = [row]
        while (after := continued.get(line[-1])) is not None:
            line.append(after)
        before = self.prefix_rows[row]
        held = sequences[before] if before is not None else None
        parts = [] if held is None else [held[: self.keeps[row]]]
        at = sum(map(len, parts))
        for one in line:
            parts += [self.prompts[one], self.completions[one]]
        whole = np.concatenate(parts).astype(np.int32, copy=False)
        for one in line:
            at += len(self.prompts[one]) + len(self.completions[one])
            sequences[one] = whole[:at]


def lists_of(table: pa.Table, name: str, dtype: type[S]) -> list[NDArray[S]]:
    """A list column as one array per row, without a Python object per token. A null row is empty."""
    out: list[NDArray[S]] = []
    for chunk in table.column(name).chunks:
        values: NDArray[S] = np.asarray(chunk.values.to_numpy(zero_copy_only=False), dtype=dtype)
        offsets, nulls = np.asarray(chunk.offsets), np.asarray(chunk.is_null())
        out += [values[a : a if null else b] for a, b, null in zip(offsets[:-1], offsets[1:], nulls, strict=True)]
    return out


def prompts_of(table: pa.Table) -> list[Ints]:
    """Every row's whole prompt. Raises ``ValueError`` for a row that begins with one that is not before it."""
    prompts = lists_of(table, "prompt_ids", np.int32)
    if "prefix_row" not in table.column_names:
        return prompts
    before = table.column("prefix_row").to_pylist()
    if not any(row is not None for row in before):
        return prompts
    completions = lists_of(table, "completion_ids", np.int32)
    return PackedPrompts(prompts, completions, before, table.column("prefix_tokens").to_pylist()).whole()


def whole_prompts(table: pa.Table) -> pa.Table:
    """The table with every prompt whole, and no row that begins with another."""
    import pyarrow as pa

    if "prefix_row" not in table.column_names or table.column("prefix_row").null_count == table.num_rows:
        return table
    prompts = prompts_of(table)
    offsets = np.zeros(len(prompts) + 1, np.int64)
    np.cumsum([len(p) for p in prompts], out=offsets[1:])
    few = offsets[-1] < 2**31
    kind = pa.ListArray if few else pa.LargeListArray
    numbers = pa.array(offsets.astype(np.int32 if few else np.int64))
    made = kind.from_arrays(numbers, pa.array(np.concatenate(prompts), pa.int32()))
    none = pa.nulls(len(prompts), pa.int32())
    zero = pa.array(np.zeros(len(prompts), np.int32))
    for name, column in (("prompt_ids", made), ("prefix_row", none), ("prefix_tokens", zero)):
        table = table.set_column(table.column_names.index(name), name, column)
    return table
