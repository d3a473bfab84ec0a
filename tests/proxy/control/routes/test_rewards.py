"""Whose episode a reward may name, and which call."""

from __future__ import annotations

import json

import psycopg
import pytest
from tests.support.plane import until

from slipstream_proxy.redaction import redaction_of


async def known(plane, key: str, episode: str):
    return await until(lambda: _seen(plane, key, episode))


async def _seen(plane, key, episode):
    status, body = await plane.ask("GET", f"/episodes/{episode}", params={"key": key})
    return body if status == 200 else None


async def score(plane, episode: str, scopes, *, key="grader", query="", **body):
    return await plane.ask(
        "POST", f"/episodes/{episode}/rewards{query}", {"value": 1.0, **body}, key=key, scopes=scopes
    )


async def test_a_grade_key_scores_episodes_of_other_keys(plane):
    await plane.call("e1", key="agent")
    await known(plane, "agent", "e1")
    status, ack = await score(plane, "e1", ["grade"], source="human")
    assert (status, ack["known"]) == (200, True)
    (reward,) = (await known(plane, "agent", "e1"))["rewards"]
    assert (reward["value"], reward["source"]) == (1.0, "human")


async def test_a_reward_key_is_told_that_it_may_not(plane):
    await plane.call("e1", key="agent")
    await known(plane, "agent", "e1")
    status, body = await score(plane, "e1", ["reward"])
    assert (status, body["error"]["field"]) == (404, "path.episode")
    assert "scope grade" in body["error"]["fix"]
    status, body = await score(plane, "e1", ["reward"], query="?key=agent")
    assert (status, body["error"]["field"]) == (403, "query.key")
    assert "scope grade" in body["error"]["fix"]
    assert (await known(plane, "agent", "e1"))["rewards"] == []


async def test_an_id_that_two_keys_have_needs_the_keys_name(plane):
    for key in ("a", "b"):
        await plane.call("same", key=key)
        await known(plane, key, "same")
    status, body = await score(plane, "same", ["grade"])
    assert (status, body["error"]["fix"]) == (409, "name one with ?key=")
    assert (await score(plane, "same", ["grade"], query="?key=b"))[0] == 200
    assert (await known(plane, "a", "same"))["rewards"] == [] != (await known(plane, "b", "same"))["rewards"]


async def test_a_grade_key_names_an_episode_that_nobody_has(plane):
    status, body = await score(plane, "nobody", ["grade"])
    assert status == 404 and "?key=" in body["error"]["fix"]


async def test_an_agents_own_reward_may_come_first_and_the_answer_says_what_to_do_if_no_call_follows(plane):
    status, ack = await score(plane, "early", ["inference", "reward"], key="agent")
    assert (status, ack["known"]) == (200, False)
    assert "scope grade" in ack["fix"]
    await plane.call("early", key="agent")
    await until(lambda: _rewarded(plane, "agent", "early"))


async def test_a_key_that_makes_calls_and_may_score_others_is_told_to_name_the_key(plane):
    """The id may be its own, whose first call is on the way: the answer names whom else it may mean."""
    await plane.call("e1", key="agent")
    await known(plane, "agent", "e1")
    for scopes in (["inference", "grade"], ["inference", "judge"], ["inference", "admin"]):
        status, ack = await score(plane, "e1", scopes, source="judge" if "judge" in scopes else "human")
        assert (status, ack["known"]) == (200, False)
        assert "?key=agent" in ack["fix"]
    status, ack = await score(plane, "e1", ["inference", "reward"], key="other")
    assert (status, ack["known"]) == (200, False)
    assert "agent" not in ack["fix"], "no key learns of another's episodes"


async def _rewarded(plane, key, episode):
    found = await _seen(plane, key, episode)
    return found and found["reward"] == 1.0


async def test_a_reward_for_an_unknown_call_is_a_404(plane):
    await plane.call("e1")
    await plane.seen("e1")
    status, body = await plane.ask("POST", "/episodes/e1/rewards", {"value": 1.0, "call": "never"})
    assert (status, body["error"]["field"]) == (404, "body.call")
    assert "x-slipstream-call" in body["error"]["fix"]
    assert (await plane.seen("e1"))["rewards"] == []


async def test_a_call_answered_a_moment_ago_can_be_scored(plane):
    await plane.call("e1")
    await plane.seen("e1")
    call = await plane.call("e1", text="more")  # in the spool, not yet in the store
    status, ack = await plane.ask("POST", "/episodes/e1/rewards", {"value": 1.0, "call": call})
    assert (status, ack["known"]) == (200, True)
    assert [r["call"] for r in (await plane.seen("e1"))["rewards"]] == [call]


async def test_a_reward_that_trains_nothing_says_so_in_its_answer(make_plane):
    plane = await make_plane(judge={"model": "openai/x"}, reward={"weights": {"judge": 1.0}})
    await plane.call("e1", key="agent")
    await known(plane, "agent", "e1")
    status, ack = await score(plane, "e1", ["inference", "reward"], key="agent")
    assert (status, ack["stored"], ack["known"]) == (200, True, True)
    assert "reward = 1.0" in ack["fix"] and "[reward] weights" in ack["fix"] and "'judge'" in ack["fix"]


