"""Bytecode of large packages is kept where neither an installer nor Python itself keeps it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from slipstream.shared import machine


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "site" / "large_package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setattr(machine, "LARGE_PACKAGES", ("large_package", "not_there"))
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def imported(package, env):
    """Import it in a process of its own, which writes no bytecode but for ``env``."""
    whole = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(package.parent), **env}
    whole.pop("PYTHONPYCACHEPREFIX", None) if not env else None
    subprocess.run([sys.executable, "-c", "import large_package"], check=True, env=whole)


def test_a_child_keeps_it_in_the_users_cache_where_python_writes_none(package, tmp_path):
    imported(package, {})
    assert not list(tmp_path.rglob("*.pyc"))
    env = machine.bytecode_env()
    imported(package, env)
    kept = list((tmp_path / "cache" / "slipstream" / "bytecode").rglob("*.pyc"))
    assert "__init__" in {p.name.partition(".")[0] for p in kept if p.parent.name == "large_package"}
    assert not list(package.rglob("*.pyc"))
    assert (tmp_path / "cache" / "slipstream" / "bytecode").stat().st_mode & 0o077 == 0


def test_where_the_installer_made_it_nothing_is_set(package):
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(package)], check=True)
    assert machine.bytecode_env() == {}


def test_where_python_keeps_it_by_itself_nothing_is_set(package, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert machine.bytecode_env() == {}
    monkeypatch.setattr(os, "access", lambda *_: False)  # a read-only folder; root may write everywhere
    assert machine.bytecode_env()["PYTHONDONTWRITEBYTECODE"] == ""


def test_a_place_that_was_chosen_is_left(package, monkeypatch):
    monkeypatch.setattr(sys, "pycache_prefix", "/elsewhere")
    assert machine.bytecode_env() == {}


def test_without_a_place_of_its_own_it_goes_on(package, monkeypatch, tmp_path):
    (tmp_path / "cache").write_text("a file")
    assert machine.bytecode_env() == {}
