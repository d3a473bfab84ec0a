from __future__ import annotations

import random

import pytest
from tests.chaos.chaos import BAD, in_order, kinds_here, run, run_fleet, together
from tests.chaos.fleet import HURTS
from tests.chaos.hurts import WAL, break_file
from tests.chaos.sidecars import trained_twice


async def rounds(folder, hurts: list[str]) -> None:
    """A short form: no small disk is mounted here, and the hurts come in turn."""
    said: list[str] = []
    found = await run(folder, len(hurts), 7, mount=False, hurts=hurts, said=said.append)
    assert found["rounds"] == len(hurts), said
    assert {found[n] for n in ("lost", "doubled", "out_of_order", "returned", "refused_starts")} == {0}, (found, said)
    assert found["acknowledged"] > 0


@pytest.mark.timeout(900)
async def test_what_was_acknowledged_is_there_once(tmp_path):
    await rounds(tmp_path, ["flipped", "control"])


@pytest.mark.chaos
@pytest.mark.timeout(900)
async def test_what_was_acknowledged_is_there_once_whatever_is_killed(tmp_path):
    kinds = kinds_here(tmp_path, print, disk=False)
    await rounds(tmp_path, [*kinds, "proxy", "tail"])


@pytest.mark.chaos
@pytest.mark.timeout(900)
async def test_two_proxies_lose_nothing_whatever_is_killed_or_hangs(tmp_path):
    said: list[str] = []
    found = await run_fleet(tmp_path, len(HURTS), 7, mount=False, hurts=list(HURTS), said=said.append)
    assert found["rounds"] == len(HURTS), said
    assert {n: v for n, v in together([found]).items() if n in BAD and v} == {}, said
    assert int(str(found["acknowledged"])) > 0


def test_parts_are_added_up():
    found = together(
        [
            {"lost": 1, "rounds": 2, "hurts": {"full": 1}},
            {"lost": 2, "rounds": 3, "failed_by_us": 1, "hurts": {"full": 2}},
        ]
    )
    assert (found["lost"], found["rounds"], found["failed_by_us"], found["refused_starts"]) == (3, 5, 1, 0)
    assert found["hurts"] == {"full": 3}


def test_a_group_that_was_trained_twice_is_found(tmp_path):
    file = tmp_path / "trained"
    assert list(trained_twice(file)) == []
    file.write_text("g1\ng2\ng1\n")
    assert list(trained_twice(file)) == ["g1"]


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
