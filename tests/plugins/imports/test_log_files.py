"""Logs without ids: the same file is known again, another one is never taken for it, and the answer says which."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from slipstream.client import AsyncClient
from slipstream_chat.report import Report
from slipstream_imports.contract import LogFile
from slipstream_imports.server.log_files import _Known, likeness
from slipstream_imports.survey import Survey
from slipstream_imports.upload import bring_in, read_log

TALK = [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "4"}]


def row(reward: Any, **more: Any) -> dict[str, Any]:
    return {"task": "sum", "messages": TALK, **({} if reward is None else {"reward": reward}), **more}


def log(path: Path, *rewards: Any) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("".join(json.dumps(r if isinstance(r, dict) else row(r)) + "\n" for r in rewards))
    return path


async def taken(plane: Any, *paths: Path) -> tuple[int, int, int]:
    """New, there, changed."""
    survey, report = Survey(), Report()
    survey.look(read_log(paths, None, Report()))
    async with AsyncClient(str(plane.client.make_url("/"))) as client:
        client.http.headers.update(plane.as_())
        await bring_in(client, survey, read_log(paths, None, report), report)
    return tuple(report.standing().values())  # type: ignore[return-value]


async def rewards(plane: Any) -> list[float | None]:
    found = (await plane.ask("GET", "/episodes?limit=100"))[1]["episodes"]
    return sorted((e["reward"] for e in found), key=lambda r: (r is None, r))


async def test_two_days_of_one_task_are_four_episodes(plane: Any, tmp_path: Path) -> None:
    one, two = log(tmp_path / "day1.jsonl", 1.0, 0.0), log(tmp_path / "day2.jsonl", 0.5, 0.25)
    assert await taken(plane, one) == (2, 0, 0)
    assert await taken(plane, two) == (2, 0, 0)
    assert await rewards(plane) == [0.0, 0.25, 0.5, 1.0]
    assert await taken(plane, two) == (0, 2, 0)
    assert await taken(plane, one, two) == (0, 4, 0)
    assert await rewards(plane) == [0.0, 0.25, 0.5, 1.0]


@pytest.mark.parametrize("second", [(1.0, 1.0), (0.5, 0.0), (0.0, 1.0)])
async def test_a_file_of_another_folder_is_another_one(plane: Any, tmp_path: Path, second: tuple[float, ...]) -> None:
    assert await taken(plane, log(tmp_path / "a" / "log.jsonl", 1.0, 0.0)) == (2, 0, 0)
    assert await taken(plane, log(tmp_path / "b" / "log.jsonl", *second)) == (2, 0, 0)
    assert await rewards(plane) == sorted([1.0, 0.0, *second])


async def test_equal_files_of_one_import_are_different_ones(plane: Any, tmp_path: Path) -> None:
    paths = [log(tmp_path / f"{n}.jsonl", 1.0) for n in range(3)]
    assert await taken(plane, *paths) == (3, 0, 0)
    assert await taken(plane, *paths, log(tmp_path / "3.jsonl", 1.0)) == (1, 3, 0)


async def test_a_renamed_and_a_grown_file_are_known(plane: Any, tmp_path: Path) -> None:
    path = log(tmp_path / "log.jsonl", 1.0, 0.0)
    assert await taken(plane, path) == (2, 0, 0)
    renamed = tmp_path / "elsewhere.jsonl"
    shutil.move(path, renamed)
    assert await taken(plane, renamed) == (0, 2, 0)
    assert await taken(plane, log(renamed, 1.0, 0.0, 0.0)) == (1, 2, 0)
    assert await taken(plane, log(tmp_path / "more.jsonl", 1.0, 0.0, 0.0, 0.5)) == (1, 3, 0)
    assert await taken(plane, log(tmp_path / "head.jsonl", 1.0, 0.0, 0.0)) == (0, 3, 0)
    assert await rewards(plane) == [0.0, 0.0, 0.5, 1.0]


async def test_a_corrected_reward_changes_its_own_row(plane: Any, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    assert await taken(plane, log(path, 1.0, 0.0)) == (2, 0, 0)
    assert await taken(plane, log(path, 1.0, 0.25)) == (0, 1, 1)
    assert await taken(plane, log(path, 1.0, 0.0)) == (0, 1, 1)  # and back
    assert await rewards(plane) == [0.0, 1.0]


@pytest.mark.parametrize("bad", ['{"messages": "["}', '{"x": 1}', "no JSON", "[1]", json.dumps(row([1]))])
async def test_a_refused_rows_reward_stays_its_own(plane: Any, tmp_path: Path, bad: str) -> None:
    """Three rows say the same, and the second cannot be taken: mended, it is new, and its twins are as they were."""
    path = log(tmp_path / "log.jsonl", 1.0, 0.75, 0.0)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], bad, lines[2]]))
    assert await taken(plane, path) == (2, 0, 0)
    assert await taken(plane, log(path, 1.0, 0.75, 0.0)) == (1, 2, 0)
    assert await rewards(plane) == [0.0, 0.75, 1.0]


async def test_a_file_that_is_written_anew_overwrites_nothing(plane: Any, tmp_path: Path) -> None:
    assert await taken(plane, log(tmp_path / "log.jsonl", 1.0, 0.0)) == (2, 0, 0)
    assert await taken(plane, log(tmp_path / "log.jsonl", 0.5, 0.25)) == (2, 0, 0)
    assert await rewards(plane) == [0.0, 0.25, 0.5, 1.0]


async def test_it_is_known_after_a_restart_and_to_its_own_key_alone(make_plane: Any, tmp_path: Path) -> None:
    plane = await make_plane()
    path = log(tmp_path / "log.jsonl", 1.0, 0.0)
    assert await taken(plane, path) == (2, 0, 0)
    await plane.again()
    assert await taken(plane, path) == (0, 2, 0)
    body = {"files": [{"path": "0" * 16, "rows": {"1": "0" * 12}}]}
    mine, other = [
        (await plane.ask("POST", "/import/files", body, key=key, scopes=["admin"]))[1]["names"] for key in ("a", "b")
    ]
    body["files"][0] |= {"path": "1" * 16}
    again = (await plane.ask("POST", "/import/files", body, key="a", scopes=["admin"]))[1]["names"]
    assert again == mine == other  # a name is a hash; what tells keys apart is the episode's key
    assert (await plane.ask("POST", "/import/files", body, scopes=["reward"]))[0] == 403


async def test_rows_with_ids_say_what_changed(plane: Any, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    assert await taken(plane, log(path, row(1.0, id="a"), row(0.0, id="b"))) == (2, 0, 0)
    assert await taken(plane, log(path, row(1.0, id="a"), row(0.5, id="b"), row(0.5, id="c"))) == (1, 1, 1)
    twice = log(path, row(1.0, id="a"), row(0.0, id="a"))  # the last reward counts
    assert await taken(plane, twice) == (0, 0, 1)
    assert await taken(plane, twice) == (0, 1, 0)
    assert await rewards(plane) == [0.0, 0.5, 0.5]


async def test_what_a_known_episode_does_not_take_is_told(plane: Any) -> None:
    body = {"id": "a", "task": "t", "messages": TALK, "tags": {"x": "1"}}
    assert (await plane.ask("POST", "/import", body))[1]["state"] == "new"
    told = (await plane.ask("POST", "/import", {**body, "task": "u", "tags": {"x": "2"}}))[1]
    assert (told["state"], told["kept"]) == ("there", ["task", "tags"])
    assert (await plane.ask("POST", "/import", body))[1]["kept"] == []


@pytest.mark.parametrize(
    ("known", "sent", "here", "same"),
    [
        ("ab cd", "ab cd", False, True),
        ("ab cd", "ab", False, True),
        ("ab cd", "ab cd ef", False, True),
        ("ab cd", "ab ce", False, False),
        ("ab cd", "ab ce", True, True),
        ("ab cd", "ae cd", True, True),
        ("ab cd", "ae cf", True, False),
        ("ab cd ef", "ab xd yf", True, False),
        ("ab cd ef", "ab xd ef", True, True),
    ],
)
def test_which_file_is_the_same(known: str, sent: str, here: bool, same: bool) -> None:
    """Two letters a row: what it says, and its reward."""
    rows = [{str(n): pair[0] * 8 + pair[1] * 4 for n, pair in enumerate(text.split())} for text in (known, sent)]
    rows[1] = {place: digits.translate(str.maketrans("xy", "01")) for place, digits in rows[1].items()}
    file = LogFile(path="0" * 16, rows=rows[1])
    assert bool(likeness(_Known("f", "0" * 16 if here else "1" * 16, rows[0]), file)[1]) is same
