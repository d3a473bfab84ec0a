from __future__ import annotations

import asyncio
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.logs import taken
from tests.support.plane import until

from slipstream_imports.server.conversations import ImportIn, calls_of
from slipstream_proxy.log.records import IMPORTED_ID_PREFIX

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "What is on Monday?"}
ASKS = {
    "role": "assistant", "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"day": "mon"}'}}],
}  # fmt: skip
TOLD = {"role": "tool", "tool_call_id": "c1", "content": "nothing"}
SAYS = {"role": "assistant", "content": "Nothing at all."}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
WHOLE: list[Any] = [SYSTEM, USER, ASKS, TOLD, SAYS]


def body(**more):
    return {"id": "log-1", "task": "monday", "model": "gpt-4o", "messages": WHOLE, "tools": TOOLS, "reward": 0.5, "tags": {"env": "old"}, **more}  # fmt: skip


def answer(episode, calls, state="new"):
    return {"episode": episode, "calls": calls, "state": state, "kept": []}


async def counts(plane):
    found = (await plane.ask("POST", "/sql", {"query": "select count(*), count(distinct id) from calls"}))[1]["rows"][0]
    rewards = (await plane.ask("POST", "/sql", {"query": "select count(*) from rewards"}))[1]["rows"][0][0]
    return [*found, rewards]


async def test_each_assistant_message_is_a_call(plane):
    status, told = await plane.ask("POST", "/import", body(metrics={"steps": 2}))
    assert (status, told) == (200, answer("log-1", 2))
    e = await plane.seen("log-1")
    assert (e["state"], e["task"], e["tags"], e["reward"], e["group"]) == ("done", "monday", {"env": "old"}, 0.5, None)
    first, second = e["call_list"]
    assert (first["messages"], first["reply"][0]["tool_calls"]) == ([SYSTEM | {}, USER], ASKS["tool_calls"])
    assert (second["messages"], second["reply"], second["tools"]) == (WHOLE[:4], [SAYS], TOOLS)
    assert second["extends"] == first["id"]  # the history is stored once
    assert not any(c["trainable"] for c in e["call_list"])
    assert {r["name"]: (r["value"], r["source"]) for r in e["rewards"]} == {"reward": (0.5, "import"), "steps": (2.0, "import")}  # fmt: skip


def without_names(record: dict[str, str]) -> dict[str, str]:
    return {name: text.replace("Zoë", "someone") for name, text in record.items()}


async def test_a_log_is_redacted_before_it_is_stored(plane):
    plane.deps.config.proxy.redact = f"{__name__}:without_names"
    messages = [{"role": "user", "content": "Zoë \ud83d"}, {"role": "assistant", "content": "hello Zoë"}]
    status, body = await plane.ask("POST", "/import", {"id": "log", "messages": messages, "tags": {"by": "Zoë"}})
    assert status == 200
    found = (await plane.ask("GET", "/episodes/log"))[1]
    (call,) = found["call_list"]
    assert (found["tags"], call["reply"][0]["content"]) == ({"by": "someone"}, "hello someone")
    assert call["messages"][0]["content"].startswith("someone ")
    assert (await plane.ask("POST", "/import", {"id": "log", "messages": messages}))[1]["calls"] == 0
    plane.deps.config.proxy.redact = "json:loads"
    status, body = await plane.ask("POST", "/import", {"id": "other", "messages": messages})
    assert (status, body["error"]["field"]) == (422, "body")


async def test_what_is_known_of_a_reply(plane):
    """Only the named messages are calls; each has its own time, duration and tokens."""
    told = {
        "message": 4,
        "at": 1_700_000_000.0,
        "seconds": 2.5,
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "model": "m2",
    }
    assert (await plane.ask("POST", "/import", body(replies=[told])))[1]["calls"] == 1
    (call,) = (await plane.seen("log-1"))["call_list"]
    assert (call["messages"], call["reply"]) == (WHOLE[:4], [SAYS])
    assert (call["seconds"], call["prompt_tokens"], call["completion_tokens"], call["model"]) == (2.5, 7, 2, "m2")
    assert (await plane.ask("POST", "/import", body(id="x", replies=[{"message": 0}])))[1]["error"][
        "field"
    ] == "body.messages"


