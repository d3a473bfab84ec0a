"""Shell completion, asked as a shell asks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from slipstream.cli import main


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shells_code(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "slipstream" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "among"),
    [("slipstream ad", "adapters"), ("slipstream adapters de", "demote"), ("slipstream status --js", "--json")],
)
def test_completions(line: str, among: str) -> None:
    env = {**os.environ, "_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
    script = "import os; os.dup2(1, 8); from slipstream.cli import main; main([])"
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert among in [word.strip() for word in done.stdout.split("\n")], done
