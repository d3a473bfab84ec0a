from __future__ import annotations

import pytest

from slipstream.shared.progress import Progress


@pytest.fixture
def tty(monkeypatch: pytest.MonkeyPatch) -> Progress:
    progress = Progress()
    progress.tty = True
    return progress


def test_where_there_is_no_terminal_only_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    for done in range(5):
        progress.update("held-out tasks, base", done, 10, success=0.25)
    progress.say("a word")
    progress.update("held-out tasks, base", 10, 10, success=0.5, tokens_per_s=7)
    out, err = capsys.readouterr()
    assert out == ""
    first, word, last = err.splitlines()
    assert first == "held-out tasks, base ····················   0%  ETA …  success 25%"
    assert word == "a word"
    assert last == "held-out tasks, base ████████████████████ 100%  ETA 0 s  success 50%  tokens per s 7"
    assert "\x1b" not in err


def test_on_a_terminal_the_line_is_redrawn(tty: Progress, capsys: pytest.CaptureFixture[str]) -> None:
    tty.update("training", 1, 2, steps=1)
    tty.say("a word")
    tty.update("training", 2, 2, steps=2)
    err = capsys.readouterr().err
    assert err.count("\r\x1b[K") == 3
    assert "\r\x1b[Ka word\n" in err
    assert err.endswith("steps 2\n")
    assert "██████████··········  50%" in err


def test_another_piece_of_work_begins_anew(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    progress.update("one", 1, 10)
    progress.update("two", 0, 0)
    progress.update("two", 20, 10)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines] == ["one", "two", "two"]
    assert "100%" in lines[-1]
