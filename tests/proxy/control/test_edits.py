from __future__ import annotations

import json

from tests.support.plane import until

from slipstream.contract import CallRecord, Reward
from slipstream_export.rows import edits_of


def call(number: int) -> CallRecord:
    return CallRecord.model_validate(
        {"id": f"c{number}", "episode": "e", "number": number, "at": 0.0, "seconds": 0.0, "dialect": "chat", "model": "m", "adapter": "m",
         "status": 200, "outcome": "ok", "trainable": True}
    )  # fmt: skip


def label(text: object, *, source: str = "human", of: str | None = None, **meta: object) -> Reward:
    return Reward.model_validate(
        {"episode": "e", "at": 0.0, "value": 0.0, "source": source, "call": of, "meta": {"edited": text, **meta}}
    )


def test_the_latest_edit_of_each_call_counts_and_only_peoples():
    calls = [call(0), call(1)]
    rewards = [
        label("one"),
        label("two"),
        label("first", of="c0"),
        label("gone", of="c9"),
        label("bot", source="agent"),
        label(" "),
        label(3),
    ]
    assert [(e.call.id, e.text) for e in edits_of(calls, rewards, calls[1])] == [("c0", "first"), ("c1", "two")]
    assert edits_of([], rewards, None) == []


def test_a_score_of_the_episode_names_the_call_of_its_edit():
    """The run's last answer is not its longest conversation where history was compacted."""
    calls = [call(0), call(1), call(2)]
    rewards = [label("better", edited_call="c2"), label("gone", edited_call="c9"), label("odd", edited_call=7)]
    assert [(e.call.id, e.text) for e in edits_of(calls, rewards, calls[1])] == [("c2", "better")]


async def test_datasets_hold_what_people_wrote(plane):
    await plane.call("a", text="how are you", done=True)
    await plane.call("b", text="how are you", done=True)

    async def done():
        return all([(await plane.seen(name))["state"] == "done" for name in ("a", "b")])

    await until(done)
    meta = {"edited": "Very well, thank you."}
    assert (await plane.ask("POST", "/episodes/a/rewards", {"value": 0.0, "source": "human", "meta": meta}))[0] == 200

    async def rows(**params) -> list[dict]:
        return [json.loads(x) for x in (await plane.ask("GET", "/export", params=params))[1].splitlines()]

    sft = {row["episode"]: row["messages"][-1]["content"] for row in await rows(format="sft")}
    assert sft == {"a": "Very well, thank you.", "b": "hi"}
    assert {r["messages"][-1]["content"] for r in await rows(format="sft", edits="false")} == {"hi"}
    (pair,) = await rows(format="dpo")
    assert pair["prompt"] == [{"role": "user", "content": "how are you"}]
    assert (pair["chosen"][0]["content"], pair["rejected"][0]["content"]) == ("Very well, thank you.", "hi")
    assert await rows(format="dpo", edits="false") == []
    assert await rows(format="dpo", q="nothing-of-this") == []
