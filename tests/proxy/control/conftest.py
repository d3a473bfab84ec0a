from __future__ import annotations

from tests.support.fixtures import engine, make_plane, plane

__all__ = ["engine", "make_plane", "plane"]
