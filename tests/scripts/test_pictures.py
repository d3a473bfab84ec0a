"""README's figures of the demo are those of the run that its pictures show."""

from __future__ import annotations

import importlib.util
import re

import pytest
from tests.support import ROOT

SUMMARY = {"success_base": 0.2344, "success_last": 0.9023, "train_seconds": 170.4, "adapter": "inbox@21"}


@pytest.fixture(scope="module")
def pictures():
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "scripts" / "pictures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_figures_of_a_run_are_written_into_readme(pictures) -> None:
    text = (ROOT / "README.md").read_text()
    new = pictures.with_figures(text, SUMMARY)
    assert "**0.23 before** (the base model, left) and **0.90 after** (version 21, right)" in new
    assert "170 s of training" in new
    assert pictures.with_figures(new, SUMMARY) == new, "again, and nothing else changes"
    start, end = (re.search(r"<!-- scripts/pictures.py", text), re.search(r"<!-- until here -->", text))
    assert new.startswith(text[: start.start()])
    assert new.endswith(text[end.end() :])


def test_no_place_for_them_is_told(pictures) -> None:
    with pytest.raises(ValueError, match="0 places"):
        pictures.with_figures("no place", SUMMARY)


def test_readme_has_no_other_figure_of_the_demo() -> None:
    """Four of them disagreed once."""
    rest = re.sub(r"<!-- scripts/pictures.*?until here -->", "", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    about = [line for line in rest.splitlines() if re.search(r"\bdemo\b", line)]
    assert about
    assert [line for line in about if re.search(r"\d %|0\.\d\d|\b\d+ adapters", line)] == []
