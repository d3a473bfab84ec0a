from __future__ import annotations

import json

import pytest
from tests.support.groups import episode, run

from slipstream.contract import EpisodeDetail, Reward
from slipstream.errors import ConfigError
from slipstream.settings import JudgeConfig
from slipstream_judge.compare.rubric import DEFAULT_RUBRIC, rubric_hash
from slipstream_trust.judgement import main

META = {
    "model": "openai/ruled", "prompt": "ruler-2", "rubric": rubric_hash(DEFAULT_RUBRIC), "mode": "group", "tokens": 900,
    "cost": 0.0123, "latency": 2.5, "calls": 2, "parts": 1, "cached": False, "spread": 0.1, "values": [0.8, 1.0],
}  # fmt: skip


@pytest.fixture
def judged(control):
    for n, score in enumerate([0.2, 0.9, None]):
        made = episode(f"e{n}", run(n / 4, id=f"e{n}"), "t1")
        detail = EpisodeDetail.model_validate(
            made.episode.model_dump() | {"call_list": [c.model_dump() for c in made.calls], "group": "g1"}
        )
        if score is not None:
            given = {"name": "judge", "source": "judge", "episode": f"e{n}", "at": 1.0, "meta": META}
            detail.rewards = [
                Reward(value=0.5, **given),
                Reward(value=score, reason=f"because {n}", **given),
                Reward(name="reward", value=7.0, episode=f"e{n}", at=2.0),
            ]
        control.episodes[f"e{n}"] = json.loads(detail.model_dump_json())
    return control


def test_a_judgement_as_text(judged, capsys):
    assert main(JudgeConfig(), judged.url, None, "g1") == 0
    text = capsys.readouterr().out
    assert "group g1, task t1" in text and "model openai/ruled" in text and "cost 0.0123" in text
    assert "3 runs, 3 of them distinct" in text and "the first 4 shared" in text
    assert text.index("0.900  e1  votes 0.80, 1.00  spread 0.10") < text.index("0.200  e0") < text.index("–      e2")
    assert "because 1" in text and "rubric has changed" not in text and "DATA-BEGIN" not in text


def test_a_single_run_that_was_compared_with_earlier_ones(judged, capsys):
    for name in ("e1", "e2"):
        del judged.episodes[name]
    for reward in judged.episodes["e0"]["rewards"]:
        reward["meta"] = {**META, "mode": "window", "compared_with": 7}
    main(JudgeConfig(), judged.url, None, "g1", prompt=True)
    text = capsys.readouterr().out
    assert "mode window, compared_with 7" in text
    assert "one new run, e1, and 7 earlier runs" in text and "already: (not shown here)" in text
    assert "The record holds one run." not in text


def test_another_keys_episode_of_the_same_id_is_not_shown(judged, capsys):
    own = judged.episodes.pop("e1")
    other = {**own, "key": "k2", "group": "g2", "rewards": [r | {"value": 0.111} for r in own["rewards"]]}
    judged.episodes |= {f"{own['key']}/e1": own, "e1": other}
    assert main(JudgeConfig(), judged.url, None, "g1") == 0
    text = capsys.readouterr().out
    assert "0.900  e1" in text and "0.111" not in text


def test_with_its_prompt_under_another_rubric(judged, capsys):
    main(JudgeConfig(rubric="Be kind."), judged.url, None, "g1", prompt=True)
    text = capsys.readouterr().out
    assert "the rubric has changed since" in text and "DATA-BEGIN" in text and "Be kind." in text


def test_as_json(judged, capsys):
    main(JudgeConfig(), judged.url, None, "g1", as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert [r["score"] for r in found["runs"]] == [0.2, 0.9, None]
    assert found["runs"][1]["votes"] == [0.8, 1.0] and found["meta"]["cost"] == 0.0123
    assert found["prompt"]["distinct_runs"] == 3 and found["prompt"]["tokens"] > 10


def test_what_is_no_group_is_named(judged):
    with pytest.raises(ConfigError, match="no episode is in a group g2"):
        main(JudgeConfig(), judged.url, None, "g2")
    with pytest.raises(ConfigError, match="is no group's id"):
        main(JudgeConfig(), judged.url, None, "g1' OR '1'='1")
