from __future__ import annotations

import json

import pytest
from tests.support.server import Server

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


@pytest.mark.parametrize(
    ("option", "value", "takes"),
    [
        ("--name", "bad name!", "1 to 128 of A-Z"),
        ("--name", "", "1 to 128 of A-Z"),
        ("--rubric", "/", "the rubric's text, or a file"),
        ("--rubric", " ", "the rubric's text, or a file"),
    ],
)
def test_what_a_rerun_cannot_take(option: str, value: str, takes: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", "rerun", option, value, "--set", "judge.function=m:f"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"slipstream judge: {option} {value!r}: ") and takes in err and err.count("\n") == 1


def test_show_needs_no_judge(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", "show", "no group"]) == 2
    assert capsys.readouterr().err == "slipstream judge: 'no group' is no group's id\n"


def test_eval_needs_a_file() -> None:
    with pytest.raises(SystemExit) as e:
        main(["judge", "eval"])
    assert e.value.code == 2


def test_retry_hands_out_the_parked_groups_or_one(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    group = {"kind": "task", "key": "-", "task": "t", "split": "train", "model": "m", "episodes": []}
    server.on("GET", "/groups/parked", {"groups": [{"id": "g1", **group}, {"id": "g2", **group}]})
    for name in ("g1", "g2"):
        server.on("POST", f"/groups/{name}/retry", {})
    assert main(["judge", "retry", "--url", server.url]) == 0
    assert capsys.readouterr().out == "2 groups are handed out again\n"
    assert main(["judge", "retry", "g2", "--url", server.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"retried": ["g2"]}
