from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from slipstream_proxy.store import open_store
from slipstream_proxy.store.protocol import Store
from tests.proxy.store.helpers import rules


@pytest.fixture(params=["duckdb"])
def url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    """A fresh, empty store's URL, for each implementation."""
    return f"duckdb:///{tmp_path / 'store.duckdb'}"


@pytest.fixture
def opened(url: str) -> Iterator[Callable[..., Store]]:
    """Opens the store at ``url`` with rules, as often as asked; all are closed at the end."""
    made: list[Store] = []

    def open_it(*, instance: str = "local", **kw: Any) -> Store:
        made.append(open_store(url, rules(**kw), instance=instance))
        return made[-1]

    yield open_it
    for one in made:
        one.close()


@pytest.fixture
def store(opened: Callable[..., Store]) -> Store:
    return opened()
