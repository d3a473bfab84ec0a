"""``module:function`` in settings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slipstream.engines import engine_of
from slipstream.errors import ConfigError
from slipstream.shared.functions import load_function


def test_a_module_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_of_test.py").write_text("class A:\n    @staticmethod\n    def f(x): return x + 1\nvalue = 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("/nowhere")
    assert load_function("a.b", "mine_of_test:A.f")(1) == 2
    with pytest.raises(ConfigError, match=r"^a\.b = 'mine_of_test:value' is no function$"):
        load_function("a.b", "mine_of_test:value")
    with pytest.raises(ConfigError, match=r"^a\.b = 'mine_of_test:A\.g': .*no attribute 'g'"):
        load_function("a.b", "mine_of_test:A.g")


def test_its_other_files_are_no_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_too.py").write_text("def f():\n    import helper_of_mine\n    return helper_of_mine.value\n")
    (tmp_path / "helper_of_mine.py").write_text("value = 5\n")
    (tmp_path / "wave.py").write_text("raise SystemExit('taken for a library')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    load_function("a.b", "json:dumps")
    assert str(tmp_path) not in sys.path
    mine = load_function("a.b", "mine_too:f")
    import wave

    assert mine() == 5
    assert not wave.__file__.startswith(str(tmp_path))


@pytest.mark.parametrize("spec", ["json", "json:", ":dumps", ""])
def test_its_form(spec: str) -> None:
    with pytest.raises(ConfigError, match="write module:Class"):
        engine_of("mine")
    with pytest.raises(ConfigError, match="write module:function"):
        load_function("a.b", spec)


@pytest.mark.parametrize("spec", ["no_such_module:f", "json.no:f", "a b:f", "json:a b", "json:dumps:more"])
def test_what_cannot_be_imported(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"^a\.b = "):
        load_function("a.b", spec)
