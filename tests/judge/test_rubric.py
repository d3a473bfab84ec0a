from __future__ import annotations

import pytest

from slipstream.errors import ConfigError
from slipstream.settings import JudgeConfig
from slipstream_judge.compare.rubric import DEFAULT_RUBRIC, Rubrics, rubric_hash, text_of


def test_the_default_is_goal_progress_efficiency():
    assert Rubrics(JudgeConfig()).of("any") == DEFAULT_RUBRIC
    assert all(word in DEFAULT_RUBRIC for word in ("goal", "progress", "wasted"))
    assert (
        "significantly higher" in DEFAULT_RUBRIC
        and "A small difference between two runs is a small difference" in DEFAULT_RUBRIC
    )


def test_the_first_matching_pattern_wins(tmp_path):
    file = tmp_path / "mail.md"
    file.write_text("Mail rubric.\n")
    rubrics = Rubrics(
        JudgeConfig(
            rubric="General rubric.", rubrics={"mail-*": str(file), "mail-urgent*": "never", "*code*": "Code rubric."}
        )
    )
    assert rubrics.of("mail-urgent-1") == "Mail rubric."
    assert rubrics.of("my-code-2") == "Code rubric."
    assert rubrics.of("other") == rubrics.of(None) == "General rubric."


def test_an_override_is_for_every_task(tmp_path):
    assert Rubrics(JudgeConfig(rubrics={"*": "no"}), "Short and kind.").of("x") == "Short and kind."


def test_bad_rubrics_are_told_at_the_start(tmp_path):
    with pytest.raises(ConfigError, match="judge.rubric: .*[Dd]irectory"):
        Rubrics(JudgeConfig(rubric=str(tmp_path)))
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n")
    for value in (str(empty), "  ", "not-there.md"):
        with pytest.raises(ConfigError):
            Rubrics(JudgeConfig(rubric=value))
    assert text_of("Look at README.md") == "Look at README.md"
    for length in (255, 256, 300, 1023, 1024, 5000):
        sentence = "Be kind. " * length
        assert text_of(sentence[:length]) == sentence[:length].strip()


def test_hash_is_of_the_text():
    assert rubric_hash("a") == rubric_hash("a") != rubric_hash("b")
    assert len(rubric_hash("a")) == 16
