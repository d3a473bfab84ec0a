from __future__ import annotations

import os

from tests.support.fixtures import alone, engine, make_plane, plane, server, tiny

os.environ.setdefault("OMP_NUM_THREADS", "1")
__all__ = ["alone", "engine", "make_plane", "plane", "server", "tiny"]
