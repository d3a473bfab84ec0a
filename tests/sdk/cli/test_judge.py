from __future__ import annotations

import pytest

from slipstream.cli import main


def test_without_a_judge_there_is_nothing_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    for action in ([], ["eval", "x.jsonl"], ["rerun"]):
        assert main(["judge", *action]) == 2
        err = capsys.readouterr().err
        assert (
            err == "slipstream judge: no judge: set judge.model (a LiteLLM name) or judge.function (module:function)\n"
        )


def test_a_wrong_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", "--model", "openai/x", "--set", "judge.vote=3"]) == 2
    assert "did you mean judge.votes?" in capsys.readouterr().err


def test_show_needs_no_judge(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", "show", "no group"]) == 2
    assert capsys.readouterr().err == "slipstream judge: 'no group' is no group's id\n"


def test_eval_needs_a_file() -> None:
    with pytest.raises(SystemExit) as e:
        main(["judge", "eval"])
    assert e.value.code == 2
