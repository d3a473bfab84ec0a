from __future__ import annotations

import json

import pytest
from tests.support.groups import run, said

from slipstream.errors import ConfigError
from slipstream_trust.cases import read_cases


def write(tmp_path, *lines):
    file = tmp_path / "cases.jsonl"
    file.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
    return file


def test_groups_and_truth(tmp_path):
    groups, truth = read_cases(
        write(
            tmp_path,
            {"group": "a", "truth": 1, "messages": [said("user", "u")], "tools": [{"name": "f"}]},
            "",
            {"group": "b", "truth": True, "episode": "mine", "task": "t", "calls": run(0.5)},
            {"group": "a", "truth": 0.5, "messages": []},
            {"truth": 0, "messages": []},
        )
    )
    assert [[e.episode.id for e in g.episodes] for g in groups] == [["line-1", "line-4"], ["mine"], ["line-5"]]
    assert truth == {"line-1": 1.0, "mine": 1.0, "line-4": 0.5, "line-5": 0.0}
    assert groups[1].task == "t" and len(groups[1].episodes[0].calls) == 2
    assert groups[0].episodes[0].calls[0].tools == [{"name": "f"}]


def test_a_line_ends_at_its_end_alone(tmp_path):
    line = json.dumps({"truth": 1, "messages": [said("user", "one\u2028two\x0cthree")]}, ensure_ascii=False)
    groups, _ = read_cases(write(tmp_path, line))
    assert groups[0].episodes[0].calls[0].messages[0]["content"] == "one\u2028two\x0cthree"


@pytest.mark.parametrize(
    "line, said",
    [
        ("{", "cases.jsonl:2"),
        ("[]", "no JSON object"),
        ({"truth": 1}, "messages"),
        ({"truth": "good", "messages": []}, "truth"),
        ({"messages": []}, "truth"),
        ({"truth": 1, "mesages": []}, "unknown field mesages"),
        ({"truth": 1, "calls": [{"outcome": "odd"}]}, "outcome"),
        ({"truth": 1, "messages": [], "episode": "one"}, "appears twice"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, said):
    with pytest.raises(ConfigError, match=said):
        read_cases(write(tmp_path, {"truth": 1, "messages": [], "episode": "one"}, line))


def test_a_file_that_is_not_there_or_empty(tmp_path):
    with pytest.raises(ConfigError):
        read_cases(tmp_path / "absent.jsonl")
    with pytest.raises(ConfigError, match="no episodes"):
        read_cases(write(tmp_path, ""))
