"""The registry, and what guards it from broken rows."""

from __future__ import annotations

import sys

import pytest
from tests.support.logs import ASK, END

from slipstream_chat.report import Place, Report
from slipstream_imports.registry import FORM_MODULES, detected, form_of, guarded


def test_each_line_is_a_module_with_what_a_form_has():
    for name in FORM_MODULES:
        form = form_of(name)
        assert isinstance(form.GATHERS_ROWS, bool) and callable(form.is_one) and callable(form.runs)
        assert not form.is_one({})
    assert detected({"messages": [ASK, END]}) == "openai" and detected({}) is None


@pytest.mark.parametrize("error", [KeyError("x"), RecursionError(), TypeError("no"), ValueError("no")])
def test_a_row_that_breaks_its_form_is_told(error):
    report = Report()
    with guarded(Place(report, "f:1")):
        raise error
    assert len(report.refused) == 1 and report.refused[0].startswith("f:1: it")


def test_forms_are_loaded_only_for_an_import():
    import subprocess

    code = "import sys, slipstream.cli as c; c.build_parser(); print([m for m in sys.modules if 'slipstream_imports.' in m])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
