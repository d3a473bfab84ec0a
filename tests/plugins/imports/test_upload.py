"""Many at once, again while the proxy is away; what is refused is told, and the rest goes in."""

from __future__ import annotations

import pytest
from tests.support.logs import ASK, END, read, whys
from tests.support.server import Reply, Seen, Server, imported

from slipstream.client import AsyncClient
from slipstream.errors import ApiError
from slipstream_chat.report import Report
from slipstream_imports import upload as module
from slipstream_imports.survey import Entry
from slipstream_imports.upload import upload


def entries(count: int, *, whole: bool = False) -> list[Entry]:
    return [
        Entry(f"f:{i}", i / count, [{"id": f"e{i}"}, {"id": f"e{i}", "more": 1}], whole=whole) for i in range(count)
    ]


async def test_all_of_them_each_in_its_order(server: Server) -> None:
    server.routes["POST", "/import"] = imported
    async with AsyncClient(server.url) as client:
        await upload(client, iter(entries(50)), report := Report())
        assert report.episodes == 50
    seen = [s.json for s in server.asked("POST", "/slipstream/v1/import")]
    assert len(seen) == 100
    for i in range(50):
        assert ["more" in body for body in seen if body["id"] == f"e{i}"] == [False, True]


async def test_a_proxy_that_is_away_for_a_moment(server: Server) -> None:
    tries: dict[str, int] = {}

    def answer(seen: Seen) -> Reply:
        name = seen.json["episodes"][0]["id"]
        tries[name] = tries.get(name, 0) + 1
        return Reply({"error": {"type": "x", "message": "away"}}, 503) if tries[name] == 1 else imported(seen)

    server.routes["POST", "/import/episodes"] = answer
    async with AsyncClient(server.url) as client:
        await upload(client, iter(entries(5, whole=True)), report := Report())
        assert report.episodes == 5


async def test_one_that_stays_away_ends_it(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_TIMEOUT_S", 0.3)
    server.on("POST", "/import", {"error": {"type": "x", "message": "away"}}, 503)
    async with AsyncClient(server.url) as client:
        with pytest.raises(ApiError, match="away"):
            await upload(client, iter(entries(5)), Report())


async def test_exported_episodes_go_in_batches(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_EPISODES", 4)
    monkeypatch.setattr(module, "BATCH_BYTES", 1_000)
    server.routes["POST", "/import/episodes"] = imported
    server.routes["POST", "/import/episode"] = imported
    server.routes["POST", "/import"] = imported
    heavy = Entry("f:9", 0.9, [{"id": "heavy", "text": "x" * 2_000}], whole=True)
    mixed = [*entries(6, whole=True), heavy, *entries(2)]
    async with AsyncClient(server.url) as client:
        await upload(client, iter(mixed), report := Report())
        assert report.episodes == 9
    sent = sorted(len(s.json["episodes"]) for s in server.asked("POST", "/slipstream/v1/import/episodes"))
    assert sent == [2, 4]
    assert [s.json["id"] for s in server.asked("POST", "/slipstream/v1/import/episode")] == ["heavy"]
    assert len(server.asked("POST", "/slipstream/v1/import")) == 4


async def test_conversations_go_in_batches_too(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has several histories goes by itself, each after the other."""
    monkeypatch.setattr(module, "BATCH_EPISODES", 4)
    server.routes["POST", "/import/conversations"] = imported
    server.routes["POST", "/import"] = imported
    plain = [Entry(f"f:{i}", i / 9, [{"id": f"p{i}"}]) for i in range(6)]
    async with AsyncClient(server.url) as client:
        await upload(client, iter([*plain, *entries(1)]), report := Report())
        assert report.episodes == 7
    sent = sorted(len(s.json["conversations"]) for s in server.asked("POST", "/slipstream/v1/import/conversations"))
    assert sent == [2, 4]
    assert [s.json["id"] for s in server.asked("POST", "/slipstream/v1/import")] == ["e0", "e0"]


@pytest.mark.parametrize("whole", [True, False])
async def test_a_refusal_names_its_line_and_the_rest_goes_in(server: Server, whole: bool) -> None:
    name = "episodes" if whole else "conversations"
    taken: list[str] = []

    def answer(seen: Seen) -> Reply:
        ids = [one["id"] for one in seen.json[name]]
        if "e3" in ids:
            field = f"body.{name}.{ids.index('e3')}.id"
            return Reply({"error": {"type": "conflict", "message": "forgotten", "field": field}}, 409)
        taken.extend(ids)
        return imported(seen)

    server.routes["POST", f"/import/{name}"] = answer
    made = [Entry(f"f:{i}", i / 5, [{"id": f"e{i}"}], whole=whole) for i in range(5)]
    async with AsyncClient(server.url) as client:
        await upload(client, iter(made), report := Report())
    assert (report.episodes, report.refused) == (4, ["f:3: forgotten"])
    assert taken == ["e0", "e1", "e2", "e4"]


def test_runs_that_say_the_same_are_episodes_of_their_own(tmp_path):
    row = {"prompt": "q", "completion": "a"}
    first, report = read(tmp_path, {**row, "reward": 1}, {**row, "reward": 1}, {**row, "reward": 0})
    assert len({body["id"] for body in first}) == 3 and report.episodes == 3 and not report.converted
    assert read(tmp_path, *[row] * 3)[0][2]["id"] == first[2]["id"]  # again: the same ones


def test_runs_with_one_id_are_one_episode_which_is_told(tmp_path):
    row = {"id": "a", "messages": [ASK, END]}
    bodies, report = read(tmp_path, {**row, "reward": 1}, {**row, "reward": 0})
    assert {body["id"] for body in bodies} == {"a"} and report.episodes == 1
    assert whys(report) == ["runs with one id are one episode, and its last reward counts"]
