from __future__ import annotations

import random

import pytest
from tests.chaos.chaos import in_order, kinds_here, run
from tests.chaos.hurts import WAL, break_file


async def rounds(folder, hurts: list[str]) -> None:
    """A short form: no small disk is mounted here, and the hurts come in turn."""
    said: list[str] = []
    found = await run(folder, len(hurts), 7, mount=False, hurts=hurts, said=said.append)
    assert found["rounds"] == len(hurts), said
    assert {found[n] for n in ("lost", "doubled", "disordered", "returned", "refused_starts")} == {0}, (found, said)
    assert found["acknowledged"] > 0


@pytest.mark.timeout(900)
async def test_what_was_acknowledged_is_there_once(tmp_path):
    await rounds(tmp_path, ["flipped", "control"])


@pytest.mark.chaos
@pytest.mark.timeout(900)
async def test_what_was_acknowledged_is_there_once_whatever_is_killed(tmp_path):
    kinds = kinds_here(tmp_path, print, disk=False)
    await rounds(tmp_path, [*kinds, "proxy", "tail"])


@pytest.mark.parametrize("how", WAL)
def test_files_are_broken_in_one_place(tmp_path, how):
    path = tmp_path / "log"
    before = random.Random(1).randbytes(4096)
    path.write_bytes(before)
    break_file(path, how, random.Random(2))
    assert path.read_bytes() != before


def test_order_is_that_of_what_was_told():
    assert in_order(["a", "c"], ["a", "b", "c"])
    assert not in_order(["c", "a"], ["a", "b", "c"])


def test_what_cannot_be_done_here_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.chaos.chaos.strace_works", lambda: False)
    monkeypatch.setattr("tests.chaos.chaos.clock_library", lambda _: None)
    said: list[str] = []
    assert set(WAL) < set(kinds_here(tmp_path, said.append, disk=False))
    assert [line.split(":")[0] for line in said] == ["skipped"] * 3
