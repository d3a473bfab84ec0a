from __future__ import annotations

import json
import sys

import pytest
from tests.support.groups import run

from slipstream.config import Config
from slipstream_trust.evaluation import evaluate, main


def configured(ruled, **more):
    return Config.model_validate({"judge": {"model": "openai/gpt-4o-mini", "api_base": ruled.url} | more})


@pytest.fixture
def cases(tmp_path):
    """Four groups of four; what the rule sees is the truth, except that one pair in each group is the wrong way round."""
    file = tmp_path / "cases.jsonl"
    lines = []
    for g in range(4):
        for quality, truth in ((0.1, 0), (0.3, 1), (0.2, 2), (0.8, 3)):
            lines.append({"group": f"g{g}", "truth": truth, "calls": run(quality + g / 100, id=f"{g}{truth}")})
    file.write_text("\n".join(json.dumps(x) for x in lines))
    return file


async def test_what_is_measured(ruled, cases):
    found = await evaluate(configured(ruled), cases, repeats=2)
    assert found["spearman"] == pytest.approx(0.8)
    assert found["auc"] == pytest.approx(5 / 6, abs=1e-5)
    assert found["order_bias"] == pytest.approx(0, abs=1e-6) and found["retest_spread"] == 0
    assert (found["groups"], found["episodes"], found["failed"], found["repeats"]) == (4, 16, 0, 2)
    assert found["cost_per_group"] > 0 and found["tokens_per_group"] > 0 and found["calls_per_group"] == 2
    assert len(ruled.requests) == 8


async def test_order_bias_and_restlessness_are_seen(ruled, cases):
    ruled.place_bias = 0.15
    found = await evaluate(configured(ruled), cases, repeats=2)
    assert found["order_bias"] == pytest.approx(0.15, abs=0.01)
    assert found["retest_spread"] > 0.02


async def test_a_judge_that_sees_nothing(ruled, cases):
    ruled.rule = lambda runs, shared: dict.fromkeys(runs, 0.5)
    found = await evaluate(configured(ruled), cases, repeats=1)
    assert found["spearman"] == 0 and found["auc"] == 0.5 and found["retest_spread"] is None


async def test_episodes_without_a_group_are_compared_over_the_file(ruled, tmp_path):
    file = tmp_path / "alone.jsonl"
    file.write_text("\n".join(json.dumps({"truth": t, "calls": run(q)}) for q, t in ((0.2, 0), (0.4, 1), (0.9, 1))))
    found = await evaluate(configured(ruled), file)
    assert found["auc"] == 1.0 and found["spearman"] > 0.8


async def test_groups_that_fail_are_counted(ruled, cases):
    ruled.faults.extend([{"status": 400}])
    found = await evaluate(configured(ruled, concurrency=1), cases)
    assert found["failed"] == 1 and found["auc"] == pytest.approx(5 / 6, abs=1e-5)


def test_the_command_prints_json_last_and_draws(ruled, cases, tmp_path, capsys):
    plot = tmp_path / "plot.png"
    assert main(configured(ruled), str(cases), plot=str(plot), repeats=2) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["auc"] == pytest.approx(5 / 6, abs=1e-5)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_command_fails_when_nothing_could_be_judged(ruled, cases, capsys):
    ruled.always = {"status": 400}
    assert main(configured(ruled), str(cases)) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["failed"] == 4


async def test_a_function_is_measured_too(ruled, cases, tmp_path, monkeypatch):
    (tmp_path / "evaluated_scores.py").write_text(
        "def score(group):\n    return {e.episode.id: n for n, e in enumerate(group.episodes)}\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    found = await evaluate(Config.model_validate({"judge": {"function": "evaluated_scores:score"}}), cases)
    assert found["auc"] == 1.0 and found["order_bias"] is None and found["calls_per_group"] == 0
