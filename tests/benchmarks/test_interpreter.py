"""The proxy's benchmark runs on the fastest interpreter of this version, and says which one that was."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.proxy import interpreter


def test_ours_stays_unless_another_one_is_clearly_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {sys.executable: 1.0, "/usr/bin/python": 0.97}
    monkeypatch.setattr(shutil, "which", lambda name, path: "/usr/bin/python" if path == "/usr/bin" else None)
    monkeypatch.setattr(Path, "exists", lambda _: True)
    monkeypatch.setattr(interpreter, "measured", lambda path: interpreter.Interpreter(path, "3", seconds[path]))
    works = True
    monkeypatch.setattr(interpreter.Interpreter, "runs", lambda _: works)
    assert interpreter.fastest().path == sys.executable
    seconds["/usr/bin/python"] = 0.8
    assert interpreter.fastest().path == "/usr/bin/python"
    works = False
    assert interpreter.fastest().path == sys.executable


def test_this_one_is_measured_and_needs_no_environment() -> None:
    found = interpreter.measured(sys.executable)
    assert found is not None
    assert found.seconds > 0
    assert found.env == {}


def test_what_is_no_python_is_left_out(tmp_path) -> None:
    assert interpreter.measured(str(tmp_path / "none")) is None
    assert interpreter.measured("/bin/true") is None


def test_another_one_finds_our_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "samefile", lambda a, b: False)
    env = interpreter.Interpreter(sys.executable, "3", 1.0).env
    done = subprocess.run([sys.executable, "-c", "import orjson, slipstream_proxy"], env=env, check=False)
    assert done.returncode == 0
    assert interpreter.Interpreter(sys.executable, "3", 1.0).runs()
    assert os.__file__.rpartition("/")[0] not in env["PYTHONPATH"].split(os.pathsep)


def test_one_that_cannot_import_our_packages_does_not_run_them() -> None:
    assert not interpreter.Interpreter("/bin/false", "3", 1.0).runs()
