from __future__ import annotations

from typing import Any

import pytest
from tests.support import free_port
from tests.support.server import Server

import slipstream
from slipstream.contract import name_of
from slipstream.errors import ApiError, ConfigError


def test_headers_address_reward_and_done(server: Server) -> None:
    server.on("POST", "/episodes/run-1/rewards", {"stored": True, "known": True})
    server.on("POST", "/episodes/run-1/done", {})
    with slipstream.episode("find", id="run-1", split="eval", tags={"user": "7"}, url=server.url, key="k") as ep:
        assert ep.headers == {
            "x-slipstream-episode": "run-1", "x-slipstream-split": "eval", "x-slipstream-task": "find", "x-slipstream-tag-user": "7",
        }  # fmt: skip
        assert ep.base_url == f"{server.url}/t/find/e/run-1/v1"
        ep.reward(0.5, name="style", reason="short")
        assert server.asked("POST", "/slipstream/v1/episodes/run-1/done") == []
    reward, done = server.seen
    assert (reward.json["value"], reward.json["name"], reward.json["source"]) == (0.5, "style", "agent")
    assert reward.json["reason"] == "short"
    assert done.path == "/slipstream/v1/episodes/run-1/done"
    assert done.headers["authorization"] == "Bearer k"


def test_it_is_done_when_the_block_raises_too(server: Server) -> None:
    with pytest.raises(KeyError), slipstream.episode(id="run-2", url=server.url):
        raise KeyError
    assert [s.path for s in server.seen] == ["/slipstream/v1/episodes/run-2/done"]


def test_ids_are_made_up_and_differ() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with slipstream.episode(url=url) as first, slipstream.episode(url=url) as second:
        assert first.id != second.id
        assert first.base_url == f"{url}/e/{first.id}/v1"
        assert "x-slipstream-task" not in first.headers


def test_a_proxy_that_is_away_hurts_only_who_asks_it() -> None:
    with slipstream.episode(url=f"http://127.0.0.1:{free_port()}") as ep:
        with pytest.raises(ApiError):
            ep.reward(1.0)


def test_what_is_not_stored_is_not_said_to_be_done(server: Server) -> None:
    with slipstream.episode(split="off", url=server.url):
        pass
    assert server.seen == []


def test_any_text_names_an_episode_and_a_task(server: Server) -> None:
    with slipstream.episode("Book a flight to Oslo", id="run 7/8", url=server.url) as ep:
        assert ep.id == name_of("run 7/8") == ep.headers["x-slipstream-episode"]
        assert ep.headers["x-slipstream-task"] == "Book a flight to Oslo"
        assert ep.base_url == f"{server.url}/t/Book%20a%20flight%20to%20Oslo/e/{ep.id}/v1"
    assert [s.path for s in server.seen] == [f"/slipstream/v1/episodes/{ep.id}/done"]
    with slipstream.episode("Zürich\n", split="off", url=server.url) as ep:
        assert ep.headers["x-slipstream-task"] == name_of("Zürich\n")


@pytest.mark.parametrize(
    "wrong",
    [
        {"split": "test"},
        {"tags": {"a b": "1"}}, {"tags": {"a": "1\r\nx: y"}}, {"tags": {"a": "ä"}},
    ],
)  # fmt: skip
def test_names_that_no_header_can_carry(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^episode\("), slipstream.episode(**wrong):
        pytest.fail("the block ran")