@pytest.mark.parametrize("by", ["adapter", "time"])
async def test_learning_shows_imported_rewards(plane, by):
    at = plane.deps.now()
    plane.deps.now = lambda: at  # three at one moment: two seconds may be two points
    for n in range(3):
        assert (await plane.ask("POST", "/import", body(id=f"log-{n}", reward=n / 2)))[0] == 200
        await plane.seen(f"log-{n}")
    (point,) = (await plane.ask("GET", f"/learning?by={by}"))[1]["points"]
    assert (point["n"], point["mean"], point["version"]) == (3, 0.5, None)
    assert point["adapter"] == ("no adapter" if by == "adapter" else None)


async def test_weight_0_is_not_imitated(plane):
    bad = {"role": "assistant", "content": "BAD", "weight": 0}
    talk = [USER, bad, USER, {**SAYS, "weight": 1}]
    assert (await plane.ask("POST", "/import", body(messages=talk)))[1]["calls"] == 1
    await plane.seen("log-1")
    status, text = await plane.ask("GET", "/export?format=sft")
    assert status == 200
    (row,) = [json.loads(line) for line in text.splitlines()]
    assert [m for m in row["messages"] if m["content"] == "BAD"] == [{**bad}]
    assert row["messages"][-1]["content"] == SAYS["content"]


async def test_half_an_emoji_is_kept_as_the_api_takes_it(plane):
    said = [{"role": "user", "content": "a \ud83d b"}, SAYS]
    assert (await plane.ask("POST", "/import", body(messages=said)))[0] == 200
    assert (await plane.seen("log-1"))["call_list"][0]["messages"] == said[:1]


async def test_again_changes_nothing(make_plane):
    plane = await make_plane()
    await plane.ask("POST", "/import", body())
    before = await counts(plane)
    now = plane.deps.now()
    plane.deps.now = lambda: now + 200_000  # another day
    assert (await plane.ask("POST", "/import", body()))[1] == answer("log-1", 0, "there")
    assert await counts(plane) == before == [2, 2, 1]
    await plane.again()
    assert (await plane.ask("POST", "/import", body()))[1]["calls"] == 0
    assert await counts(plane) == before
    assert (await plane.ask("POST", "/import", body(reward=0.75)))[1]["calls"] == 0
    await until(lambda: _reward(plane, 0.75))


async def _reward(plane, value):
    return (await plane.seen("log-1"))["reward"] == value


async def test_at_the_same_time_and_without_an_id(plane):
    same = body(id=None)
    told = await asyncio.gather(*(plane.ask("POST", "/import", same) for _ in range(4)))
    assert len({t["episode"] for _, t in told}) == 1
    await plane.seen(told[0][1]["episode"])
    await plane.ask("POST", "/import", body(id="barrier"))
    assert (await counts(plane))[:2] == [4, 4]


async def test_a_longer_log_adds_what_is_new(plane):
    await plane.ask("POST", "/import", body(messages=WHOLE[:3]))
    assert (await plane.ask("POST", "/import", body()))[1]["calls"] == 1
    assert [c["number"] for c in (await plane.seen("log-1"))["call_list"]] == [0, 1]


async def test_live_ids_stay_in_order_after_an_import(plane):
    """Imported ids sort before all others: what the store remembers of the newest stays true."""
    await plane.ask("POST", "/import", body())
    await plane.call("live")
    e = await plane.seen("live")
    assert e["call_list"][0]["id"] > IMPORTED_ID_PREFIX + "Z" * 16
    await plane.ask("POST", "/import", body(id="log-2"))
    await plane.again()
    await plane.call("live")
    await until(lambda: _calls(plane, "live", 2))
    assert await counts(plane) == [6, 6, 2]


