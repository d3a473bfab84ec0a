"""Workers of one proxy know the same conversations."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.support.dataplane import ASK, Proxy
from tests.support.dialects import reply, turn, user

from slipstream.config import Config
from slipstream_proxy.data.episode import shared_table as module
from slipstream_proxy.data.episode.memory import EpisodeMemory
from slipstream_proxy.data.episode.shared_table import SharedTable
from slipstream_proxy.data.wire.identity import Tags


@pytest.fixture
def workers(tmp_path):
    tables = [SharedTable(tmp_path / "conversations", 1800.0) for _ in range(3)]
    yield [EpisodeMemory(shared=table) for table in tables]
    for table in tables:
        table.close()


def on(i: int) -> Any:
    return turn(user("go"), {"role": "assistant", "content": f"answer {i}"}, user("on"))


def test_a_conversation_goes_on_at_any_worker(workers):
    one, two, three = workers
    first = one.of("-", Tags(), turn(user("go")))
    one.remember(first, turn(user("go")), reply("answer 1"))
    second = two.of("-", Tags(), on(1))
    assert second.id == first.id
    two.remember(second, on(1), reply("more"))
    longer = turn(
        user("go"),
        {"role": "assistant", "content": "answer 1"},
        user("on"),
        {"role": "assistant", "content": "more"},
        user("end"),
    )
    assert three.of("-", Tags(), longer).id == one.of("-", Tags(), longer).id == first.id
    assert two.of("other key", Tags(), on(1)).id != first.id and two.of("-", Tags(), on(2)).id != first.id


@pytest.mark.parametrize("count", [1, 8, 9, 17, 64, 128])
def test_runs_that_say_the_same_stay_apart(workers, count):
    runs = [w.of("-", Tags(), turn(user("go"))) for w in itertools.islice(itertools.cycle(workers), count)]
    for worker, run in zip(itertools.cycle(workers), runs, strict=False):
        worker.remember(run, turn(user("go")), reply("answer"))
    said = [user("go")]
    for number in range(3):
        said += [{"role": "assistant", "content": "answer" if not number else f"answer {number}"}, user("on")]
        found = [w.of("-", Tags(), turn(*said)) for w in itertools.islice(itertools.cycle(workers[::-1]), count)]
        assert {run.id for run in found} == {run.id for run in runs}
        for worker, run in zip(workers * count, found, strict=False):
            worker.remember(run, turn(*said), reply(f"answer {number + 1}"))


def test_a_prompt_that_is_asked_for_ever_takes_its_share_of_the_table(tmp_path):
    table = SharedTable(tmp_path / "t", 1800.0)
    table.put("tip", "-", b"other", "other")
    for i in range(2000):
        table.put("tip", "-", b"same", f"e{i}")
    there = table.names("tip", "-", b"same")
    assert (
        module.MAX_SAME_NAMES - module._SHARE < len(there) <= module.MAX_SAME_NAMES + module.PROBED_SLOTS
        and "e1999" in there
    )
    assert table.names("tip", "-", b"other") == ["other"] and len(table._full) == 1
    table.close()


def test_a_share_that_is_forgotten_is_used_again(tmp_path, monkeypatch):
    table = SharedTable(tmp_path / "t", 1800.0)
    for i in range(40):
        table.put("tip", "-", b"same", f"e{i}")
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3600.0)
    table.put("tip", "-", b"same", "later")
    assert table.names("tip", "-", b"same") == ["later"]
    table.close()


def test_runs_of_two_workers_that_say_the_same_stay_apart(workers):
    one, two, _ = workers
    runs = [w.of("-", Tags(), turn(user("go"))) for w in (one, two)]
    for worker, run in zip((one, two), runs, strict=True):
        worker.remember(run, turn(user("go")), reply("answer"))
    same = turn(user("go"), {"role": "assistant", "content": "answer"}, user("on"))
    assert {one.of("-", Tags(), same).id for _ in range(2)} == {run.id for run in runs}


def test_a_call_that_is_sent_again_to_another_worker(workers):
    one, two, _ = workers
    runs = [one.of("-", Tags(), turn(user("go"))) for _ in range(3)]
    for run in runs:
        one.failed("-", b"h", run)
    one.end(runs[0])
    found = [w.again("-", b"h") for w in (two, one, two, one)]
    assert sorted(f or "" for f in found) == sorted(["", "", runs[1].id, runs[2].id])


def test_tool_call_ids_of_another_worker(workers):
    one, two, three = workers
    for worker, text, ids in ((one, "a", ["call_x7f2a9c1b", "0"]), (two, "b", ["call_y3d8e5f0a", "0"])):
        worker.remember(worker.of("-", Tags(episode=text), None), turn(user(text)), reply(None, ids))

    def back(uid: str) -> Any:
        call = {"role": "assistant", "tool_calls": [{"id": uid}]}
        return turn(user("compacted"), call, {"role": "tool", "tool_call_id": uid, "content": "r"})

    assert (
        three.of("-", Tags(), back("call_x7f2a9c1b")).id == "a"
        and three.of("-", Tags(), back("call_y3d8e5f0a")).id == "b"
    )
    assert three.of("-", Tags(), back("0")).id not in ("a", "b")
    two.end(two.of("-", Tags(episode="b"), None))
    assert not three.of("-", Tags(), back("call_y3d8e5f0a")).id.startswith("b")


def test_what_is_done_is_done_everywhere(workers):
    one, two, three = workers
    first, known = (w.of("-", Tags(episode="e"), None) for w in (one, two))
    assert first.id == known.id == "e"
    one.end(first)
    assert [w.of("-", Tags(episode="e"), None).id for w in workers] == ["e~2"] * 3
    two.finish("-", "e~2")
    assert [w.of("-", Tags(episode="e"), None).id for w in workers] == ["e~3"] * 3
    three.finish("-", "never seen here")
    assert one.of("-", Tags(episode="never seen here"), None).id == "never seen here~2"
    assert one.of("k", Tags(episode="e"), None).id == "e"


def test_a_full_table_forgets_the_oldest(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TABLE_SLOTS", 32)
    table = SharedTable(tmp_path / "t", 1800.0)
    for i in range(1000):
        table.put("tip", "-", b"%d" % i, f"e{i}")
        assert table.claim("tip", "-", b"%d" % i) == f"e{i}"
    assert table.names("tip", "-", b"0") == []
    table.put("tip", "-", b"x", "n" * 200)  # no name is so long
    assert table.names("tip", "-", b"x") == []
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3600.0)
    assert table.names("tip", "-", b"999") == [] and table.claim("tip", "-", b"999") is None
    table.close()


def test_a_prompt_that_is_asked_for_ever_fills_no_memory():
    episodes = EpisodeMemory()
    for _ in range(2000):
        run = episodes.of("-", Tags(), turn(user("go")))
        episodes.remember(run, turn(user("go")), reply("answer"))
        episodes.failed("-", b"h", run)
    (tip,) = episodes._tips.values()
    assert len(tip.episodes) <= 256 and len(episodes._failed["-", b"h"]) <= 256
    same = turn(user("go"), {"role": "assistant", "content": "answer"}, user("on"))
    assert episodes.of("-", Tags(), same).id in {name for _, name in tip.episodes}


async def test_two_workers(tmp_path, fake):
    config = Config(data_dir=str(tmp_path), engine={"urls": [fake.url], "name": "tiny"}, proxy={"workers": 2})
    one, two = [await Proxy(config).start() for _ in range(2)]
    try:

        async def ask(proxy, messages):
            async with aiohttp.ClientSession() as session:
                async with session.post(
                    f"{proxy.url}/v1/chat/completions", json={**ASK, "messages": messages}
                ) as answer:
                    said = (await answer.json())["choices"][0]["message"]
                    return answer.headers["x-slipstream-episode"], [
                        *messages,
                        {k: said[k] for k in ("role", "content")},
                        user("more"),
                    ]

        first, messages = await ask(one, ASK["messages"])
        for proxy in (two, one, two):
            episode, messages = await ask(proxy, messages)
            assert episode == first, json.dumps(messages)
    finally:
        await one.stop()
        await two.stop()


FULL = """
import asyncio, resource, sys
from slipstream.config import Config
from slipstream_proxy.data.plane import Plane
from slipstream_proxy.keys import Key
folder, limit = sys.argv[1], int(sys.argv[2])
async def main():
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    plane = Plane(Config(data_dir=folder, engine={"name": "tiny"}, proxy={"workers": 2}))
    key = Key("k1", "k", ("inference",), 100.0, 1)
    for number in range(3):
        plane.limits.enter(key)
        plane.limits.leave(key)
    print("alone" if plane.shared is None else "shared")
    if plane.shared is not None:
        for number in range(20000):
            plane.shared.put("tip", "k", b"%d" % number, "e%d" % number)
    await plane.close()
asyncio.run(main())
"""


def run_full(folder: Path, limit: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", FULL, str(folder), str(limit)], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("limit", [10_000, 1_500_000])
def test_where_a_file_may_not_grow_a_worker_goes_on_alone(tmp_path, limit):
    done = run_full(tmp_path, limit)
    assert done.returncode == 0 and done.stdout == "alone\n", done.stderr
    assert run_full(tmp_path).stdout == "shared\n"


@pytest.fixture
def small_disk(tmp_path):
    """A tmpfs of 2 MiB: room for the limits, and none for the conversations."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("no right to mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("filled", [0, 2**20, 2**21])
def test_on_a_full_disk_no_worker_dies(small_disk, filled):
    with contextlib.suppress(OSError), (small_disk / "full").open("wb") as file:
        file.write(bytes(filled))
        file.flush()
    done = run_full(small_disk)
    assert done.returncode == 0 and done.stdout == "alone\n", done.stderr


def test_a_file_with_holes_gets_its_places(small_disk):
    """As an older version left it."""
    size = module.TABLE_SLOTS * module._SLOT.size
    with (small_disk / "conversations").open("wb") as file:
        file.truncate(size)
    assert run_full(small_disk).stdout == "alone\n"
