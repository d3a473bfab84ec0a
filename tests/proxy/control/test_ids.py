from __future__ import annotations

from slipstream.contract import ID_PATTERN
from slipstream_proxy.log.ids import new_id


def test_ids_sort_by_time_and_are_legal():
    import re

    a, b = new_id(1_700_000_000.0), new_id(1_700_000_000.002)
    assert a < b
    assert len(a) == 26
    assert re.match(ID_PATTERN, a)
    assert len({new_id(1.0) for _ in range(1000)}) == 1000
