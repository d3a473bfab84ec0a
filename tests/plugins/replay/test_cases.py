from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.replayed import recorded

from slipstream.errors import ConfigError
from slipstream_replay import cases


def test_a_file_comes_back_as_it_was_written() -> None:
    episodes = [recorded("e1"), recorded("e2", 0.25)]
    episodes[0].call_list[0].messages[1]["content"] = "half \ud83d of a pair\u2028"
    path = Path("c.jsonl")
    path.write_text("".join(cases.json_line(e) + "\n" for e in episodes))
    assert list(cases.file_cases(path)) == episodes


@pytest.mark.parametrize(
    ("line", "said"), [("{", "line 1: not JSON"), ("{}", "line 1: id: Field required; write it with")]
)
def test_a_line_that_is_no_episode(line: str, said: str) -> None:
    Path("c.jsonl").write_text(line + "\n")
    with pytest.raises(ConfigError, match=said):
        list(cases.file_cases(Path("c.jsonl")))


def test_import_requests_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "PART_EPISODES", 2)
    assert [len(p) for p in cases.parts(recorded(f"e{n}") for n in range(5))] == [2, 2, 1]
    monkeypatch.setattr(cases, "PART_CHARACTERS", 10)
    assert [len(p) for p in cases.parts(recorded(f"e{n}") for n in range(3))] == [1, 1, 1]