async def _calls(plane, episode, count):
    return (await plane.seen(episode))["calls"] == count


async def test_it_survives_a_rebuild(make_plane):
    plane = await make_plane()
    await plane.ask("POST", "/import", body(at=1_700_000_000.0))
    await plane.stop()
    for path in plane.config.root.glob("slipstream.duckdb*"):
        path.unlink()
    plane.control = type(plane.control)(plane.config)
    await plane.start()
    e = await plane.seen("log-1")
    assert (e["calls"], e["reward"], e["state"], e["started"]) == (2, 0.5, "done", 1_700_000_000.0)


async def test_refusals(plane):
    await plane.call("own")
    await plane.seen("own")
    assert (await plane.ask("POST", "/import", body(id="own")))[0] == 409
    assert (await plane.ask("POST", "/import", body(messages=[USER])))[1]["error"]["field"] == "body.messages"
    assert (await plane.ask("POST", "/import", body(messages=[])))[0] == 422
    assert (await plane.ask("POST", "/import", body(messages=["hi"])))[0] == 422
    assert (await plane.ask("POST", "/import", body(id="")))[0] == 422
    assert (await plane.ask("POST", "/import", body(), scopes=["inference"]))[0] == 403
    assert (await plane.ask("POST", "/import?key=k2", body(), key="k1", scopes=["reward"]))[0] == 403
    assert (await plane.ask("POST", "/import", body()))[0] == 200
    assert (await plane.ask("DELETE", "/episodes/log-1"))[0] == 200
    assert (await plane.ask("POST", "/import", body()))[0] == 409


async def test_an_admin_key_imports_its_own(plane):
    assert (await plane.ask("POST", "/import", body(), key="k1", scopes=["reward"]))[0] == 403
    assert (await plane.ask("POST", "/import", body(), key="k1", scopes=["admin"]))[0] == 200
    assert (await plane.seen("log-1", key="k1"))["key"] == "k1"


