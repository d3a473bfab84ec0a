from __future__ import annotations

from pathlib import Path

import pytest
from tests.support import free_port
from tests.support.server import Server

from slipstream.cli import main


def test_to_a_file(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytes(range(256)) * 8192
    server.on("GET", "/backup", data)
    out = tmp_path / "all.tar"
    assert main(["backup", str(out), "--url", server.url]) == 0
    assert out.read_bytes() == data and list(tmp_path.iterdir()) == [out]
    assert "2.0 MiB" in capsys.readouterr().err


def test_a_whole_file_or_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "all.tar"
    out.write_text("before")
    assert main(["backup", str(out), "--url", f"http://127.0.0.1:{free_port()}"]) == 1
    assert out.read_text() == "before" and list(tmp_path.iterdir()) == [out]
    assert main(["backup", str(tmp_path / "no" / "all.tar"), "--url", f"http://127.0.0.1:{free_port()}"]) == 1
    assert "No such file" in capsys.readouterr().err
