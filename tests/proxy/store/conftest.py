from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.postgres import fresh_schema, postgres  # noqa: F401 - a fixture
from tests.support.records import rules

from slipstream_proxy.store import open_store
from slipstream_proxy.store.store import Store


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty DuckDB store's file: copying it is faster than making one."""
    path = tmp_path_factory.mktemp("empty") / "store.duckdb"
    open_store(f"duckdb:///{path}", rules()).close()
    return path


@pytest.fixture(params=["duckdb", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh, empty store's URL, for each implementation."""
    if request.param == "duckdb":
        shutil.copy(request.getfixturevalue("empty"), tmp_path / "store.duckdb")
        return f"duckdb:///{tmp_path / 'store.duckdb'}"
    return fresh_schema(request.getfixturevalue("postgres"))


@pytest.fixture
def opened(url: str) -> Iterator[Callable[..., Store]]:
    """Opens the store at ``url`` with rules, as often as asked; all are closed at the end."""
    made: list[Store] = []

    def open_it(*, instance: str = "local", archive: str | None = None, **kw: Any) -> Store:
        made.append(open_store(url, rules(**kw), instance=instance, archive=archive))
        return made[-1]

    yield open_it
    for one in made:
        one.close()


@pytest.fixture
def store(opened: Callable[..., Store]) -> Store:
    return opened()
