"""Compiled modules: made of these sources, used for no others."""

from __future__ import annotations

import ast
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


def waiting_while_leaving(source: str) -> list[int]:
    """Lines that wait in an ``except``, a ``finally`` or an ``__aexit__``."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Try | ast.TryStar):
            leaving = [*node.handlers, *node.finalbody]
            found += [n.lineno for part in leaving for n in ast.walk(part) if isinstance(n, ast.Await)]
        elif isinstance(node, ast.AsyncWith):
            entered = [ast.unparse(item.context_expr) for item in node.items]
            # its __aexit__ waits for nothing
            found += [node.lineno for text in entered if not text.startswith("asyncio.timeout(")]
    return found


def test_nothing_that_is_compiled_waits_while_an_exception_leaves():
    """mypyc loses the exception there, or the process dies of it."""
    assert waiting_while_leaving("async def f():\n async with a as b, asyncio.timeout(1):\n  pass") == [2]
    assert waiting_while_leaving("async def f():\n try:\n  pass\n finally:\n  await g()") == [5]
    assert waiting_while_leaving("async def f():\n try:\n  pass\n except E:\n  await g()") == [5]
    found = {name: waiting_while_leaving((compiled.PACKAGE / name).read_text()) for name in compiled.MODULES}
    assert not {name: lines for name, lines in found.items() if lines}


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
