from __future__ import annotations

import time

import pytest
from tests.support.groups import calls_tool, episode, group, quality_group, result, run, said

from slipstream.client import AsyncClient
from slipstream.contract import GroupKind, Reward, Split
from slipstream.settings import JudgeConfig
from slipstream_judge.compare.group import NEXT_STEP, GroupJudge
from slipstream_judge.compare.rubric import DEFAULT_RUBRIC, Rubrics, rubric_hash
from slipstream_judge.compare.ruler import Ruler
from slipstream_judge.model.budget import Budget
from slipstream_judge.model.cache import VoteCache
from slipstream_judge.model.llm import JudgeFailed, Llm
from slipstream_judge.model.metrics import JudgeMetrics
from slipstream_judge.text.prompt import PROMPT_VERSION


def make(ruled, client=None, model="openai/gpt-4o-mini", **more):
    judge = JudgeConfig(model=model, api_base=ruled.url, **more)
    metrics = JudgeMetrics()
    ruler = Ruler(judge, Llm(judge, Budget(judge, metrics), metrics), metrics)
    return GroupJudge(judge, ruler, Rubrics(judge), VoteCache(client, metrics), metrics)


async def score(judge, group, **more):
    return await judge.score(group, time.time() + 120, **more)


def by_id(judged):
    return {s.episode: s.value for s in judged.scores}


async def test_a_group_is_scored_by_one_call_and_everything_is_stored(ruled):
    judged = await score(make(ruled), quality_group("g", [0.1, 0.9, 0.5]))
    assert by_id(judged) == {"g-0": 0.1, "g-1": 0.9, "g-2": 0.5}
    assert len(ruled.requests) == 1
    first = judged.scores[0]
    assert (first.name, first.source, first.values, first.reason) == ("judge", "judge", [0.1], "ruled 0.100")
    meta = first.meta
    assert (
        meta["model"] == "openai/gpt-4o-mini"
        and meta["prompt"] == PROMPT_VERSION
        and meta["rubric"] == rubric_hash(DEFAULT_RUBRIC)
    )
    assert meta["votes"] == 1 and meta["mode"] == "group" and meta["cached"] is False and meta["parts"] == 1
    assert meta["tokens"] == meta["prompt_tokens"] + meta["completion_tokens"] > 0
    assert meta["cost"] > 0 and meta["latency"] > 0


async def test_siblings_are_judged_as_next_steps(ruled):
    found = quality_group("g", [0.1, 0.9])
    await score(make(ruled), found.model_copy(update={"split": Split.SIBLING}))
    assert NEXT_STEP in ruled.requests[0]["messages"][-1]["content"]


async def test_identical_episodes_are_judged_once(ruled):
    judged = await score(make(ruled), quality_group("g", [0.3, 0.7, 0.3, 0.3]))
    assert by_id(judged) == {"g-0": 0.3, "g-1": 0.7, "g-2": 0.3, "g-3": 0.3}
    assert len(ruled.seen[0].runs) == 2
    assert [s.meta.get("same_as") for s in judged.scores] == [None, "g-0", "g-0", None]


async def test_a_group_of_identical_episodes_is_one_absolute_judgement(ruled):
    judged = await score(make(ruled), quality_group("g", [0.4, 0.4]))
    assert by_id(judged) == {"g-0": 0.4, "g-1": 0.4}
    assert judged.scores[0].meta["mode"] == "absolute" and len(ruled.requests) == 1


async def test_votes_come_in_other_orders_and_cancel_a_bias_of_place(ruled):
    ruled.place_bias = 0.2
    judged = await score(make(ruled, votes=4), quality_group("g", [0.1, 0.3, 0.5, 0.7]))
    assert len(ruled.requests) == 4
    assert len({tuple(r.runs.values()) for r in ruled.seen}) == 4
    values = by_id(judged)
    assert values == pytest.approx({f"g-{n}": q + 0.1 for n, q in enumerate([0.1, 0.3, 0.5, 0.7])})
    for s in judged.scores:
        assert len(s.values) == 4 and s.meta["votes"] == 4 and s.meta["spread"] > 0


