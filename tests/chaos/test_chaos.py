from __future__ import annotations

import json
import random

import pytest
from tests.chaos.chaos import BAD, Chaos, in_order, kinds_here, run, run_fleet, together
from tests.chaos.evidence import MOST, keep
from tests.chaos.fleet import HURTS
from tests.chaos.hurts import WAL, break_file
from tests.chaos.sidecars import trained_twice
from tests.chaos.told import Stored, Told


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


def test_an_end_mark_that_was_acknowledged_and_does_nothing_is_a_loss():
    told = Told(calls={"r00001-0-0": ["c1"]}, ended={"r00001-0-0", "r00001-0-1"})
    assert told.missing("r0", Stored(calls={"r00001-0-0": ["c1"]})) == [("r00001-0-0", "end mark")]
    assert told.missing("r0", Stored(calls={"r00001-0-0": ["c1"]}, ended={"r00001-0-0"})) == []
    told.forget("r00001-0-0")
    assert told.ended == {"r00001-0-1"}


def test_what_is_not_asked_for_any_more_is_no_loss():
    told = Told(calls={"r00001-0-0": ["c1", "c2"]}, rewards={"r00001-0-0": [1.0]}, ended={"r00001-0-0"})
    there = Stored(calls={"r00001-0-0": ["c1"]})
    missing = told.missing("r", there)
    assert missing == [("r00001-0-0", "c2"), ("r00001-0-0", 1.0), ("r00001-0-0", "end mark")]
    told.drop(missing)
    assert told.missing("r", there) == [] and told.calls == {"r00001-0-0": ["c1"]}


@pytest.mark.parametrize(
    ("line", "figure"), [("the store is older than the spool: 3 segments", "said"), ("", "unsaid")]
)
async def test_what_an_older_store_lacks_is_said_or_unsaid(tmp_path, monkeypatch, line, figure):
    chaos = Chaos(tmp_path, None, 1, kinds=[], said=lambda _: None)
    (tmp_path / "proxy.log").write_text("the store is older than the spool: of before\n")
    chaos.older_since = (tmp_path / "proxy.log").stat().st_size
    with (tmp_path / "proxy.log").open("a") as log:
        log.write(line)
    chaos.told.calls["r00001-0-0"] = ["c1", "c2"]
    chaos.told.count = 2

    async def ask(begin, enough, patience):
        return Stored(calls={"r00001-0-0": ["c1"]})

    monkeypatch.setattr(chaos, "ask", ask)
    await chaos.check_older()
    assert (vars(chaos.found)[figure], chaos.told.count, chaos.found.lost) == (1, 1, 0)
    assert chaos.found.bad() is (figure == "unsaid")


def test_every_hurt_that_is_promised_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.chaos.chaos.strace_works", lambda: True)
    monkeypatch.setattr("tests.chaos.chaos.clock_library", lambda folder: folder)
    assert {"worker_stops", "control_stops", "older", "full"} <= set(kinds_here(tmp_path, print, disk=True))
    assert {"worker_stops", "control_hangs", "copied"} <= set(HURTS)


def test_only_a_reward_that_no_call_came_to_may_expire():
    told = Told(calls={"r00001-0-0": ["c1"]}, rewards={"r00001-0-0": [1.0], "r00002-0-0": [2.0]}, count=3)
    told.early |= {("r00001-0-0", 1.0), ("r00002-0-0", 2.0)}
    nothing = Stored()
    assert told.missing("r000", nothing) == [("r00001-0-0", "c1"), ("r00001-0-0", 1.0), ("r00002-0-0", 2.0)]
    assert [told.may_expire(*one, nothing) for one in told.missing("r000", nothing)] == [False, False, True]
    told.early.clear()
    assert not any(told.may_expire(*one, nothing) for one in told.missing("r000", nothing))
    assert told.missing("r000", nothing, {"r00001"}) == [("r00002-0-0", 2.0)]


@pytest.mark.parametrize(
    ("rows", "figure"),
    [
        (Stored(calls={"r00001-0-0": ["c1"]}), "lost"),
        (Stored(calls={"r00001-0-0": ["c1", "c2", "c2"]}), "doubled"),
        (Stored(calls={"r00001-0-0": ["c2", "c1"]}), "out_of_order"),
        (Stored(calls={"r00001-0-0": ["c1", "c2"], "r00000-0-0": ["c0"]}), "returned"),
    ],
)
def test_what_shows_why_a_figure_is_bad_is_kept(tmp_path, rows, figure):
    said: list[str] = []
    chaos = Chaos(tmp_path, None, 1, kinds=[], said=said.append)
    chaos.told.calls["r00001-0-0"] = ["c1", "c2"]
    chaos.told.gone.add("r00000-0-0")
    (tmp_path / "data" / "spool").mkdir(parents=True)
    (tmp_path / "data" / "slipstream.duckdb").write_bytes(b"rows")
    chaos.judge("r00001", rows, chaos.told.missing("r00001", rows), 0)
    assert vars(chaos.found)[figure] == 1, said
    kept = tmp_path / "evidence-r00001"
    assert (kept / "data" / "slipstream.duckdb").read_bytes() == b"rows"
    facts = json.loads((kept / "facts.json").read_text())
    assert facts["told"]["calls"] == {"r00001-0-0": ["c1", "c2"]}
    assert facts["stored"]["calls"] == rows.calls


def test_a_disk_holds_the_evidence_of_a_few_rounds(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("x")
    for n in range(MOST + 2):
        keep(tmp_path, f"r{n}", {"data": tmp_path / "data"}, {"n": n})
    kept = sorted(tmp_path.glob("evidence-*"))
    assert [(k / "data" / "file").exists() for k in kept] == [True] * MOST + [False, False]
    assert [json.loads((k / "facts.json").read_text())["n"] for k in kept] == list(range(MOST + 2))
