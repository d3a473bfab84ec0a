"""Conformance: the audit log keeps each entry once, in order."""

from __future__ import annotations

import pytest
from tests.support.records import NOW, mutation

from slipstream_proxy.store.tables.small import AuditFilter


def entry(n: int, action: str = "promote", **more):
    data = {
        "id": f"a{n:03d}",
        "at": NOW + n,
        "key": "k1",
        "name": "ops",
        "action": action,
        "target": f"m@{n}",
        "detail": {"n": n},
    }
    return mutation("audit", data | more)


def test_newest_first_in_pages_and_each_once(store):
    entries = [entry(n) for n in range(5)]
    store.ingest(entries, {})
    store.ingest([entry(3), *entries], {})
    seen, cursor = [], None
    while True:
        page = store.audit.page(AuditFilter(limit=2, cursor=cursor))
        seen.append([e.target for e in page.entries])
        if (cursor := page.next) is None:
            break
    assert seen == [["m@4", "m@3"], ["m@2", "m@1"], ["m@0"]]
    assert store.audit.page(AuditFilter(limit=1)).entries[0].detail == {"n": 4}
    assert store.audit.known(["a001", "a009"]) == {"a001"}
    with pytest.raises(ValueError):
        store.audit.page(AuditFilter(cursor="!!nonsense"))


def test_filters_and_texts_that_databases_do_not_take(store):
    store.ingest(
        [entry(1), entry(2, "delete", key="k2", target="e\0\ud800"), entry(3, "label", key=None, name=None)], {}
    )
    for wanted, found in (
        ({"action": "delete"}, [2]), ({"key": "k1"}, [1]), ({"target": "m@3"}, [3]), ({"since": NOW + 2}, [3, 2]), ({"until": NOW + 2}, [1]),
    ):  # fmt: skip
        assert [e.detail["n"] for e in store.audit.page(AuditFilter(**wanted)).entries] == found, wanted
