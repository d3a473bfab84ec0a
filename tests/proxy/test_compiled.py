"""Compiled modules: made of these sources, used for no others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from slipstream_proxy import compiled

CAN = shutil.which("cc") is not None and (Path(sysconfig.get_paths()["include"]) / "Python.h").exists()
ONE = ("data/wire/errors.py",)
SAY = "from slipstream_proxy import compiled; print(compiled.use({one!r})); import slipstream_proxy.data.wire.errors as r; print(r.__file__, r.RequestRefused(429, 'x').kind)"


def said(cache: Path, **env: str) -> list[str]:
    env = {**os.environ, "XDG_CACHE_HOME": str(cache), **env}
    return subprocess.check_output([sys.executable, "-c", SAY.format(one=ONE)], env=env, text=True).split()


def test_each_source_has_a_folder_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = compiled.folder(ONE)
    assert home == compiled.folder(ONE) != compiled.folder()
    assert home.is_relative_to(tmp_path / "cache")
    shutil.copytree(compiled.PACKAGE / "data", tmp_path / "p" / "data", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(compiled, "PACKAGE", tmp_path / "p")
    assert compiled.folder(ONE) == home
    with (tmp_path / "p" / "data" / "wire" / "errors.py").open("a") as file:
        file.write("\n")
    assert compiled.folder(ONE) != home


def test_nothing_is_used_that_was_not_made(tmp_path):
    assert said(tmp_path)[0] == "False"


def test_what_is_imported_already_stays(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = compiled.folder(ONE)
    home.mkdir(parents=True)
    (home / "ready").touch()
    import slipstream_proxy.data.wire.errors as module

    assert not compiled.use(ONE) and sys.modules["slipstream_proxy.data.wire.errors"] is module
    assert said(tmp_path)[0] == "False", "a folder without its modules"


def test_modules_are_there():
    assert all((compiled.PACKAGE / name).exists() for name in compiled.MODULES)


@pytest.mark.chaos  # a compiler at work takes its time
@pytest.mark.skipif(not CAN, reason="no C compiler, or no headers of Python")
def test_a_module_is_compiled_and_used(monkeypatch, tmp_path):
    pytest.importorskip("mypyc")
    pytest.importorskip("setuptools")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("MYPYC_OPT_LEVEL", "0")
    home = compiled.build(ONE)
    assert compiled.build(ONE) == home
    used, path, kind = said(tmp_path)
    assert used == "True" and path.startswith(str(home)) and kind == "rate_limit_error"
    used, path, _ = said(tmp_path, SLIPSTREAM_COMPILED="0")
    assert used == "False" and path.endswith("errors.py")
