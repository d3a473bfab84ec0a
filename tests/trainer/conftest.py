from __future__ import annotations

import os

from tests.support.fixtures import tiny

os.environ.setdefault("OMP_NUM_THREADS", "1")
__all__ = ["tiny"]
