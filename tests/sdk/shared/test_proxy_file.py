"""Which proxy runs on a data folder."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from slipstream.errors import StartError
from slipstream.shared.processes.proxy_file import PROXY_FILE_NAME, announce_proxy, running_proxy


def test_what_is_announced_is_found(tmp_path: Path) -> None:
    assert running_proxy(tmp_path) is None
    announce_proxy(tmp_path, "http://h:1")
    assert running_proxy(tmp_path) == "http://h:1"
    assert running_proxy(tmp_path, os.getpid()) == "http://h:1"
    assert running_proxy(tmp_path, 1) is None


def test_one_that_was_killed_is_not_found(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    (tmp_path / PROXY_FILE_NAME).write_text(json.dumps({"url": "http://h:1", "pid": dead.pid}))
    assert running_proxy(tmp_path) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"url": "x", "pid": "y"}'])
def test_a_file_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / PROXY_FILE_NAME).write_text(text)
    assert running_proxy(tmp_path) is None


def test_a_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(StartError, match="is another user's: run this as that user, or give --url"):
        running_proxy(tmp_path)
