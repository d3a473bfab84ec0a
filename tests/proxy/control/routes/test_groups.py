from __future__ import annotations

import pyarrow as pa
import pytest
from tests.support.leases import first_lease, group_of


@pytest.fixture
async def trained(make_plane):
    """A plane with one group that became adapter tiny@1 in step 2, and its batch."""
    plane = await make_plane(groups={"size": 2})
    await group_of(plane, "t", [0.0, 1.0])
    r = await first_lease(plane)
    pa.ipc.open_stream(await r.read()).read_all()
    batch, held = r.headers["x-slipstream-batch"], r.headers["x-slipstream-lease"]
    ack = {"lease": held, "outcome": "trained", "adapter": "tiny@1", "step": 2, "advantages": {"t-0": -1.0, "t-1": 1.0}}
    assert (await plane.ask("POST", f"/batches/{batch}/ack", ack))[0] == 200
    return plane, batch


async def test_from_an_advantage_to_the_adapter_and_back(trained):
    plane, batch = trained
    _, page = await plane.ask("GET", "/groups", params={"task": "t"})
    (row,) = page["groups"]
    assert (row["state"], row["step"], row["adapter"]) == ("trained", 2, "tiny@1")
    _, group = await plane.ask("GET", f"/groups/{row['id']}")
    assert [(r["episode"]["id"], r["advantage"]) for r in group["runs"]] == [("t-0", -1.0), ("t-1", 1.0)]
    assert [b["id"] for b in group["batches"]] == [batch]
    _, batches = await plane.ask("GET", "/batches", params={"adapter": "tiny@1"})
    assert [b["id"] for b in batches["batches"]] == [batch]
    _, found = await plane.ask("GET", f"/batches/{batch}")
    assert found["groups"] == [row["id"]]
    for path in (
        "/groups/nothing",
        "/batches/nothing",
        "/groups?cursor=!!",
        "/batches?cursor=!!",
        "/calls/nothing/tokens",
    ):
        status, body = await plane.ask("GET", path)
        assert status == 404 and body["error"]["field"], path
    for query, field in (("state=x", "state"), ("kind=x", "kind"), ("limit=0", "limit"), ("split=x", "split")):
        status, body = await plane.ask("GET", f"/groups?{query}")
        assert (status, body["error"]["field"]) == (422, f"query.{field}")


async def test_another_keys_group_is_not_shown(trained):
    plane, batch = trained
    _, page = await plane.ask("GET", "/groups", key="x", scopes=["inference"])
    assert page["groups"] == []
    group = (await plane.ask("GET", f"/batches/{batch}"))[1]["groups"][0]
    assert (await plane.ask("GET", f"/groups/{group}", key="x", scopes=["inference"]))[0] == 404
    _, found = await plane.ask("GET", f"/batches/{batch}", key="x", scopes=["inference"])
    assert (found["groups"], found["episodes"]) == ([], [])
    assert (await plane.ask("GET", f"/groups/{group}", key="x", scopes=["viewer"]))[0] == 200


async def test_tokens_say_what_was_trained_and_why_not(trained):
    plane, batch = trained
    await plane.ask(
        "POST", "/training/events", {"kind": "step", "data": {"step": 2, "logprob_gap": 0.1, "logprob_gap_max": 0.4}}
    )
    call = (await plane.seen("t-1"))["call_list"][0]["id"]
    status, found = await plane.ask("GET", f"/calls/{call}/tokens", params={"text": "false"})
    assert status == 200, found
    assert [t["id"] for t in found["prompt"]] == [1, 2, 3]
    assert {t["masked"] for t in found["prompt"]} == {"prompt"}
    (choice,) = found["choices"]
    assert [(t["id"], t["logprob"], t["trained"], t["masked"], t["advantage"]) for t in choice] == [
        (4, -0.5, True, None, 1.0),
        (5, -0.25, True, None, 1.0),
    ]
    assert (found["batch"], found["step"], found["gap_mean"], found["gap_max"]) == (batch, 2, 0.1, 0.4)
    _, short = await plane.ask("GET", f"/calls/{call}/tokens", params={"text": "false", "prompt": "1"})
    assert ([t["id"] for t in short["prompt"]], short["prompt_left_out"]) == ([3], 2)
    for split, outcome, why in (("eval", "ok", "split eval"), ("train", "aborted", "aborted")):
        name = f"{split}-{outcome}"
        masked = await plane.call(name, split=split, outcome=outcome)
        await plane.seen(name)
        _, found = await plane.ask("GET", f"/calls/{masked}/tokens", params={"text": "false"})
        assert not any(t["trained"] for t in found["choices"][0])
        assert all(t["masked"].startswith(why) for t in found["choices"][0])
    assert (await plane.ask("GET", f"/calls/{call}/tokens", key="x", scopes=["inference"]))[0] == 404


async def test_the_trainer_tells_how_far_it_was_from_the_engine_at_each_token(trained):
    plane, batch = trained
    (called,) = (await plane.seen("t-1"))["call_list"]
    with plane.deps.store.db.read() as tx:
        ((lease,),) = tx.all("SELECT lease FROM t_batches WHERE id = ?", (batch,))
    one = {"key": "-", "episode": "t-1", "call": called["id"], "choice": 0, "gaps": [0.25, -0.0123]}
    status, kept = await plane.ask("POST", f"/batches/{batch}/gaps", {"lease": lease, "calls": [one]})
    assert (status, kept) == (200, {"kept": 1})
    path = f"/calls/{called['id']}/tokens"
    _, found = await plane.ask("GET", path, params={"text": "false"})
    assert [t["gap"] for t in found["choices"][0]] == [0.25, -0.0123]
    assert {t["gap"] for t in found["prompt"]} == {None}
    # of another length than what was sampled: no token is coloured by a neighbour's figure
    await plane.ask("POST", f"/batches/{batch}/gaps", {"lease": lease, "calls": [one | {"gaps": [0.1]}]})
    _, found = await plane.ask("GET", path, params={"text": "false"})
    assert [t["gap"] for t in found["choices"][0]] == [None, None]
    for body, status in (
        ({"lease": "another", "calls": [one]}, 409),
        ({"lease": lease, "calls": [one | {"gaps": ["much"]}]}, 422),
        ({"lease": lease, "calls": [one | {"choice": -1}]}, 422),
    ):
        assert (await plane.ask("POST", f"/batches/{batch}/gaps", body))[0] == status
    assert (await plane.ask("POST", f"/batches/{batch}/gaps", {}, scopes=["viewer"]))[0] == 403


async def test_texts_of_tokens_are_the_models(make_plane):
    plane = await make_plane(engine={"model": "examples/inbox/model"})
    call = await plane.call("e1")
    await plane.seen("e1")
    _, found = await plane.ask("GET", f"/calls/{call}/tokens")
    assert found["tokenizer"].endswith("examples/inbox/model/tokenizer.json") and found["no_text"] is None
    assert all(isinstance(t["text"], str) for t in [*found["prompt"], *found["choices"][0]])