async def test_a_reward_that_trains_has_nothing_to_mend(plane):
    await plane.call("e1", key="agent")
    await known(plane, "agent", "e1")
    assert (await score(plane, "e1", ["inference", "reward"], key="agent"))[1]["fix"] is None


@pytest.mark.parametrize("asked", ["known", "ask"])
async def test_a_store_that_goes_away_beside_a_reward_does_not_have_it_sent_again(plane, monkeypatch, asked):
    """What was written down is answered so: an agent sends again what gets an error, and it would be stored twice."""

    def away(*_):
        raise psycopg.OperationalError("terminating connection due to administrator command")

    await plane.call("e1")
    await plane.seen("e1")
    store = plane.deps.store
    with monkeypatch.context() as broken:
        broken.setattr(store.episodes if asked == "known" else store.standings, asked, away)
        for path, body in (("rewards", {"value": 0.5, "done": False}), ("done", {})):
            episode = "e1" if asked == "ask" else "later"
            status, ack = await plane.ask("POST", f"/episodes/{episode}/{path}", body)
            assert (status, ack["stored"]) == (200, True)
            assert ack["known"] is (asked == "ask") or "once the store is back" in ack["fix"]
    await plane.call("later")
    assert len((await plane.seen("later"))["rewards"]) == (asked == "known")
    assert len((await plane.seen("e1"))["rewards"]) == (asked == "ask")


async def say(plane, episode: str = "e1", **body):
    return await plane.ask("POST", f"/episodes/{episode}/feedback", body, key="agent", scopes=["inference", "reward"])


async def test_feedback_is_a_reward_with_words(plane):
    await plane.call("e1", key="agent")
    (call,) = (await known(plane, "agent", "e1"))["call_list"]
    for _ in range(2):
        status, ack = await say(plane, text="shorter", call=call["id"], key="once")
        assert (status, ack["known"], ack["fix"]) == (200, True, None)
    assert (await say(plane, thumb="down", reply="No."))[0] == 200
    words, thumb = (await known(plane, "agent", "e1"))["rewards"]
    assert (words["name"], words["source"], words["call"], words["reason"]) == ("words", "user", call["id"], "shorter")
    assert (thumb["name"], thumb["value"], thumb["call"]) == ("thumbs", -1.0, None)
    assert thumb["meta"]["words"] == "A better reply would have been:\n\nNo."


async def test_feedback_that_says_nothing_or_of_no_call_is_refused(plane):
    await plane.call("e1", key="agent")
    await known(plane, "agent", "e1")
    status, body = await say(plane)
    assert status == 422 and "Value error" not in body["error"]["message"]
    assert body["error"]["fix"] == "give text, reply (a better one) or thumb (up or down)"
    for nothing in (" \n", "\0", "\u200b\u2060"):
        status, body = await say(plane, text=nothing)
        assert (status, body["error"]["field"]) == (422, "body.text") and "leave it out" in body["error"]["fix"]
    status, body = await say(plane, edit="better")
    assert (body["error"]["field"], body["error"]["fix"]) == ("body.edit", "did you mean reply?")
    status, body = await say(plane, text="no", call="c-unknown")
    assert (status, body["error"]["field"]) == (404, "body.call")
    assert (await known(plane, "agent", "e1"))["rewards"] == []


@pytest.mark.parametrize("name", ["words", "thumbs"])
async def test_a_reward_is_no_way_around_feedback(plane, name):
    status, body = await score(plane, "e1", ["inference", "reward"], name=name, meta={"words": "x" * 30_000})
    assert (status, body["error"]["field"]) == (422, "body.meta.words") and "feedback" in body["error"]["fix"]


async def test_feedback_says_who_says_it(plane):
    await plane.call("e1", key="agent")
    await known(plane, "agent", "e1")
    path = "/episodes/e1/feedback"
    for n, scopes in enumerate((["judge"], ["judge", "inference"])):
        body = {"text": "no", "source": "judge", "key": str(n)}
        assert (await plane.ask("POST", path, body, params={"key": "agent"}, key="j", scopes=scopes))[0] == 200
    assert (await say(plane, text="no", source="judge"))[0] == 403
    assert [r["source"] for r in (await known(plane, "agent", "e1"))["rewards"]] == ["judge", "judge"]


async def test_feedback_about_an_evaluation_run_or_a_forgotten_one_says_that_it_teaches_nothing(plane):
    await plane.call("test", key="agent", split="eval")
    await plane.call("gone", key="agent")
    await known(plane, "agent", "test"), await known(plane, "agent", "gone")
    assert "never trained on" in (await say(plane, "test", text="no"))[1]["fix"]
    assert (await say(plane, "test", thumb="up"))[0] == 200
    await plane.ask("DELETE", "/episodes/gone", key="agent", scopes=["inference", "reward"])
    status, body = await say(plane, "gone", text="no")
    assert (status, body["error"]["message"]) == (404, "episode gone was forgotten")


def without_names(record):
    if "feedback.reply" in record:
        raise KeyError("feedback.text")
    return {name: text.replace("Ann", "someone") for name, text in record.items()}


