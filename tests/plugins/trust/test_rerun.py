from __future__ import annotations

import json
import time

import pytest
from tests.support.groups import episode, run

from slipstream.client import AsyncClient
from slipstream.config import Config
from slipstream.contract import EpisodeDetail, EpisodeState
from slipstream_judge.compare.rubric import rubric_hash
from slipstream_trust.rerun import main, rerun


def configured(ruled, **more):
    return Config.model_validate({"judge": {"model": "openai/gpt-4o-mini", "api_base": ruled.url} | more})


@pytest.fixture
def stored(control):
    """Two groups, one ungrouped episode, one that still runs."""

    def keep(name, quality, task, group, state="done"):
        made = episode(name, run(quality, id=name), task)
        detail = EpisodeDetail.model_validate(
            made.episode.model_dump() | {"call_list": [c.model_dump() for c in made.calls]}
        )
        detail.group, detail.state = group, EpisodeState(state)
        control.episodes[name] = json.loads(detail.model_dump_json())

    for n, q in enumerate([0.1, 0.9, 0.5]):
        keep(f"a{n}", q, "task-a", "group-a")
    for n, q in enumerate([0.3, 0.7]):
        keep(f"b{n}", q, "task-b", "group-b")
    keep("alone", 0.6, None, None)
    keep("running", 0.2, "task-a", "group-a", "open")
    return control


async def again(ruled, control, config=None, **more):
    async with AsyncClient(control.url) as client:
        return await rerun(config or configured(ruled), client, 1000.0, **more)


def rows_of(stored):
    """Episode → the row that was stored for it, by lease or alone."""
    leased = {s["episode"]: s for scores in stored.scored.values() for s in scores}
    return leased | {e: {**r, "values": r["meta"]["values"]} for e, r in stored.rewards}


async def test_stored_episodes_are_scored_anew_as_new_rows(ruled, stored):
    found = await again(ruled, stored, rubric="The new rubric.")
    assert found["scored"] == 6 and found["groups"] == 3 and found["failed"] == 0
    rows = rows_of(stored)
    values = {e: r["value"] for e, r in rows.items()}
    assert values == {"a0": 0.1, "a1": 0.9, "a2": 0.5, "b0": 0.3, "b1": 0.7, "alone": 0.6}
    for row in (rows["a0"], rows["alone"]):
        assert (row["name"], row["source"]) == ("judge", "judge") and row["reason"].startswith("ruled")
        assert row["meta"]["rubric"] == rubric_hash("The new rubric.") and row["meta"]["rerun"] == found["rerun"]
        assert row["values"]
    assert all("The new rubric." in r.outside for r in ruled.seen)
    assert stored.queries[0]["since"] == "1000.0" and len(stored.queries) == 3


async def test_groups_are_leased_and_the_audit_log_is_told_before(ruled, stored):
    found = await again(ruled, stored, filters={"adapter": "m@3"})
    assert sorted(g for wanted in stored.leases for g in wanted["groups"]) == ["group-a", "group-b"]
    assert {worker for worker in stored.released} == {stored.leases[0]["worker"]}, "what it holds is given back"
    (told,) = stored.reruns
    assert told["id"] == found["rerun"] and "6 runs in 3 groups" in told["text"] and "adapter m@3" in told["text"]
    assert stored.queries[0]["adapter"] == "m@3"
    groups = {said.get("group") for said in stored.cached}
    assert {"group-a", "group-b"} <= groups, "without the lease a forgotten run's text would come back by the cache"
    assert all(said["lease"] for said in stored.cached if said.get("group"))


async def test_two_keys_episodes_of_one_id_are_scored_each_by_its_own_calls(ruled, stored):
    for key, quality in (("k1", 0.1), ("k2", 0.8)):
        made = episode("same", run(quality, id="same"), None)
        detail = EpisodeDetail.model_validate(
            made.episode.model_dump() | {"call_list": [c.model_dump() for c in made.calls], "key": key}
        )
        detail.state = EpisodeState.DONE
        stored.episodes[f"{key}/same"] = json.loads(detail.model_dump_json())
    stored.episodes["same"] = stored.episodes["k2/same"]  # the newest, for who names no key
    found = await again(ruled, stored)
    assert found["failed"] == 0
    values = {(k, e): r["value"] for k, (e, r) in zip(stored.scored_keys, stored.rewards, strict=True)}
    assert (values["k1", "same"], values["k2", "same"]) == (0.1, 0.8)


async def test_each_run_adds_rows_and_reads_no_cache(ruled, stored):
    await again(ruled, stored)
    await again(ruled, stored)
    assert len(ruled.requests) == 6
    assert len({r["key"] for _, r in stored.rewards}) == 2


async def test_only_some_tasks_and_another_name(ruled, stored):
    found = await again(ruled, stored, task="*-b", name="strict")
    assert {(e, r["name"]) for e, r in rows_of(stored).items()} == {("b0", "strict"), ("b1", "strict")}
    assert found["names"] == ["strict"]


async def test_a_group_that_fails_is_counted_and_the_others_are_scored(ruled, stored):
    ruled.faults.append({"status": 400})
    found = await again(ruled, stored, configured(ruled, concurrency=1))
    assert found["failed"] == 1 and found["groups"] == 3 and 0 < found["scored"] < 6


def test_the_command(ruled, stored, capsys, tmp_path):
    rubric = tmp_path / "rubric.md"
    rubric.write_text("From a file.")
    assert main(configured(ruled), stored.url, None, since="7d", rubric=str(rubric), task=None, name=None) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["scored"] == 6
    assert "From a file." in ruled.seen[0].outside
    assert abs(float(stored.queries[0]["since"]) - (time.time() - 7 * 86_400)) < 60
    ruled.always = {"status": 400}
    assert main(configured(ruled), stored.url, None) == 1
