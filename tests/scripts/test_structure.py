"""The structure's figures: each is measured on small trees of which the answer is known."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("structure", Path(__file__).resolve().parents[2] / "scripts/structure.py")
assert SPEC is not None
assert SPEC.loader is not None
structure = importlib.util.module_from_spec(SPEC)
sys.modules["structure"] = structure
SPEC.loader.exec_module(structure)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two modules that import each other, one of them only for the type checker."""
    data = tmp_path / "proxy/slipstream_proxy/data"
    data.mkdir(parents=True)
    for area in ("sdk", "judge", "trainer", "engine"):
        (tmp_path / area).mkdir()
    (data / "__init__.py").write_text("")
    (data / "one.py").write_text("from slipstream_proxy.data import two\n\n\nclass Same:\n    pass\n")
    (data / "two.py").write_text(
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from slipstream_proxy.data.one import Same\n"
    )
    (tmp_path / "tests/proxy").mkdir(parents=True)
    (tmp_path / "tests/proxy/test_one.py").write_text("")
    monkeypatch.setattr(structure, "ROOT", tmp_path)
    return data


def test_a_type_closes_a_circle(tree: Path) -> None:
    figures = structure.measure()
    assert figures.places["circles"][0] == "slipstream_proxy.data.one, slipstream_proxy.data.two"


def test_nothing_counts_how_many_files_a_room_has(tree: Path) -> None:
    for n in range(60):
        (tree / f"room{n}.py").write_text("from typing import Any\n\nx: Any = 1  # fmt: skip\n")
    (tree / "two.py").write_text("")
    figures = structure.measure()
    assert all(figures.values[name] <= limit for name, limit in structure.LIMITS.items())


def test_an_import_in_a_function_closes_a_circle(tree: Path) -> None:
    (tree / "two.py").write_text("def late():\n    from slipstream_proxy.data.one import Same\n    return Same\n")
    figures = structure.measure()
    assert figures.places["circles"][0] == "slipstream_proxy.data.one, slipstream_proxy.data.two"


def test_tests_that_import_from_each_other_are_counted(tree: Path) -> None:
    tests = structure.ROOT / "tests/proxy"
    (tests / "test_two.py").write_text(
        "from tests.proxy.test_one import helper\nfrom tests.support.plane import Plane\n"
    )
    assert structure.measure().places["tests_importing_tests"] == ["tests/proxy/test_two.py: from tests.proxy.test_one"]


def test_each_place_over_a_limit_is_named(tree: Path) -> None:
    body = "\n".join(f"    x = {n}" for n in range(70)) + "\n    return x"
    (tree / "two.py").write_text(f"class Same:\n    pass\n\n\ndef long():\n{body}\n\n\n# {'w' * 130}\n")
    figures = structure.measure()
    assert figures.values["function_lines_longest"] == 72
    assert figures.places["class_names_used_twice"][0].startswith("Same: ")
    assert len(figures.places["lines_over_120"]) == 1


def test_a_constant_of_one_word_is_named(tree: Path) -> None:
    lines = (
        "MOST = 3",
        "KEPT: int = 2",
        "MAX_RUNS = 3",
        "class A:",
        "    MOST = 3",
        "MAX_A, LEAST = 1, 2",
        "ON, OFF = Enum",
    )
    (tree / "two.py").write_text("\n".join(lines))
    places = structure.measure().places["one_word_constants"]
    assert [place.split(":", 1)[1] for place in places] == ["1 MOST", "2 KEPT:", "6 MAX_A,"]


def test_a_function_that_only_assigns_may_not_be_long_either(tree: Path) -> None:
    body = "\n".join(f"    x{n} = {n}" for n in range(70))
    (tree / "two.py").write_text(f"def metrics():\n{body}\n")
    assert structure.measure().values["function_lines_longest"] == 71
