"""The sweep over families says where one fails, and why."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.models.bench_models import Row, table, train, write


@pytest.mark.parametrize(("family", "cpu"), [("qwen3", "yes"), ("qwen3_moe", "it is a mixture of experts")])
def test_a_family_is_trained_and_published(tmp_path: Path, family: str, cpu: str) -> None:
    row = train(family, tmp_path)
    assert (row.loads, row.trains, row.publishes, row.cpu) == ("yes", "yes", "yes", cpu)
    assert {"q_proj", "o_proj"} <= set(row.targets)
    assert (tmp_path / f"{family}@1" / "adapter_model.safetensors").is_file()
    assert not row.whole, "vLLM was not asked"


def test_what_fails_stands_in_its_cell(tmp_path: Path) -> None:
    row = train("no_such_family", tmp_path)
    assert row.loads == "KeyError: 'no_such_family'"
    assert (row.trains, row.publishes) == ("", "")
    assert "| no_such_family | KeyError: 'no_such_family' | – |" in table([row, Row("llama")])


def test_a_sweep_over_some_families_leaves_the_rows_of_the_others(tmp_path: Path) -> None:
    write([Row("llama", loads="no"), Row("qwen3", loads="yes")], tmp_path / "models.json")
    found = write([Row("llama", "yes", "yes", "yes", "yes")], tmp_path / "models.json")
    assert [(row["family"], row["loads"]) for row in found["rows"]] == [("llama", "yes"), ("qwen3", "yes")]
    assert (found["families"], found["whole"]) == (2, 1)
