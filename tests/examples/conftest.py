"""The inbox example is a folder of scripts, not a package: put it on the path as running one of them does."""

from __future__ import annotations

import sys
from pathlib import Path

INBOX = Path(__file__).resolve().parents[2] / "examples" / "inbox"
if str(INBOX) not in sys.path:
    sys.path.insert(0, str(INBOX))
