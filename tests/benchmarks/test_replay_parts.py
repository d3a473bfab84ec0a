"""The bench of real replays: what its functions think of careful and careless agents, and what its parts say together."""

from __future__ import annotations

import json
import random
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support import modules_of

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "replay"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch):
    """``bench("parts")``: a module of the bench."""
    with modules_of(FOLDER, monkeypatch) as imported:
        yield imported


@pytest.mark.parametrize("name", ["inbox", "retail"])
def test_a_step_is_right_where_a_careful_agent_does_it(bench, name: str) -> None:
    worlds, versions = bench("worlds"), bench("versions")
    world, rng = worlds.WORLDS[name], random.Random(1)
    made = {"inbox": versions._inbox_messages, "retail": versions._retail_messages}[name]
    items = world.items("eval", 3)
    scores: dict[str, list[float]] = {kind: [] for kind in versions.KINDS}
    for item in [next(items) for _ in range(60)]:
        for kind, found in scores.items():
            messages = json.loads(json.dumps(made(item, kind, world.tag(item), rng)))
            for m in messages:
                for call in m.get("tool_calls") or []:
                    given = call["function"]["arguments"]
                    call["function"]["arguments"] = given if isinstance(given, str) else json.dumps(given)
            found += [
                world.step(SimpleNamespace(messages=messages[:n]), m)
                for n, m in enumerate(messages)
                if m["role"] == "assistant"
            ]
    assert set(scores["careful"] + scores["winded"]) == {1.0}
    assert 0.7 < statistics.fmean(scores["broken"]) < 0.99, "careless for one value of five"


def test_parts_together(bench) -> None:
    parts = bench("parts")
    assert sorted(parts.jobs(1, 3) + parts.jobs(2, 3) + parts.jobs(3, 3)) == sorted(parts.jobs(1, 1))

    def one(version: str, cases: int) -> dict:
        both = {"function": cases, "ruler": cases}
        return {"version": version, "cases": both, "tokens": {how: 1000.0 for how in both}, "short": None}

    worse = ("worse_5", "worse_10", "worse_30", "spoiled", "broken_on_one_tag")
    held_out = {n: [("0", 0.0 if n in worse else 1.0), ("1", 1.0)] for n in ("control", *parts.VERSIONS)}
    replays = [one(name, 12 if name in worse else 0) for name in parts.VERSIONS]
    part = {"task": "inbox", "part": [1, 2], "cases": 20, "gpu": False, "made": {}, "held_out": held_out,
            "tokens_of_a_run": 100.0, "replays": replays}  # fmt: skip
    found = parts.merged([part, part], lambda base, bad: 40.0 if (base, bad) == (1.0, 0.5) else 0.0)
    assert found["holds"] and found["spoiled_replays"] == 2 and found["tokens_vs_canary"] == 0.25
    assert found["tasks"]["inbox"]["versions"]["broken_on_one_tag"]["held_out_difference_of_tags"] == {
        "0": -1.0,
        "1": 0.0,
    }
    passed = part | {"replays": [*replays, one("spoiled", 0)]}
    assert not parts.merged([part, passed], lambda base, bad: 40.0)["holds"]