async def test_a_minority_of_votes_may_fail(ruled):
    ruled.faults.extend([None, {"status": 400}, None])
    judged = await score(make(ruled, votes=3), quality_group("g", [0.1, 0.9]))
    assert judged.scores[0].meta["votes"] == 2 and by_id(judged) == {"g-0": 0.1, "g-1": 0.9}
    ruled.faults.extend([{"status": 400}, {"status": 400}, None])
    with pytest.raises(JudgeFailed):
        await score(make(ruled, votes=3), quality_group("g", [0.1, 0.9]))


async def test_the_rubric_goes_by_the_task(ruled):
    judge = make(ruled, rubrics={"mail-*": "Mails only."})
    judged = await score(judge, group("g", [episode("a", run(0.1)), episode("b", run(0.2))], task="mail-7"))
    assert "Mails only." in ruled.seen[0].outside
    assert judged.scores[0].meta["rubric"] == rubric_hash("Mails only.")


async def test_the_cache_is_keyed_on_every_input(ruled, control):
    async with AsyncClient(control.url) as client:
        first = await score(make(ruled, client), quality_group("g", [0.1, 0.9]))
        again = await score(make(ruled, client), quality_group("other", [0.9, 0.1]))
        assert len(ruled.requests) == 1
        assert by_id(again) == {"other-0": 0.9, "other-1": 0.1}
        meta = again.scores[0].meta
        assert meta["cached"] is True and meta["tokens"] == 0 and first.scores[0].meta["cached"] is False
        asked = 1
        changes = [
            {"rubric": "Another."},
            {"model": "openai/gpt-4o"},
            {"params": {"temperature": 0.5}},
            {"params": {"max_tokens": 100}},
            {"context": 9000},
        ]
        for change in changes:
            await score(make(ruled, client, **change), quality_group("g", [0.1, 0.9]))  # type: ignore[arg-type]
            asked += 1
            assert len(ruled.requests) == asked, change
        await score(make(ruled, client), quality_group("g", [0.1, 0.8]))
        assert len(ruled.requests) == asked + 1
        more = await score(make(ruled, client, votes=3), quality_group("g", [0.1, 0.9]))
        assert len(ruled.requests) == asked + 3 and more.scores[0].meta["cached"] is False


async def test_nonsense_in_the_cache_is_no_answer(ruled, control):
    async with AsyncClient(control.url) as client:
        await score(make(ruled, client), quality_group("g", [0.1, 0.9]))
        for value in ({}, {"grades": 7}, {"grades": {"x": [0.5, ""]}, "parts": 1}, {"grades": {"x": []}}):
            for key in control.cache:
                control.cache[key] = value
            assert by_id(await score(make(ruled, client), quality_group("g", [0.1, 0.9]))) == {"g-0": 0.1, "g-1": 0.9}
        assert len(ruled.requests) == 5


def window(known, new=0.6):
    context = [episode(f"c{n}", run(q), judge=s) for n, (q, s) in enumerate(known)]
    for e in context:
        e.context = True
    return group("w", [episode("new", run(new), task=None), *context], GroupKind.WINDOW, task=None)


async def test_a_single_episode_is_compared_with_its_window(ruled):
    judged = await score(make(ruled), window([(0.2, 0.25), (0.8, 0.75)]))
    assert by_id(judged) == {"new": 0.6}
    read = ruled.seen[0]
    assert len(read.runs) == 3 and len(read.asked) == 1
    assert "= 0.25" in read.outside and "= 0.75" in read.outside
    assert judged.scores[0].meta["mode"] == "window" and judged.scores[0].meta["compared_with"] == 2


async def test_a_single_episode_alone_or_by_choice_is_judged_absolutely(ruled):
    for judge, work in [(make(ruled), window([])), (make(ruled, singles="absolute"), window([(0.2, 0.25)]))]:
        judged = await score(judge, work)
        assert by_id(judged) == {"new": 0.6} and judged.scores[0].meta["mode"] == "absolute"
        assert len(ruled.seen[-1].runs) == 1


