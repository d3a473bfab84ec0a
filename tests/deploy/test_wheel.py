"""The wheel is the same, byte for byte, whoever builds it and when."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from tests.support import ROOT

pytestmark = pytest.mark.deploy
BUILD = "import sys, hatchling.build as b; print(b.build_wheel(sys.argv[1]))"


def build(source: Path, into: Path, umask: int, zone: str) -> Path:
    """As ``python -m build`` does with hatchling, from a copy of the tracked files."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    for name in filter(None, files):
        path = source / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / os.fsdecode(name)).is_file():
            shutil.copyfile(ROOT / os.fsdecode(name), path)
    into.mkdir()
    env = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "TZ": zone}
    argv = [sys.executable, "-c", BUILD, str(into)]
    done = subprocess.run(argv, cwd=source, env=env, capture_output=True, text=True, check=False, umask=umask)
    assert done.returncode == 0, done.stderr
    (wheel,) = into.glob("*.whl")
    return wheel


def test_two_builds_are_the_same_bytes(tmp_path):
    pytest.importorskip("hatchling")
    one = build(tmp_path / "a place", tmp_path / "one", 0o022, "UTC")
    time.sleep(1.1)
    two = build(tmp_path / "another", tmp_path / "two", 0o077, "Asia/Tokyo")
    assert one.name == two.name
    assert hashlib.sha256(one.read_bytes()).digest() == hashlib.sha256(two.read_bytes()).digest()
    with zipfile.ZipFile(one) as wheel:
        names = wheel.namelist()
    # what mypyc makes is made where it runs (`python -m slipstream_proxy.process.compiled`), and is no part of the wheel
    assert not [n for n in names if n.endswith((".so", ".c", ".pyc"))]
    assert "slipstream_proxy/data/call/call.py" in names
    # `slipstream demo` runs from the wheel
    for part in (
        "common/task.py",
        "common/transcript.py",
        "inbox/task.py",
        "inbox/agent.py",
        "inbox/model/model.safetensors",
    ):
        assert f"slipstream/examples/{part}" in names
