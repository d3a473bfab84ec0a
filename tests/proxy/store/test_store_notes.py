"""Conformance: the store's notes about itself."""

from __future__ import annotations

from slipstream_proxy.store.tables.tallies import get_meta, set_meta


def test_a_note_is_there_until_it_is_changed(opened):
    store = opened()
    with store.db.write() as tx:
        assert get_meta(tx, "a note") is None
        set_meta(tx, "a note", "1")
        set_meta(tx, "another", "x")
        set_meta(tx, "a note", "2")
    store.close()
    with opened().db.read() as tx:
        assert (get_meta(tx, "a note"), get_meta(tx, "another")) == ("2", "x")
