"""The examples are folders of scripts, not packages: put them on the path as running one of them does."""

from __future__ import annotations

import sys
from pathlib import Path

for name in ("inbox", "tictactoe"):
    folder = str(Path(__file__).resolve().parents[2] / "examples" / name)
    if folder not in sys.path:
        sys.path.insert(0, folder)
