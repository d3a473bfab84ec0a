"""Every combination of scope, route and source: who may write which reward."""

from __future__ import annotations

import itertools

import pytest
from tests.support.plane import API, until

from slipstream_proxy.control.api.http import Caller, check_reward
from slipstream_proxy.control.shared.problem import Problem

SCOPES = ("inference", "reward", "grade", "judge", "trainer", "admin")
SOURCES = ("agent", "environment", "human", "judge")
NAMES = ("reward", "judge")
MAY = {
    "inference": {("agent", "reward"), ("environment", "reward")},
    "reward": {("agent", "reward"), ("environment", "reward")},
    "grade": {("agent", "reward"), ("environment", "reward"), ("human", "reward"), ("human", "judge")},
    "judge": {("judge", "reward"), ("judge", "judge")},
    "trainer": set(),
    "admin": set(itertools.product(SOURCES, NAMES)),
}
"""Scope → (source, name) that a key with it alone may write."""


@pytest.fixture
async def filled(make_plane):
    plane = await make_plane(groups={"size": 2}, reward={"weights": {"reward": 1.0, "judge": 1.0}})
    for n in range(2):
        await plane.call(f"e{n}", key="k", done=True)
        await plane.seen(f"e{n}", key="k")
    return plane


async def test_rewards_of_an_episode(filled):
    for scope, source, name in itertools.product(SCOPES, SOURCES, NAMES):
        body = {"name": name, "source": source, "value": 1.0}
        status, answer = await filled.ask("POST", "/episodes/e0/rewards", body, key="k", scopes=[scope])
        may = scope != "inference" and (source, name) in MAY[scope]
        assert status == (200 if may else 403), (scope, source, name, answer)
        if status == 403:
            assert answer["error"]["fix"] and answer["error"]["field"]


REWARD = {"value": 1.0, "done": False}
TEACHING = (
    ("POST", "/episodes/e0/rewards", REWARD),
    ("POST", "/episodes/e0/feedback", {"reply": "a better one"}),
    ("POST", "/forget", {"episodes": ["e0"]}),
    ("DELETE", "/episodes/e0", None),
)


@pytest.mark.parametrize("by_agents", [False, True])
async def test_a_key_that_may_only_call_the_model_teaches_nothing_unless_it_is_said(make_plane, by_agents):
    plane = await make_plane(reward={"by_agents": by_agents})
    for method, path, body in TEACHING:
        await plane.call("e0", key="k") if method == "POST" and path != "/forget" else None
        status, answer = await plane.ask(method, path, body, key="k", scopes=["inference"])
        if by_agents:
            assert status in (200, 404), (path, answer)
        else:
            assert status == 403 and "reward.by_agents" in answer["error"]["fix"], (path, answer)
        if not by_agents:
            assert (await plane.ask(method, path, body, key="k", scopes=["inference", "reward"]))[0] in (200, 404)
    assert (await plane.ask("POST", "/episodes/e1/done", key="k", scopes=["inference"]))[0] == 200


def test_two_scopes_may_do_what_either_may():
    for pair in itertools.combinations([s for s in SCOPES if s != "trainer"], 2):
        for source, name in itertools.product(SOURCES, NAMES):
            allowed = any((source, name) in MAY[s] for s in pair)
            try:
                check_reward(Caller("k", frozenset(pair)), name, source, {"judge"})
            except Problem as p:
                assert not allowed and p.status == 403, (pair, source, name)
            else:
                assert allowed, (pair, source, name)


async def test_scores_of_a_group(filled):
    async def lease():
        return (await filled.ask("POST", "/groups/lease", {"worker": "j"}, scopes=["judge"]))[1]

    leased = await until(lease)
    group, lease_id = leased["groups"][0]["id"], leased["lease"]
    for scope, source in itertools.product(SCOPES, SOURCES):
        scores = [{"episode": "e0", "name": "judge", "source": source, "value": 0.5}]
        body = {"lease": "no-lease-of-mine", "scores": scores}
        status, _ = await filled.ask("POST", f"/groups/{group}/scores", body, key="j", scopes=[scope])
        may = scope == "admin" or (scope == "judge" and source == "judge")
        assert status == (409 if may else 403), (scope, source)
    body = {"lease": lease_id, "scores": [{"episode": "e0", "value": 0.5}]}
    assert (await filled.ask("POST", f"/groups/{group}/scores", body, scopes=["judge"]))[0] == 200


async def test_an_import_writes_no_judge_score(filled):
    body = {
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
        "metrics": {"judge": 1.0},
    }
    for scope in SCOPES:
        status, _ = await filled.ask("POST", "/import", body, key="k", scopes=[scope])
        assert status == (200 if scope == "admin" else 403), scope
    body["metrics"] = {"won": 1.0}
    for scope in SCOPES:
        for path, sent in (("/import", body), ("/import/conversations", {"conversations": [body]})):
            status, _ = await filled.ask("POST", path, sent, key="k", scopes=[scope])
            assert status == (200 if scope == "admin" else 403), (scope, path)


async def test_no_other_route_writes_rewards_without_admin(filled):
    """An exported episode holds rewards of all sources: only an admin may put it back."""
    detail = await filled.seen("e0", key="k", tokens=1)
    for scope in SCOPES:
        status, _ = await filled.ask("POST", "/import/episode", detail, key="k", scopes=[scope])
        assert (status == 403) == (scope != "admin"), scope


async def test_an_inference_key_cannot_stand_in_for_the_judge(filled):
    """Its attempt changes nothing, so the judge is still asked."""
    body = {"name": "judge", "source": "judge", "value": 1.0}
    for n in range(2):
        assert (await filled.ask("POST", f"/episodes/e{n}/rewards", body, key="k", scopes=["inference", "reward"]))[
            0
        ] == 403
    status, _ = await filled.ask("POST", "/groups/lease", {"worker": "j"}, scopes=["judge"])
    assert status == 200
    r = await filled.client.get(API + "/episodes/e0?key=k", headers=filled.as_())
    assert (await r.json())["rewards"] == []


async def test_no_agent_writes_a_name_of_a_judge(make_plane):
    """Neither the function's beside a model's, nor one that a judge with a configuration of its own reports."""
    plane = await make_plane(judge={"model": "openai/m", "function": "scores:length", "name": "quality"})
    await plane.call("e0", key="k")
    await plane.seen("e0", key="k")

    async def status(name: str, source: str = "agent", scope: str = "inference") -> int:
        body = {"name": name, "source": source, "value": 1.0}
        return (await plane.ask("POST", "/episodes/e0/rewards", body, key="k", scopes=[scope, "reward"]))[0]

    report = {"worker": "j", "names": ["elsewhere"]}
    assert (await plane.ask("POST", "/judge/report", report, scopes=["judge"]))[0] == 200
    for name in ("quality", "function", "Function", "elsewhere"):
        assert await status(name) == 403, name
        assert await status(name, "human", "grade") == 200, name
        assert await status(name, "judge", "judge") == 200, name
    assert await status("judge") == 200, "not a judge's name here"


async def test_no_other_spelling_of_a_source_stands_for_a_judge_or_a_person(filled):
    for source in ("Judge", "JUDGE", "Human", "humaN"):
        body = {"name": "reward", "source": source, "value": 1.0}
        status, answer = await filled.ask("POST", "/episodes/e0/rewards", body, key="k", scopes=["inference", "reward"])
        assert (status, answer["error"]["field"]) == (403, "body.source"), source
