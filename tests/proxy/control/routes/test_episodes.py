from __future__ import annotations

import asyncio

import pytest
from tests.support.plane import until


async def test_a_call_becomes_an_episode(plane):
    await plane.call("e1")
    body = await plane.seen("e1")
    assert body["task"] == "t1"
    assert body["call_list"][0]["reply"][0]["content"] == "hi"
    assert body["call_list"][0]["prompt_ids"] is None


async def test_tokens_on_demand(plane):
    await plane.call("e1")
    body = await plane.seen("e1", tokens=1)
    call = body["call_list"][0]
    assert (call["prompt_ids"], call["completion_ids"], call["logprobs"]) == ([1, 2, 3], [[4, 5]], [[-0.5, -0.25]])


async def test_a_reward_is_in_the_store_when_the_post_returns(plane):
    await plane.call("e1")
    await plane.seen("e1")
    status, ack = await plane.ask("POST", "/episodes/e1/rewards", {"value": 0.5, "key": "k"})
    assert (status, ack) == (200, {"stored": True, "known": True, "fix": None, "done": True})
    assert (await plane.seen("e1"))["reward"] == 0.5
    assert (await plane.ask("POST", "/episodes/e1/rewards", {"value": 0.9, "key": "k"}))[1]["stored"] is False
    assert (await plane.seen("e1"))["reward"] == 0.5


async def test_a_reward_right_after_the_reply_knows_its_episode(plane):
    for n in range(5):
        await plane.call(f"e{n}")
        status, ack = await plane.ask("POST", f"/episodes/e{n}/rewards", {"value": 1.0})
        assert (status, ack["known"], ack["fix"]) == (200, True, None)


async def test_a_reward_is_answered_before_the_store_has_it_and_read_after(plane):
    await plane.call("e1")
    headers = {**plane.as_(), "x-slipstream-begun": "1"}
    for value in (0.0, 1.0):
        async with plane.deps.ingester._lock:  # the store takes nothing meanwhile
            asked = plane.client.post("/slipstream/v1/episodes/e1/rewards", json={"value": value}, headers=headers)
            reply = await asyncio.wait_for(asked, 5)
            assert (reply.status, (await reply.json())["known"]) == (200, True)
        _, body = await plane.ask("GET", "/episodes/e1")
        assert body["reward"] == value


async def test_the_same_reward_twice_in_a_row_counts_once(plane):
    await plane.call("e1")
    headers = {**plane.as_(), "x-slipstream-begun": "1"}
    said = []
    for value in (0.5, 0.9):
        body = {"value": value, "key": "once"}
        reply = await plane.client.post("/slipstream/v1/episodes/e1/rewards", json=body, headers=headers)
        said.append((await reply.json())["stored"])
    assert said == [True, False]
    assert (await plane.ask("GET", "/episodes/e1"))[1]["reward"] == 0.5


async def test_a_reward_before_its_episode_says_whether_one_is_on_the_way(plane):
    _, ack = await plane.ask("POST", "/episodes/nobody/rewards", {"value": 1.0})
    assert "if another key makes its calls" in ack["fix"]
    plane.deps.ingester.backlog = lambda: (100, 1.0)  # the spool as it is under load
    _, ack = await plane.ask("POST", "/episodes/nobody/rewards", {"value": 1.0})
    assert "reading newer ones" in ack["fix"] and "another key" not in ack["fix"]


async def test_a_reward_may_come_before_its_episode(plane):
    status, ack = await plane.ask("POST", "/episodes/early/rewards", {"value": 1.0})
    assert (status, ack["known"]) == (200, False)
    await plane.call("early")
    await until(lambda: _reward(plane, "early", 1.0))


@pytest.mark.parametrize("what", ["rewards", "done"])
async def test_what_has_not_begun_is_not_over(plane, what):
    body = {"value": 1.0} if what == "rewards" else {}
    url = f"/slipstream/v1/episodes/early/{what}"
    reply = await plane.client.post(url, json=body, headers=plane.as_())
    said = await reply.json()
    assert (said["known"], said["done"]) == (False, True)
    assert "x-slipstream-done" not in reply.headers, "its first call would be another run's"


async def _reward(plane, episode, value):
    return (await plane.seen(episode))["reward"] == value


async def test_an_orphan_is_refused_after_its_time(plane):
    await plane.ask("POST", "/episodes/never/rewards", {"value": 1.0})
    now = plane.deps.now()
    plane.deps.now = lambda: now + 4000
    status, body = await plane.ask("POST", "/episodes/never/rewards", {"value": 1.0})
    assert (status, body["error"]["field"]) == (404, "path.episode")
    assert (await plane.ask("GET", "/episodes/nobody"))[1]["error"][
        "fix"
    ] == "`slipstream episodes` (GET episodes) lists them"

    async def full() -> bool:
        raise OSError("no space left")

    ingester = plane.deps.stores.ingester
    ingester.round = full
    await plane.call("e1")
    await until(lambda: ingester.stats.broken)
    assert "takes nothing just now" in (await plane.ask("GET", "/episodes/nobody"))[1]["error"]["fix"]