CARD = "4111-1111-1111-1111"


def without_cards(record):
    return {name: text.replace(CARD, "[CARD]") for name, text in record.items()}


async def test_what_people_write_of_a_run_is_redacted_and_its_old_name_still_means_it(plane):
    plane.control.deps.config.proxy.redact = f"{__name__}:without_cards"
    named = redaction_of(plane.control.deps.config).id("episode", f"pay-{CARD}")
    assert CARD not in named
    await plane.call(named, key="agent")
    await known(plane, "agent", named)
    meta = {"note": CARD, CARD: [CARD], "words": "no"}
    body = {"value": 1.0, "name": "own", "reason": f"took {CARD}", "key": f"k {CARD}", "meta": meta, "done": False}
    status, ack = await plane.ask("POST", f"/episodes/pay-{CARD}/rewards", body, key="agent")
    assert status == 200 and ack["known"], "the episode's old name leads to it"
    status, again = await plane.ask("POST", f"/episodes/pay-{CARD}/rewards", body, key="agent")
    assert (status, again["stored"]) == (200, False), "the idempotency key is known again"
    (reward,) = (await known(plane, "agent", named))["rewards"]
    assert (reward["reason"], reward["meta"]["note"], reward["meta"]["[CARD]"]) == ("took [CARD]", "[CARD]", ["[CARD]"])
    await plane.ask("POST", f"/episodes/{named}/comments", {"text": CARD})
    await plane.ask("POST", "/annotations", {"text": CARD})
    await plane.ask("POST", "/training/pause", {"reason": CARD})
    await plane.ask("POST", "/import", {"id": f"im-{CARD}", "task": CARD, "tags": {CARD: CARD}, "messages": [{"role": "assistant", "content": CARD}]}, key="agent")  # fmt: skip
    for path in ("/audit", "/annotations", "/training/paused", "/status", "/episodes", f"/episodes/{named}/comments"):
        status, shown = await plane.ask("GET", path)
        assert status == 200 and CARD not in json.dumps(shown), path
    root = plane.control.deps.config.root
    assert not [p.name for p in root.rglob("*") if p.is_file() and CARD.encode() in p.read_bytes()]


async def test_feedback_is_redacted_before_it_is_stored(plane):
    await plane.call("e1", key="agent")
    await known(plane, "agent", "e1")
    plane.control.deps.config.proxy.redact = f"{__name__}:without_names"
    assert (await say(plane, text="Ann is not the other Ann"))[0] == 200
    status, body = await say(plane, reply="a function that knows no reply fails")
    assert (status, body["error"]["field"]) == (422, "body")
    (reward,) = (await known(plane, "agent", "e1"))["rewards"]
    assert (reward["reason"], reward["meta"]) == ("someone is not the other someone", {"words": reward["reason"]})


@pytest.mark.parametrize("scopes", [["inference", "reward"], ["reward"], ["grade"]])
async def test_the_store_is_asked_once_about_a_run_that_it_knows(plane, monkeypatch, scopes):
    """Whoever posts, of a call, with a key of idempotency, with words."""
    call = await plane.call("e1", key="agent", split="eval")
    await plane.seen("e1", key="agent")
    key = "agent" if "reward" in scopes else "wall"
    asked: list[str] = []
    real = type(plane.deps).wait_for

    async def counting(self, coroutine):
        asked.append(str(coroutine))
        return await real(self, coroutine)

    monkeypatch.setattr(type(plane.deps), "wait_for", counting)
    source = {"source": "human"} if scopes == ["grade"] else {}
    body = {"value": 1.0, "call": call, "key": "once", **source}
    status, ack = await plane.ask("POST", "/episodes/e1/rewards", body, key=key, scopes=scopes)
    assert (status, ack["stored"], ack["known"], len(asked)) == (200, True, True, 1), (ack, asked)
    asked.clear()
    status, ack = await plane.ask("POST", "/episodes/e1/feedback", {"text": "be brief"}, key=key, scopes=scopes)
    assert status == 200 and "eval" in ack["fix"] and len(asked) == 1, (ack, asked)


async def test_the_store_is_not_asked_about_a_run_that_has_just_begun_but_of_a_forgotten_one(plane, monkeypatch):
    """Its call is on the way from the spool: nothing but that it was forgotten would keep a reward away."""
    await plane.call("old", key="agent")
    await plane.seen("old", key="agent")
    asked: list[object] = []
    real = plane.deps.standings.answer
    monkeypatch.setattr(plane.deps.standings, "answer", lambda asks: asked.append(asks) or real(asks))

    async def score_begun(name: str) -> int:
        headers = {**plane.as_("agent", None), "x-slipstream-begun": "1"}
        path = f"/slipstream/v1/episodes/{name}/rewards"
        async with plane.client.post(path, json={"value": 1.0}, headers=headers) as r:
            return int(r.status)

    assert [await score_begun(name) for name in ("new", "old")] == [200, 200] and not asked
    assert (await plane.ask("DELETE", "/episodes/old", key="agent"))[0] == 200
    assert [await score_begun(name) for name in ("new", "old")] == [200, 404] and len(asked) == 1