async def test_logs_as_their_files_are(plane, tmp_path):
    asked = {"request": {"model": "gpt-4o", "messages": [USER], "temperature": 0.2, "tools": TOOLS},
             "response": {"id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, "model": "gpt-4o-2024-08-06",
                          "choices": [{"index": 0, "message": SAYS, "finish_reason": "stop"}], "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}}}  # fmt: skip
    rows = [
        {"episode": "asked", **asked},
        {"messages": WHOLE, "id": "talk", "task": "a task: with spaces", "reward": 1},
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(json.dumps(r) for r in rows))
    for _ in range(2):
        for one in taken(path)[0]:
            status, told = await plane.ask("POST", "/import", one)
            assert status == 200, told
    one, talk = await plane.seen("asked"), await plane.seen("talk")
    assert (one["started"], one["calls"], one["call_list"][0]["model"]) == (1_700_000_000.0, 1, "gpt-4o")
    assert (talk["calls"], talk["reward"]) == (2, 1.0)
    assert one["call_list"][0]["completion_tokens"] == 2
    assert talk["task"].startswith("a-task-with-spaces-")


@pytest.mark.parametrize("name", ["messages_and_choices", "messages"])
async def test_arts_trajectories(plane, tmp_path, name):
    """Columns by ART's names; messages flat, tool calls, tools, metrics and metadata as JSON, choices as such or flat."""

    def flat(message, trainable):
        calls = message.get("tool_calls")
        return {
            "role": message["role"],
            "content": message["content"],
            "tool_calls": json.dumps(calls) if calls else None,
            "tool_call_id": message.get("tool_call_id"),
            "trainable": trainable,
        }

    choice = [m if m["role"] != "assistant" else {"finish_reason": "stop", "index": 0, "message": m} for m in WHOLE]
    messages = json.dumps(choice) if name == "messages_and_choices" else [flat(m, m["role"] == "assistant") for m in WHOLE]  # fmt: skip
    rows = [
        {
            name: messages,
            "reward": 0.25 * i,
            "metrics": json.dumps({"correct": i, "why": "text"}),
            "metadata": json.dumps({"scenario_id": f"s{i}"}),
            "tools": json.dumps(TOOLS),
            "logs": ["a line"],
            "group_index": 0,
        }
        for i in range(3)
    ]
    path = tmp_path / "0001.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    bodies, report = taken(path)
    assert ("metrics.why", "a number is needed, this is text ('text')") in report.dropped
    for one in bodies:
        status, told = await plane.ask("POST", "/import", one)
        assert status == 200, told
    page = (await plane.ask("GET", "/episodes"))[1]["episodes"]
    assert {(e["task"], e["reward"]) for e in page} == {("s0", 0.0), ("s1", 0.25), ("s2", 0.5)}
    e = await plane.seen(next(e["id"] for e in page if e["task"] == "s2"))
    assert [c["messages"] for c in e["call_list"]] == [WHOLE[:2], WHOLE[:4]]
    assert (e["call_list"][0]["reply"], e["call_list"][1]["reply"], e["call_list"][1]["tools"]) == ([ASKS], [SAYS], TOOLS)  # fmt: skip
    assert {r["name"]: r["value"] for r in e["rewards"]} == {"reward": 0.5, "correct": 2.0}


def test_ids_say_what_is_in_them():
    made = [calls_of(ImportIn.model_validate(body()), "-", e, 0.0) for e in ("a", "a", "b")]
    ids = [[head.id for head, _, _ in m] for m in made]
    assert ids[0] == ids[1] and not set(ids[0]) & set(ids[2])
    assert all(len(i) == 26 and i.startswith(IMPORTED_ID_PREFIX) for i in ids[0])


async def test_many_at_once_are_as_each_alone(make_plane):
    plane = await make_plane()
    many = [body(id=f"log-{n}", reward=n / 4, metrics={"steps": n}) for n in range(4)]
    status, told = await plane.ask("POST", "/import/conversations", {"conversations": many})
    assert (status, told["episodes"]) == (200, [answer(f"log-{n}", 2) for n in range(4)])
    for n in range(4):
        e = await plane.seen(f"log-{n}")
        assert (e["state"], e["reward"], e["call_list"][1]["extends"]) == ("done", n / 4, e["call_list"][0]["id"])
    before = await counts(plane)
    assert before == [8, 8, 8]
    status, told = await plane.ask("POST", "/import/conversations", {"conversations": many})
    assert [e["calls"] for e in told["episodes"]] == [0, 0, 0, 0]
    corrected = [*many[:3], body(id="log-3", reward=0.125)]
    assert (await plane.ask("POST", "/import/conversations", {"conversations": corrected}))[0] == 200
    assert (await plane.ask("GET", "/episodes/log-3"))[1]["reward"] == 0.125
    assert await counts(plane) == [8, 8, 9]


async def test_rows_of_one_episode_may_come_together(plane):
    rows = [body(messages=WHOLE[:3], reward=None), body(), body()]
    assert (await plane.ask("POST", "/import/conversations", {"conversations": rows}))[0] == 200
    e = await plane.seen("log-1")
    assert (len(e["call_list"]), e["reward"]) == (2, 0.5)


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"messages": [USER]}, "body.conversations.1.messages"),
        ({"id": "own"}, "body.conversations.1.id"),
        ({"id": "gone"}, "body.conversations.1.id"),
    ],
)
async def test_of_many_all_are_kept_or_none(plane, bad, field):
    await plane.call("own", done=True)
    await plane.call("gone", done=True)
    await plane.seen("own")
    await plane.seen("gone")
    assert (await plane.ask("DELETE", "/episodes/gone"))[0] == 200
    many = {"conversations": [body(id="good"), body(**{"id": "bad", **bad})]}
    status, told = await plane.ask("POST", "/import/conversations", many)
    assert (status, told["error"]["field"]) == (409, field)
    assert (await plane.ask("GET", "/episodes/good"))[0] == 404
