from __future__ import annotations

import errno

from slipstream_proxy.data.observe import losses
from slipstream_proxy.data.observe.losses import LossCount, Losses, read_losses
from slipstream_proxy.data.shared_map import SharedMap

FULL = OSError(errno.ENOSPC, "full")


def test_a_killed_workers_count_is_there_at_once(tmp_path):
    count = LossCount(tmp_path, 0)
    count.add(2, FULL)
    count.add(3, ValueError("no JSON"))
    LossCount(tmp_path, 1).add(1, FULL)
    found = read_losses(tmp_path)
    assert (found.calls, found.why) == (6, "No space left on device")
    again = LossCount(tmp_path, 0)
    assert again.calls == 5
    again.add(1, FULL)
    assert read_losses(tmp_path).calls == 7


def test_a_count_that_began_on_a_full_disk_goes_into_the_file_once_there_is_room(tmp_path, monkeypatch):
    LossCount(tmp_path, 0).add(1, FULL)

    class NoRoom(SharedMap):
        def __init__(self, path, size):
            if path is not None:
                raise FULL
            super().__init__(path, size)

    with monkeypatch.context() as during:
        during.setattr(losses, "SharedMap", NoRoom)
        count = LossCount(tmp_path, 0)
        count.add(4, FULL)
        assert count.calls == 4
    count.add(1, FULL)
    assert count.calls == read_losses(tmp_path).calls == 6


def test_what_is_no_count_counts_for_nothing(tmp_path):
    (tmp_path / "lost0").write_text("half")
    assert read_losses(tmp_path) == read_losses(tmp_path / "none") == Losses()
