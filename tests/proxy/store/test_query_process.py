from __future__ import annotations

import pytest
from tests.support.records import call

from slipstream_proxy.store import query_process
from slipstream_proxy.store.driver import QueryError


def test_a_result_that_is_too_large_is_refused(store):
    store.ingest([call()], {})
    with pytest.raises(QueryError, match="the result is larger than|it needs more than"):
        store.sql(f"select repeat('x', {query_process.RESULT_BYTES + 1}) from calls", 10, 30)  # type: ignore[attr-defined]


def test_values_come_as_json(store):
    store.ingest([call("a")], {})
    got = store.sql("select episode, ts, cast(null as text) as nothing, 1.5 as number from calls", 10, 30)
    ((episode, ts, nothing, number),) = got.rows
    assert (episode, isinstance(ts, float), nothing, number) == ("a", True, None, 1.5)
