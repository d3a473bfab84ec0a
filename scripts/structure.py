"""Measure the structure of the packages, and fail when a figure is over its limit.

    python scripts/structure.py            print each figure with its limit; exit 1 when one is over
    python scripts/structure.py --where    also print the places that break a limit

No figure counts how many files, folders or ignored lines there are: a limit on a count makes ideas share a file for want
of room. Circles are of all imports: also those that only the type checker reads. Which way the arrows between rooms go is
written down in ``pyproject.toml`` and checked by import-linter.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE_ROOTS = ("sdk", "proxy", "judge", "trainer", "engine")
PLUGIN_ROOTS = tuple(sorted(f"plugins/{path.name}" for path in (ROOT / "plugins").iterdir() if path.is_dir()))
LIMITS = {
    "circles": 0,
    "function_lines_longest": 60,
    "class_names_used_twice": 0,
    "lines_over_120": 0,
    "tests_importing_tests": 0,
    "one_word_constants": 0,
}
COLUMNS = 120
CONSTANTS = re.compile(r"([A-Z][A-Z0-9_]*(?:(?:, [A-Z][A-Z0-9_]*)+(?! = [A-Z][a-z]\w*$))?)(?:: [^=]+)? = ")
"""The names of a line's constants. An enum's own names that are unpacked (``BLOCKS, SLOWS = Severity``) are none."""
ONE_WORD = re.compile(r"[A-Z]{3,}")
"""A constant is a noun with a unit (``ENGINE_ANSWER_TIMEOUT_S``): one word had up to 13 meanings."""


@dataclass
class Module:
    """One source file. ``name`` is its dotted import name."""

    name: str
    path: Path
    area: str

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def where(self) -> str:
        return str(self.path.relative_to(ROOT))


@dataclass
class Figures:
    """Values by the names of ``LIMITS``, and the places that each of them counts."""

    values: dict[str, float] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)

    def put(self, name: str, value: float, places: list[str]) -> None:
        self.values[name], self.places[name] = value, places


def modules() -> list[Module]:
    found = []
    for area in (*CORE_ROOTS, *PLUGIN_ROOTS):
        for path in sorted((ROOT / area).rglob("*.py")):
            parts = list(path.relative_to(ROOT / area).with_suffix("").parts)
            if parts[-1] == "__init__":
                parts.pop()
            found.append(Module(".".join(parts), path, area))
    return found


def imports(module: Module, known: set[str]) -> set[str]:
    """Names of the known modules that this one imports, also those that only the type checker reads."""
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.name.split(".")
                up = node.level - (module.path.name == "__init__.py")
                base = ".".join([*parts[: len(parts) - up], *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                found.add(whole if whole in known else base)
    return (found & known) - {module.name}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one module (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            part = []
            while (last := stack.pop()) != name:
                part.append(last)
            if part:
                found.append(sorted([name, *part]))

    for name in graph:
        if name not in index:
            visit(name)
    return found


def packages(found: list[Module]) -> dict[str, list[str]]:
    """Package → the names of its rooms."""
    rooms: dict[str, set[str]] = defaultdict(set)
    for module in found:
        parts = module.name.split(".")
        for n in range(1, len(parts)):
            rooms[".".join(parts[:n])].add(".".join(parts[: n + 1]))
    return {package: sorted(names) for package, names in rooms.items()}


def room_graph(graph: dict[str, set[str]], package: str) -> dict[str, set[str]]:
    """The arrows among the rooms of one package."""
    depth = package.count(".") + 2
    arrows: dict[str, set[str]] = defaultdict(set)

    def room(name: str) -> str | None:
        return ".".join(name.split(".")[:depth]) if name.startswith(package + ".") else None

    for name, others in graph.items():
        here = room(name)
        if here is not None:
            arrows[here] |= {there for o in others if (there := room(o)) is not None} - {here}
    return arrows


def functions(module: Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, f"{module.where}:{node.lineno} {node.name}"


def importing_tests() -> list[str]:
    """Tests that import from another test, or from a ``conftest``: what several need stands in ``tests/support``."""
    line = re.compile(r"^\s*(?:from|import) tests\.(?:\w+\.)*(?:test_\w+|conftest)\b", re.MULTILINE)
    files = sorted((ROOT / "tests").rglob("*.py"))
    return [f"{path.relative_to(ROOT)}: {found.strip()}" for path in files for found in line.findall(path.read_text())]


def measure() -> Figures:
    found = modules()
    known = {m.name for m in found}
    graph = {m.name: imports(m, known) for m in found}
    figures = Figures()

    rooms = packages(found)
    rings = circles(graph) + [ring for package in rooms for ring in circles(room_graph(graph, package))]
    figures.put("circles", len(rings), [", ".join(ring) for ring in rings])
    sizes = sorted((f for m in found for f in functions(m)), reverse=True)
    over = [f"{n} {where}" for n, where in sizes if n > LIMITS["function_lines_longest"]]
    figures.put("function_lines_longest", sizes[0][0] if sizes else 0, over)

    classes: dict[str, list[str]] = defaultdict(list)
    for m in found:
        for node in ast.walk(m.tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(f"{m.where}:{node.lineno}")
    twice = {name: at for name, at in classes.items() if len(at) > 1}
    figures.put(
        "class_names_used_twice", len(twice), [f"{name}: {', '.join(at)}" for name, at in sorted(twice.items())]
    )

    lines = ((f"{m.where}:{number}", line) for m in found for number, line in enumerate(m.text.splitlines(), 1))
    wide = [where for where, line in lines if len(line) > COLUMNS]
    figures.put("lines_over_120", len(wide), wide)
    short = [
        f"{m.where}:{number} {line.split()[0]}"
        for m in found
        for number, line in enumerate(m.text.splitlines(), 1)
        if (constants := CONSTANTS.match(line)) and any(map(ONE_WORD.fullmatch, constants[1].split(", ")))
    ]
    figures.put("one_word_constants", len(short), short)
    crossed = importing_tests()
    figures.put("tests_importing_tests", len(crossed), crossed)
    figures.put("source_lines", sum(m.lines for m in found if m.area in CORE_ROOTS), [])
    figures.put("plugin_lines", sum(m.lines for m in found if m.area in PLUGIN_ROOTS), [])
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--where", action="store_true", help="print the places that break a limit")
    where = parser.parse_args().where
    sys.setrecursionlimit(10_000)
    figures = measure()
    broken = [name for name, limit in LIMITS.items() if figures.values[name] > limit]
    for name, value in figures.values.items():
        limit = f"≤ {LIMITS[name]}" if name in LIMITS else ""
        sys.stdout.write(f"{name:24} {value:8g}  {limit:8}{'  OVER' if name in broken else ''}\n")
        if where and name in broken:
            for place in figures.places[name]:
                sys.stdout.write(f"    {place}\n")
    sys.stdout.write(json.dumps(figures.values) + "\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
