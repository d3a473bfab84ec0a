from __future__ import annotations

import subprocess
import sys


def test_python_dash_m() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "slipstream.cli", "--help"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0
    assert "usage: slipstream" in done.stdout
