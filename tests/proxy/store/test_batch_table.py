from __future__ import annotations

from slipstream.contract import BATCH_COLUMNS
from slipstream_proxy.store.batch_table import SCHEMA, batch_table
from slipstream_proxy.store.freshness import Freshness


def test_an_empty_batch_has_its_columns():
    made = batch_table([], Freshness({}, 0, 4, set()))
    assert (made.num_rows, made.schema) == (0, SCHEMA)
    assert tuple(made.column_names) == BATCH_COLUMNS
