"""What docs/security.md promises has a test each, and each kind of attacker has its section."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tests.support import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text()
ATTACKERS = ("An agent", "A key", "An engine", "An adapter", "A log", "A judge", "A web page", "A backup")
NAMED_TEST = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def names_in(file: str) -> set[str]:
    """Names of the tests in all files of this name."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob(file):
        found |= {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}  # fmt: skip
    return found


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED_TEST.findall(PAGE))))
def test_each_named_test_exists(file: str, name: str) -> None:
    assert name in names_in(file)


def rows(section: str) -> list[str]:
    """Lines of the section's tables, without their heads."""
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [line for line in lines if not line.startswith(("|---", "| it", "| who"))]


@pytest.mark.parametrize("attacker", ATTACKERS)
def test_each_line_about_an_attacker_names_a_test(attacker: str) -> None:
    (section,) = [part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE) if part.startswith(attacker)]
    assert " can " in section and rows(section), "what it can, and what it cannot"
    assert [row for row in rows(section) if not NAMED_TEST.search(row)] == []


def test_a_line_without_a_test_is_seen() -> None:
    assert rows("| it cannot | shown by |\n|---|---|\n| fly | nothing |") == ["| fly | nothing |"]
    assert not NAMED_TEST.search("| fly | nothing |") and "test_no_such" not in names_in(Path(__file__).name)
