from __future__ import annotations

from pathlib import Path

import pytest
from tests.support import free_port
from tests.support.server import Reply, Server

from slipstream.cli import main


def test_to_a_file(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytes(range(256)) * 1000
    server.on("GET", "/export", data)
    out = tmp_path / "set.parquet"
    assert main(["export", "--format", "parquet", "--out", str(out), "--url", server.url, "--split", "train"]) == 0
    assert out.read_bytes() == data
    assert server.seen[0].query == {"format": ["parquet"], "split": ["train"]}
    assert list(tmp_path.iterdir()) == [out]
    assert capsys.readouterr().out == f"{out}: 0.3 MB of parquet\n"


def test_to_standard_output(server: Server, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    server.on("GET", "/export", b'{"a": 1}\n')
    assert main(["export", "--url", server.url]) == 0
    assert capfdbinary.readouterr().out == b'{"a": 1}\n'


def test_a_whole_file_or_none(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "set.jsonl"
    out.write_text("before")
    server.routes["GET", "/export"] = Reply(b"half", truncated=True)
    assert main(["export", "--out", str(out), "--url", server.url]) == 1
    assert "was lost" in capsys.readouterr().err
    assert main(["export", "--out", str(out), "--url", f"http://127.0.0.1:{free_port()}"]) == 1
    assert out.read_text() == "before"
    assert list(tmp_path.iterdir()) == [out]


def test_a_folder_that_is_not_there(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("GET", "/export", b"x")
    assert main(["export", "--out", str(tmp_path / "none" / "x"), "--url", server.url]) == 1
    assert capsys.readouterr().err == f"slipstream export: {tmp_path}/none/x: No such file or directory\n"


def test_an_unknown_format(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as e:
        main(["export", "--format", "csv"])
    assert e.value.code == 2


def test_progress_where_it_is_asked_for(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream.shared.progress.QUIET_SECONDS", 0.0)
    server.on("GET", "/export", b'{"a": 1}\n' * 3)
    out = str(tmp_path / "set.jsonl")
    assert main(["export", "--out", out, "--form", "deltas", "--progress", "--url", server.url]) == 0
    assert "export  rows 3  megabytes 0.0" in capsys.readouterr().err
    assert server.seen[0].query["form"] == ["deltas"]
    assert main(["export", "--out", out, "--url", server.url]) == 0
    assert capsys.readouterr().err == ""
