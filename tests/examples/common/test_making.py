"""The command line that makes a small model, with every task's recipe; one of them is followed to the end."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
from common import making
from common.task import EXAMPLES
from transformers import AutoModelForCausalLM, AutoTokenizer

FOLDERS = sorted(file.parent.name for file in EXAMPLES.glob("*/make_model.py"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_recipe_makes_rows_and_the_committed_models_shape(folder: str) -> None:
    recipe = importlib.import_module(f"{folder}.make_model").RECIPE
    rows = recipe.make_rows(0, 3)
    assert len(rows) == 3
    assert all(any(row.own) and len(row.own) == len(row.ids) for row in rows)
    config = json.loads((EXAMPLES / folder / "model" / "config.json").read_text())
    assert (recipe.layers, recipe.intermediate) == (config["num_hidden_layers"], config["intermediate_size"])
    assert len(recipe.tokenizer()) == config["vocab_size"]
    assert making.options("", recipe).parse_args(["out"]).steps == recipe.steps


def test_a_model_is_made_and_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from twenty48.make_model import RECIPE

    flags = "--rows 8 --steps 2 --batch 4 --layers 1 --intermediate 32 --measure 10 --threads 1 --processes 1".split()
    flags += "--lesson-rows 8 --lesson-steps 2".split()
    monkeypatch.setattr(sys, "argv", ["make_model.py", str(tmp_path), *flags])
    making.main("about", RECIPE)
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["loss"] > 0
    assert 0 <= figures["reward"] <= 1 < 10 * figures["expert"]
    assert figures["parameters"] == AutoModelForCausalLM.from_pretrained(tmp_path).num_parameters()
    assert AutoTokenizer.from_pretrained(tmp_path)("left").input_ids
