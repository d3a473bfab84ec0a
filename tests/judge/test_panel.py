from __future__ import annotations

import sys
import time

import pytest
from tests.support.groups import quality_group

from slipstream.config import Config
from slipstream.errors import ConfigError
from slipstream_judge.compare.panel import Panel, within
from slipstream_judge.model.llm import JudgeFailed
from slipstream_judge.model.metrics import JudgeMetrics


@pytest.fixture(autouse=True)
def functions(tmp_path, monkeypatch):
    code = "def half(group):\n    return {e.episode.id: 0.5 for e in group.episodes}\ndef fails(group):\n    raise ValueError('no')\n"
    (tmp_path / "panel_scores.py").write_text(code)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield
    sys.modules.pop("panel_scores", None)


def make(ruled=None, **judge):
    if ruled:
        judge |= {"model": "openai/ruled", "api_base": ruled.url}
    return Panel(Config.model_validate({"judge": judge}), JudgeMetrics())


async def score(panel, group):
    return await panel.score(group, time.time() + 60)


async def test_a_function_alone_has_the_judge_s_name():
    panel = make(function="panel_scores:half")
    outcome = await score(panel, quality_group("g", [0.1, 0.9]))
    assert panel.names == ["judge"] and [(s.name, s.value) for s in outcome.scores] == [("judge", 0.5)] * 2
    assert outcome.judged is None


async def test_both_have_names_of_their_own(ruled):
    panel = make(ruled, function="panel_scores:half", name="ruler")
    outcome = await score(panel, quality_group("g", [0.1, 0.9]))
    assert panel.names == ["ruler", "function"]
    assert sorted((s.name, s.value) for s in outcome.scores) == [
        ("function", 0.5),
        ("function", 0.5),
        ("ruler", 0.1),
        ("ruler", 0.9),
    ]


async def test_all_or_none(ruled):
    with pytest.raises(JudgeFailed, match="ValueError"):
        await score(make(ruled, function="panel_scores:fails"), quality_group("g", [0.1, 0.9]))
    assert ruled.requests == []  # nothing was paid for


async def test_within_ends_in_time(ruled):
    ruled.always = {"sleep": 20}
    with pytest.raises(TimeoutError):
        await within(make(ruled), quality_group("g", [0.1, 0.9]), 0.2, time.time() + 60)


def test_configurations_that_cannot_be(ruled):
    for judge in (
        {},
        {"model": "m", "function": "panel_scores:half", "name": "function"},
        {"function": "panel_scores:absent"},
    ):
        with pytest.raises(ConfigError):
            make(**judge)


def test_the_second_judge_is_there_when_asked_for():
    assert make(model="a", audit_model="b").audit is None
    assert make(model="a", audit_model="b", audit_share=0.1).audit is not None


async def test_what_a_function_does_is_counted():
    panel = make(function="panel_scores:half")
    await score(panel, quality_group("g", [0.1, 0.9]))
    failing = make(function="panel_scores:fails")
    with pytest.raises(JudgeFailed):
        await score(failing, quality_group("g", [0.1, 0.9]))

    def value(panel: Panel, name: str, **labels: str) -> float | None:
        return panel.metrics.registry.get_sample_value(f"slipstream_judge_{name}", labels)

    assert value(panel, "function_calls_total", outcome="answered") == 1
    assert value(panel, "episodes_total", mode="function") == 2
    assert value(panel, "function_seconds_count") == 1
    assert value(failing, "function_calls_total", outcome="error") == 1
    assert value(failing, "episodes_total", mode="function") == 0