REWARDS = (
    ({"value": 1.0}, True),
    ({"value": 1.0, "done": False}, False),
    ({"value": 1.0, "name": "style"}, False),
    ({"value": 1.0, "name": "style", "done": True}, True),
)


@pytest.mark.parametrize(("reward", "ends"), REWARDS)
async def test_the_final_reward_ends_its_episode(plane, reward, ends):
    call = await plane.call("e1")
    await plane.seen("e1")
    one = await plane.client.post(
        "/slipstream/v1/episodes/e1/rewards", json={"value": 0.1, "call": call}, headers=plane.as_()
    )
    assert (one.status, (await one.json())["done"], "x-slipstream-done" in one.headers) == (200, False, False)
    all_of_it = await plane.client.post("/slipstream/v1/episodes/e1/rewards", json=reward, headers=plane.as_())
    assert ((await all_of_it.json())["done"], "x-slipstream-done" in all_of_it.headers) == (ends, ends)
    assert (await plane.seen("e1"))["state"] == ("done" if ends else "open")


async def test_done(plane):
    await plane.call("e1")
    await plane.seen("e1")
    ack = {"stored": True, "known": True, "fix": None, "done": True}
    assert await plane.ask("POST", "/episodes/e1/done") == (200, ack)
    assert (await plane.seen("e1"))["state"] == "done"


async def test_the_end_of_a_run_that_another_key_makes_is_no_silent_success(plane):
    await plane.call("e1")
    await plane.seen("e1")
    status, ack = await plane.ask("POST", "/episodes/e1/done", key="new", scopes=["inference"])
    assert (status, ack["known"]) == (200, False) and "no call of it has come with this key" in ack["fix"]
    assert (await plane.seen("e1"))["state"] == "open"


async def test_list_and_filter(plane):
    for i in range(5):
        await plane.call(f"e{i}", task=f"t{i % 2}", tags={"env": "a" if i else "b"})
    await plane.seen("e4")
    _, page = await plane.ask("GET", "/episodes", params={"limit": 2})
    seen = [e["id"] for e in page["episodes"]]
    while page["next"]:
        _, page = await plane.ask("GET", "/episodes", params={"limit": 2, "cursor": page["next"]})
        seen += [e["id"] for e in page["episodes"]]
    assert sorted(seen) == [f"e{i}" for i in range(5)]
    assert {e["id"] for e in (await plane.ask("GET", "/episodes?task=t1"))[1]["episodes"]} == {"e1", "e3"}
    assert [e["id"] for e in (await plane.ask("GET", "/episodes?tag.env=b"))[1]["episodes"]] == ["e0"]


async def test_runs_of_a_replay_are_listed_where_they_are_asked_for(plane):
    for name, split, tags in (
        ("replay-1", "eval", {"replay": "m 2"}),
        ("own", "eval", {"replay": "mine"}),
        ("e", "train", {}),
    ):
        await plane.call(name, split=split, tags=tags)
    await plane.seen("e")
    for query, found in (
        ("", {"own", "e"}),
        ("?split=eval", {"own"}),
        ("?tag=replay", {"replay-1", "own"}),
        ("?tag.replay=m+2", {"replay-1"}),
    ):
        assert {e["id"] for e in (await plane.ask("GET", f"/episodes{query}"))[1]["episodes"]} == found, query


async def test_keys_see_their_own_episodes_only(plane):
    await plane.call("mine", key="k1")
    await plane.call("mine", key="k2", text="other")
    await until(lambda: _two(plane))
    _, page = await plane.ask("GET", "/episodes", key="k1", scopes=["inference"])
    assert [e["key"] for e in page["episodes"]] == ["k1"]
    assert (await plane.ask("GET", "/episodes?key=k2", key="k1", scopes=["inference"]))[0] == 403
    assert (
        await plane.ask("POST", "/episodes/mine/rewards", {"value": 1.0}, key="k1", scopes=["inference", "reward"])
    )[0] == 200
    assert (await plane.ask("GET", "/episodes/mine?key=k2"))[1]["reward"] is None
    assert (await plane.ask("GET", "/episodes/mine?key=k1"))[1]["reward"] == 1.0
    assert (await plane.ask("POST", "/episodes/mine/rewards?key=k2", {"value": 0.0}))[0] == 200
    assert (await plane.ask("POST", "/episodes/mine/rewards", {"value": 1.0}, key="k1", scopes=["trainer"]))[0] == 403


async def _two(plane):
    return len((await plane.ask("GET", "/episodes"))[1]["episodes"]) == 2


