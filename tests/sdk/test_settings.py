"""Every setting says what it is; what follows from them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel
from tests.support import MODEL

from slipstream.config import load_config
from slipstream.settings import Section


def sections() -> list[type[BaseModel]]:
    return [s for s in Section.__subclasses__() if s.__module__.startswith("slipstream.")]


@pytest.mark.parametrize("section", sections(), ids=lambda s: s.__name__)
def test_every_field_says_what_it_is(section: type[BaseModel]) -> None:
    for name, field in section.model_fields.items():
        is_section = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        assert is_section or (field.description and field.description.strip()), f"{section.__name__}.{name}"


def test_paths_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(env={}, flags=[f"data_dir={tmp_path}/d"])
    assert config.spool_dir == tmp_path / "d/spool"
    assert config.adapters_dir == tmp_path / "d/adapters"
    assert config.store_url == f"duckdb:///{tmp_path}/d/slipstream.duckdb"
    assert config.socket.parent == config.keys_file.parent == config.checkpoints_dir.parent == tmp_path / "d"
    elsewhere = load_config(env={}, flags=[f"adapters.dir={tmp_path}/a", "store.url=postgresql://h/d"])
    assert elsewhere.adapters_dir == tmp_path / "a"
    assert elsewhere.store_url == "postgresql://h/d"
    assert config.model_name == "default"
    assert load_config(env={}, flags=["engine.model=Qwen/Qwen3-4B"]).model_name == "Qwen3-4B"
    assert load_config(env={}, flags=["engine.model=Qwen/Qwen3-4B", "engine.name=mine"]).model_name == "mine"
    monkeypatch.chdir(MODEL)
    assert load_config(env={}, flags=["engine.model=."]).model_name == MODEL.name
