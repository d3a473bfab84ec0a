from __future__ import annotations

import sys

import pytest
from tests.support.groups import quality_group

from slipstream.errors import ConfigError
from slipstream_judge.compare.function import FunctionJudge
from slipstream_judge.model.llm import JudgeFailed

CODE = """
import asyncio

def plain(group):
    return {e.episode.id: n / 10 for n, e in enumerate(group.episodes)}

async def later(group):
    await asyncio.sleep(0)
    return {e.episode.id: (5, "because") for e in group.episodes}

class Box:
    @staticmethod
    def inner(group):
        return {e.episode.id: True for e in group.episodes}

def raises(group):
    raise KeyError("nothing there")

def missing(group):
    return {group.episodes[0].episode.id: 1}

def nothing(group):
    return None

def infinite(group):
    return {e.episode.id: float("inf") for e in group.episodes}

number = 7
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "my_scores.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("my_scores", None)


GROUP = quality_group("g", [0.1, 0.2, 0.3])


@pytest.mark.parametrize("name, values", [("plain", [0, 0.1, 0.2]), ("later", [5, 5, 5]), ("Box.inner", [1, 1, 1])])
async def test_scores_from_python(name, values):
    scores = await FunctionJudge(f"my_scores:{name}", "judge").score(GROUP)
    assert [s.value for s in scores] == values
    assert [s.episode for s in scores] == ["g-0", "g-1", "g-2"]
    assert scores[0].meta["function"] == f"my_scores:{name}" and scores[0].meta["mode"] == "function"
    assert scores[0].reason == ("because" if name == "later" else "")


async def test_context_is_not_scored():
    group = GROUP.model_copy(deep=True)
    group.episodes[1].context = True
    assert [s.episode for s in await FunctionJudge("my_scores:plain", "f").score(group)] == ["g-0", "g-2"]


@pytest.mark.parametrize(
    "name, said", [("raises", "nothing there"), ("missing", "g-1"), ("nothing", "g-0"), ("infinite", "inf")]
)
async def test_a_function_that_fails_says_why(name, said):
    with pytest.raises(JudgeFailed, match=said):
        await FunctionJudge(f"my_scores:{name}", "judge").score(GROUP)


@pytest.mark.parametrize(
    "spec", ["my_scores", ":plain", "my_scores:", "my_scores:absent", "no_such_module:f", "my_scores:number"]
)
def test_a_wrong_spec_is_told_at_the_start(spec):
    with pytest.raises(ConfigError, match=r"judge\.function"):
        FunctionJudge(spec, "judge")