async def test_the_window_is_as_large_as_configured_and_as_fits(ruled):
    known = [(n / 10, n / 10) for n in range(1, 6)]
    await score(make(ruled, window=3), window(known))
    assert len(ruled.seen[-1].runs) == 4
    big = [
        episode(
            f"c{n}",
            [{"messages": [said("user", f"{n} " * 1500)], "reply": [said("assistant", f"QUALITY 0.{n}")]}],
            judge=0.5,
        )
        for n in range(1, 5)
    ]
    for e in big:
        e.context = True
    judged = await score(make(ruled, context=2500), group("w", [episode("new", run(0.6)), *big], GroupKind.WINDOW))
    assert by_id(judged) == {"new": 0.6} and 2 <= len(ruled.seen[-1].runs) < 5


async def test_a_window_beyond_the_model_s_own_context_shrinks(ruled):
    ruled.context = 6000
    big = [
        episode(
            f"c{n}",
            [{"messages": [said("user", f"{n} " * 1500)], "reply": [said("assistant", f"QUALITY 0.{n}")]}],
            judge=0.5,
        )
        for n in range(1, 4)
    ]
    for e in big:
        e.context = True
    assert by_id(await score(make(ruled), group("w", [episode("new", run(0.6)), *big], GroupKind.WINDOW))) == {
        "new": 0.6
    }


async def test_the_latest_reward_of_a_neighbour_is_the_one_that_counts(ruled):
    work = window([(0.2, 0.25)])
    work.episodes[1].rewards.append(Reward(name="judge", value=0.4, source="judge", episode="c0", at=2.0))
    await score(make(ruled), work)
    assert "= 0.40" in ruled.seen[0].outside


async def test_alike_traffic(ruled):
    work = group(
        "l", [episode(f"e{n}", run(q), task=None) for n, q in enumerate([0.2, 0.7])], GroupKind.LIKE, task=None
    )
    judged = await score(make(ruled), work)
    assert judged.scores[0].meta["mode"] == "alike" and "different tasks" in ruled.seen[0].outside
    judged = await score(make(ruled, singles="absolute"), work)
    assert [s.meta["mode"] for s in judged.scores] == ["absolute"] * 2 and by_id(judged) == {"e0": 0.2, "e1": 0.7}
    assert len(ruled.requests) == 3


async def test_sub_agents_and_compactions_are_shown(ruled):
    ask = calls_tool("a", "delegate", "{}")
    calls = [
        {"messages": [said("user", "task")], "reply": [ask]},
        {"messages": [said("system", "helper"), said("user", "part")], "reply": [said("assistant", "part done")]},
        {
            "messages": [said("user", "task"), ask, result("a", "part done")],
            "reply": [said("assistant", "QUALITY 0.8")],
        },
        {
            "messages": [said("user", "task"), said("user", "In short: it went well.")],
            "reply": [said("assistant", "bye")],
        },
    ]
    judged = await score(make(ruled), group("g", [episode("a", calls), episode("b", run(0.1))]))
    assert by_id(judged) == {"a": 0.8, "b": 0.1}
    text = next(t for t in ruled.seen[0].runs.values() if "delegate" in t)
    assert (
        "sub-agent" in text
        and "history was rewritten" in text
        and "part done" in text
        and "In short: it went well." in text
    )


async def test_a_group_with_nothing_to_score(ruled):
    work = window([(0.2, 0.2)])
    work.episodes.pop(0)
    assert (await score(make(ruled), work)).scores == []
    assert ruled.requests == []


async def test_an_episode_without_calls_is_judged_too(ruled):
    assert by_id(await score(make(ruled), group("g", [episode("a", []), episode("b", run(0.5))]))) == {
        "a": 0.0,
        "b": 0.5,
    }


async def test_at_most_as_many_groups_at_once_as_configured(ruled):
    import asyncio

    ruled.latency = 0.05
    judge = make(ruled, concurrency=2)
    await asyncio.gather(*(score(judge, quality_group(f"g{n}", [0.1, n / 10])) for n in range(2, 8)))
    assert ruled.most <= 2 and len(ruled.requests) == 6
