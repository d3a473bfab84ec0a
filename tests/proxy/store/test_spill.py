"""What left the memory comes back, and a disk that fails only makes it forgotten."""

from __future__ import annotations

import tempfile

import pytest

from slipstream_proxy.store.conversation.calls import Spill


def test_a_value_comes_back_once():
    spill = Spill(10_000)
    spill.put("a", {"x": [1, 2]})
    spill.put("b", "two")
    assert (spill.take("b"), spill.take("a")) == ("two", {"x": [1, 2]})
    assert (spill.take("a"), spill.take("never")) == (None, None)
    spill.put("a", "again")
    assert spill.take("a") == "again"


def test_the_file_has_an_end():
    spill = Spill(1_000)
    for n in range(100):
        spill.put(str(n), "x" * 100)
    assert spill.take("0") is None
    assert spill.take("99") == "x" * 100
    spill = Spill(1_000_000, places=5)
    for n in range(6):
        spill.put(str(n), n)
    assert (spill.take("4"), spill.take("5")) == (None, 5)
    spill.put("a", 1)
    spill.clear()
    assert spill.take("a") is None


@pytest.mark.parametrize("fails", ["open", "write"])
def test_a_disk_that_takes_nothing_is_no_fault(monkeypatch, fails):
    class Full:
        def seek(self, at):
            pass

        def write(self, data):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    def opened(**_):
        if fails == "open":
            raise OSError(30, "Read-only file system")
        return Full()

    monkeypatch.setattr(tempfile, "TemporaryFile", opened)
    spill = Spill(1_000)
    spill.put("a", 1)
    assert spill.take("a") is None
