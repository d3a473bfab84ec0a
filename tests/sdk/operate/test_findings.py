"""Each finding is whole, and some test makes its situation."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import slipstream.engines
import slipstream.operate.doctor
from slipstream.contract.funnel import Stage
from slipstream.engines.findings import Finding, fail, ok, warn
from slipstream.operate.doctor.proxy import CAUSE_TEXTS

ROOMS = [Path(room.__file__).parent for room in (slipstream.operate.doctor, slipstream.engines)]
HERE = Path(__file__).parent
FROM_ELSEWHERE = {"check_funnel", "check_configured", "_examine"}
"""Their words are the funnel's, the model check's, `slipstream up`'s and the packages' own."""


def test_levels() -> None:
    assert ok("fine") == Finding("ok", "fine")
    assert warn("slow", "it waits", "faster disk") == Finding("warn", "slow", "it waits", "faster disk")
    assert fail("gone", "no store", "bring it back") == Finding("fail", "gone", "no store", "bring it back")


def test_every_stage_of_the_funnel_has_a_why() -> None:
    assert {stage for stage, cause in CAUSE_TEXTS if not cause} == set(get_args(Stage))


def told() -> dict[str, list[str]]:
    """Where a warning or a failure is made → the fixed parts of what it says."""
    found: dict[str, list[str]] = {}
    for path in (path for room in ROOMS for path in room.rglob("*.py")):
        for function in [f for f in ast.walk(ast.parse(path.read_text())) if isinstance(f, ast.FunctionDef)]:
            names = {
                t.id: n.value
                for n in ast.walk(function)
                if isinstance(n, ast.Assign)
                for t in n.targets
                if isinstance(t, ast.Name)
            }
            for call in ast.walk(function):
                if not (
                    isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("warn", "fail")
                ):
                    continue
                assert len(call.args) == 3, f"{path.name}:{call.lineno}: what, why and fix"
                what = call.args[0]
                what = names.get(what.id, what) if isinstance(what, ast.Name) else what
                parts = [n.value for n in ast.walk(what) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
                if function.name not in FROM_ELSEWHERE:
                    found[f"{path.name}:{call.lineno}"] = [p.strip() for p in parts if len(p.strip()) > 7]
    return found


def test_each_fix_is_a_command_or_a_setting() -> None:
    """A page of the docs is none. What a name stands for is written where other findings have it too."""
    mends = re.compile(r"`|\b(?:pip )?install (?:-U )?'|\bpip install |\bexport |--[a-z]|\b[a-z]+\.[a-z_]+\b|\[models")
    poor = {}
    for path in (path for room in ROOMS for path in room.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("warn", "fail"):
                texts = [n.value for n in ast.walk(call.args[2]) if isinstance(n, ast.Constant)]
                text = "".join(t for t in texts if isinstance(t, str))
                if text and ("docs/" in text or not mends.search(text)):
                    poor[f"{path.name}:{call.lineno}"] = text
    assert not poor


def test_each_finding_has_a_test_that_makes_its_situation() -> None:
    wanted = told()
    assert len(wanted) > 35
    tests = [ast.walk(ast.parse(p.read_text())) for p in HERE.glob("test_doctor*.py")]
    said = [
        n.value
        for tree in tests
        for n in tree
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and len(n.value) > 6
    ]
    missing = {at: parts for at, parts in wanted.items() if not any(s in p or p in s for p in parts for s in said)}
    assert not missing
