from __future__ import annotations

import pytest
from tests.support.fixtures import engine, make_plane, plane

from slipstream_proxy.control.adapters import journal, transitions

__all__ = ["engine", "make_plane", "plane"]


@pytest.fixture(autouse=True)
def _follows_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of an adapter's state that the docs don't print fails the test. In production it is logged."""
    look = transitions.unexpected

    def found(before, changed):
        strange = look(before, changed)
        assert not strange, strange
        return strange

    monkeypatch.setattr(journal, "unexpected", found)
