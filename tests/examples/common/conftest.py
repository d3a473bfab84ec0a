"""Every test here sees an empty folder and none of the developer's own settings."""

from __future__ import annotations

from tests.support.fixtures import alone, server

__all__ = ["alone", "server"]
