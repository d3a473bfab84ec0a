"""The command itself: help without heavy imports, exit codes, one clear line."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import free_port, slipstream
from tests.support.server import Server

from slipstream.cli import COMMAND_GROUPS, OLD_NAMES, all_commands, build_parser, main, renamed

HEAVY = ("torch", "litellm", "duckdb", "transformers", "trl", "pyarrow", "aiohttp", "matplotlib", "vllm")


def run(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLIPSTREAM_")}
    return subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_help_and_import_load_nothing_heavy(tmp_path: Path) -> None:
    script = f"""
import sys
import slipstream
from slipstream.cli import all_commands, build_parser, main
for name in all_commands():
    try:
        main([name, "--help"])
    except SystemExit as e:
        assert e.code == 0, name
try:
    main(["--help"])
except SystemExit as e:
    assert e.code == 0
loaded = [m for m in {HEAVY} if m in sys.modules]
assert not loaded, loaded
"""
    done = run(sys.executable, "-c", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(f"slipstream {name}" in done.stdout for name in all_commands())


def test_the_installed_command(tmp_path: Path) -> None:
    done = run(*slipstream("--version"), cwd=tmp_path)
    assert done.returncode == 0
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", done.stdout)


def refused(tmp_path: Path, *args: str) -> str:
    """The one line with which a command is refused, exit code 2."""
    done = run(*slipstream(*args), cwd=tmp_path)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.strip()


@pytest.mark.parametrize("command", ["up", "proxy", "trainer"])
def test_a_typo_in_the_file(tmp_path: Path, command: str) -> None:
    (tmp_path / "slipstream.toml").write_text("[proxy]\nprot = 1\n")
    line = refused(tmp_path, command)
    assert line == f"slipstream {command}: slipstream.toml: unknown setting proxy.prot; did you mean proxy.port?"


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        for command in ("up", "proxy"):
            line = refused(tmp_path, command, "--engine", f"http://127.0.0.1:{free_port()}", "--port", str(port))
            assert line.startswith(f"slipstream {command}: ")
            assert f"127.0.0.1:{port}" in line
            assert "use" in line


def test_no_such_model(tmp_path: Path) -> None:
    line = refused(tmp_path, "up", "--model", "./none", "--port", "0")
    assert line == "slipstream up: --model ./none: no such folder; give a folder or a hub name like Qwen/Qwen3-4B"
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in refused(tmp_path, "up", "--model", "empty", "--port", "0")
    assert "no model" in refused(tmp_path, "trainer")


def test_nothing_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "COMMAND" in capsys.readouterr().out
    for wrong in (["nothing"], ["status", "--nothing"]):
        with pytest.raises(SystemExit) as e:
            main(wrong)
        assert e.value.code == 2


def test_help_names_every_command_in_its_group_within_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = build_parser().format_help()
    assert max(map(len, text.splitlines())) <= 80
    titles = list(COMMAND_GROUPS.values())
    assert [line for line in text.splitlines() if line in titles] == titles
    for (group, title), following in zip(COMMAND_GROUPS.items(), [*titles[1:], "`slipstream COMMAND"], strict=True):
        part = text.split(f"\n{title}\n")[1].split(f"\n{following}")[0]
        told = re.findall(r"(?m)^  (\S+) ", part)
        assert told == [name for name, command in all_commands().items() if command.group == group] and told
    assert sum(text.count(f"\n  {name} ") for name in all_commands()) == len(all_commands())


@pytest.mark.parametrize("old", OLD_NAMES)
def test_an_old_name_still_works_and_says_the_new_one(old: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    new = OLD_NAMES[old]
    given = [old[0], "--json", "--url", "rollback", *old[1:], "v"]
    assert renamed(given) == [new[0], "--json", "--url", "rollback", *new[1:], "v"] or old == ("watch",)
    assert f"slipstream {' '.join(old)} is now `slipstream {' '.join(new)}`" in capsys.readouterr().err
    assert renamed(["adapters", "promote", "rollback"]) == ["adapters", "promote", "rollback"]
    assert capsys.readouterr().err == ""


def test_watch_is_status_that_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert renamed(["watch", "--url", "http://h"]) == ["status", "--follow", "--url", "http://h"]
    assert main(["status", "--follow", "--json"]) == 2
    assert "--follow prints text only" in capsys.readouterr().err


def test_what_the_proxy_refuses_is_one_line_and_exit_code_1(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--url", server.url]) == 1
    assert capsys.readouterr().err == "slipstream status: no GET /status here (look again)\n"


def test_nobody_there_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert main(["status", "--url", url]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"slipstream status: {url} does not answer: ")
    assert err.endswith("(is the proxy running, and is its URL right?)\n")
    assert err.count("\n") == 1


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    done = run("/bin/sh", "-c", f"{sys.executable} -m slipstream.cli config | head -n 1", cwd=tmp_path)
    assert done.stdout.startswith("# ")
    assert done.stderr == ""