async def test_forgetting(plane):
    await plane.call("e1", text="secret words")
    await plane.seen("e1")
    status, body = await plane.ask("DELETE", "/episodes/e1")
    assert (status, body) == (
        200,
        {"id": "e1", "adapters": [], "made_from": [], "anew": [], "steps": [], "cases": [], "exports": []},
    )
    assert (await plane.ask("DELETE", "/episodes/e1"))[0] == 404
    assert "secret" not in str(await plane.ask("GET", "/episodes/e1"))


async def test_datasets(plane):
    import json

    for name, reward in (("a", 1.0), ("b", 0.0)):
        await plane.call(name, text="same question", task="t")
        await plane.seen(name)
        await plane.ask("POST", f"/episodes/{name}/rewards", {"value": reward})
    lines = (await plane.ask("GET", "/export?format=sft"))[1].splitlines()
    assert json.loads(lines[0])["messages"] == [
        {"role": "user", "content": "same question"},
        {"role": "assistant", "content": "hi"},
    ]
    pair = json.loads((await plane.ask("GET", "/export?format=dpo"))[1].splitlines()[0])
    assert (pair["prompt"][0]["content"], pair["chosen_reward"], pair["rejected_reward"]) == ("same question", 1.0, 0.0)
    assert len((await plane.ask("GET", "/export?format=jsonl&reward_min=0.5"))[1].splitlines()) == 1
    r = await plane.client.get("/slipstream/v1/export?format=parquet", headers=plane.as_())
    import io

    import pyarrow.parquet as pq

    assert pq.read_table(io.BytesIO(await r.read())).num_rows == 2


async def _ids(plane, **params) -> list[str]:
    status, page = await plane.ask("GET", "/episodes", params=params)
    assert status == 200, page
    return [e["id"] for e in page["episodes"]]


async def test_find_by_what_was_said_and_by_tag(plane):
    await plane.call("a", text="book a flight", tags={"user": "ann"})
    call = await plane.call("b", text="cancel it", tags={"user": "bob"}, outcome="aborted")
    for name in ("a", "b"):
        await plane.seen(name)
    assert await _ids(plane, q="flight BOOK") == ["a"]
    assert await _ids(plane, q='"flight book"') == []
    assert await _ids(plane, q=call) == ["b"]
    assert await _ids(plane, outcome="aborted") == ["b"]
    assert await _ids(plane, trainable="true") == ["a"]
    assert await _ids(plane, tag="user:bob") == ["b"]
    assert await _ids(plane, tag="user", q="cancel") == ["b"]
    text = (await plane.ask("GET", "/export", params={"q": "flight", "tag": "user"}))[1]
    assert '"id":"a"' in text.replace(" ", "") and '"id":"b"' not in text.replace(" ", "")


async def test_failed_runs_are_found_and_counted_by_themselves(plane):
    for name in ("bad", "worse"):
        refusal = {"choices": [], "error": {"message": "no tools"}}
        await plane.call(name, status=400, outcome="error", answer=refusal, done=True)
    await plane.call("good", done=True)
    for name in ("bad", "worse", "good"):
        await plane.seen(name)
    await plane.ask("POST", "/episodes/bad/rewards", {"value": 1.0})
    assert await _ids(plane, outcome="failed") == await _ids(plane, outcome="error") == ["worse", "bad"]
    assert await _ids(plane, outcome="ok") == ["good"]
    status, page = await plane.ask("GET", "/episodes", params={"outcome": "failed", "limit": "1", "count": "1"})
    assert (status, page["total"], page["episodes"][0]["error"]) == (200, 2, "400: no tools")
    assert (await plane.ask("GET", "/episodes", params={"limit": "1"}))[1]["total"] is None
    assert (await plane.ask("GET", "/status"))[1]["episodes"] == {"done": 1, "failed": 2}
    bad = (await plane.ask("GET", "/episodes/bad"))[1]
    assert (bad["error"], bad["reward"], bad["rewards"][0]["value"]) == ("400: no tools", None, 1.0)


async def test_a_wrong_filter_names_itself(plane):
    for params, field in (
        ({"reward_min": "x"}, "reward_min"),
        ({"reward_min": "2", "reward_max": "1"}, "reward_min"),
        ({"since": "2", "until": "1"}, "since"),
        ({"outcome": "bad"}, "outcome"),
        ({"trainable": "perhaps"}, "trainable"),
        ({"tag": ":b"}, "tag"),
        ({"tag": "a:b", "tag.a": "c"}, "tag"),
        ({"q": " "}, "q"),
        ({"q": "x" * 300}, "q"),
        ({"split": "test"}, "split"),
        ({"adpater": "x"}, "adpater"),
        ({"limit": "0"}, "limit"),
    ):
        for path in ("/episodes", "/export"):
            if path == "/export" and field == "limit":
                continue
            status, body = await plane.ask("GET", path, params=params)
            assert (status, body["error"]["field"]) == (422, f"query.{field}"), (params, body)
            assert body["error"]["fix"]
