from __future__ import annotations

from slipstream.contract import BATCH_COLUMNS
from slipstream_proxy.store.learning.groups import Freshness
from slipstream_proxy.store.write.batches import BATCH_SCHEMA, batch_table


def test_an_empty_batch_has_its_columns():
    made = batch_table([], Freshness({}, 0, 4, set()))
    assert (made.num_rows, made.schema) == (0, BATCH_SCHEMA)
    assert tuple(made.column_names) == BATCH_COLUMNS
