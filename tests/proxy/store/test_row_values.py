"""Values into the database and back."""

from __future__ import annotations

import pytest

from slipstream_proxy.store.tables.rows import clean, cursor_of, dump, dump_list, floats_of, ids_of, load, parse_cursor


def test_what_orjson_cannot_write():
    for value in ("\ud800", {"a": 2**70}, ["\udfff", 1.5]):
        text = dump(value)
        assert text.startswith(" ")
        assert text.isascii()
        assert load(text) == value
    assert dump({"a": "é"}) == '{"a":"é"}'
    assert load(None, 5) == 5


def test_a_list_with_one_odd_value_is_read_whole():
    assert load(dump_list([dump("\ud800"), dump(2**53), dump(2**70)])) == ["\ud800", 2**53, 2**70]
    assert load(dump_list([dump("a"), dump(1.5)])) == ["a", 1.5]
    assert load(dump_list([])) == []


def test_clean():
    assert clean(None) is None
    assert clean("plain") == "plain"
    assert clean("nul\0 lone\ud800 é") == "nul\ufffd lone? é"


def test_blobs():
    assert ids_of(b"\x01\0\0\0\xff\xff\xff\xff").tolist() == [1, -1]
    assert ids_of(None).tolist() == []
    assert floats_of(b"\0\0\x80\x3f").tolist() == [1.0]


def test_cursors():
    assert parse_cursor(cursor_of(1.1, "k/e|1")) == (1.1, "k/e|1")
    with pytest.raises(ValueError):
        parse_cursor("x")
