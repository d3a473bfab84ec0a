from __future__ import annotations

import io
import subprocess
import sys

import pytest

from slipstream.cli import main


def test_python_dash_m() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "slipstream.cli", "--help"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0
    assert "usage: slipstream" in done.stdout


def test_a_terminal_that_has_no_arrows_ends_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", shown)
    monkeypatch.setattr("slipstream.cli.steer.keys.run", lambda _: print("a \u2192 b") or 0)
    assert main(["keys", "list"]) == 0
    assert shown.buffer.getvalue() == b"a \\u2192 b\n"


@pytest.mark.parametrize("value", ["nan", "inf", "-1e999", "x"])
@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("distill", "--min-reward"),
        ("distill", "--epochs"),
        ("episodes", "--reward-min"),
        ("replay", "--alpha"),
        ("annotate", "--at"),
    ],
)
def test_a_number_is_finite(command: str, option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as e:
        main([command, f"{option}={value}"])
    assert e.value.code == 2
    assert f"argument {option}: {value!r} is no number" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["keys", "list"], ["demo"], ["proxy"]])
def test_a_system_without_what_it_needs(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on Windows: no package to install is named."""
    for name in [n for n in sys.modules if n.startswith(("slipstream_proxy", "common.demo"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fcntl", None)
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "runs on Linux" in said and "--url" in said and "pip install" not in said
