"""Every command × the shared options: ``--config`` before and after the verb, the file in the folder, ``--url``, ``--json``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support import free_port
from tests.support.answers import ADAPTER, EPISODE, fill
from tests.support.server import Server

from slipstream.cli import all_commands, main

CONVERSATION = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}
LOCAL = {
    "up": ["up"],
    "demo": ["demo"],
    "proxy": ["proxy"],
    "judge": ["judge"],
    "judge eval": ["judge", "eval", "x.jsonl"],
    "judge rerun": ["judge", "rerun"],
    "trainer": ["trainer"],
    "status --follow": ["status", "--follow"],
    "train": ["train"],
    "distill": ["distill"],
    "replay": ["replay", "cases.jsonl", "--against", "m2"],
    "keys add": ["keys", "add", "me"],
    "keys list": ["keys", "list"],
    "config": ["config"],
    "doctor": ["doctor"],
    "init": ["init", "--yes"],
    "backup": ["backup", "all.tar"],
    "connect": ["connect", "aider"],
}
ASKING = {
    "status": ["status"],
    "episodes": ["episodes"],
    "one episode": ["episodes", "e1"],
    "episodes --delete": ["episodes", "e1", "--delete"],
    "feedback": ["feedback", "e1", "shorter"],
    "cases list": ["cases", "list"],
    "cases show": ["cases", "show", "s1"],
    "cases add": ["cases", "add", "s1", "e1"],
    "cases sample": ["cases", "sample", "s1", "5", "--by", "kind"],
    "cases remove": ["cases", "remove", "s1", "e1"],
    "forget": ["forget", "e1"],
    "adapters": ["adapters"],
    "adapters list": ["adapters", "list"],
    "adapters promote": ["adapters", "promote", "inbox@1"],
    "adapters demote": ["adapters", "demote", "inbox@1", "--reason", "worse"],
    "adapters rollback": ["adapters", "rollback", "inbox@1", "--group", "tag.a=b", "--yes"],
    "adapters freeze": ["adapters", "freeze", "inbox@1"],
    "adapters unfreeze": ["adapters", "unfreeze", "inbox@1", "--dry-run"],
    "export": ["export", "--format", "sft"],
    "import": ["import", "log.jsonl"],
    "audit": ["audit"],
    "cost": ["cost", "--by", "task"],
    "tenants": ["tenants"],
    "pause": ["pause", "--reason", "new rewards"],
    "resume": ["resume"],
    "annotate": ["annotate", "new prompt"],
    "sql": ["sql", "select 1"],
}
JSON = [*ASKING, "keys add", "keys list", "config", "doctor", "backup"]
ALL = {**LOCAL, **ASKING}


@pytest.fixture(autouse=True)
def _files() -> None:
    Path("log.jsonl").write_text(json.dumps(CONVERSATION) + "\n")
    Path("x.jsonl").write_text("{}\n")


def test_no_command_is_left_out() -> None:
    assert {argv[0] for argv in ALL.values()} | {"completion"} == set(all_commands())


def orders(argv: list[str], *options: str) -> list[list[str]]:
    """Before the command, behind its name, and at the end."""
    return [[*options, *argv], [argv[0], *options, *argv[1:]], [*argv, *options]]


@pytest.mark.parametrize("name", [n for n in ALL if n != "init"])
def test_the_configuration_counts_wherever_it_stands(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("typo.toml").write_text("[proxy]\nprot = 1\n")
    typo = "typo.toml: unknown setting proxy.prot; did you mean proxy.port?"
    for argv in orders(ALL[name], "--config", "typo.toml"):
        assert main(argv) == 2, argv
        assert typo in capsys.readouterr().err, argv
    for argv in orders(ALL[name], "--set", "proxy.prot=1"):
        assert main(argv) == 2, argv
        assert "--set proxy.prot: unknown setting" in capsys.readouterr().err, argv
    if name != "demo":  # its settings are its own: a file counts when it is named
        Path("typo.toml").rename("slipstream.toml")
        assert main(ALL[name]) == 2
        assert "slipstream.toml: unknown setting proxy.prot" in capsys.readouterr().err


@pytest.mark.parametrize("name", ASKING)
def test_the_proxy_that_is_asked(server: Server, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill_all(server)
    argv = ASKING[name]
    Path("own.toml").write_text(f"[proxy]\nport = {server.url.rpartition(':')[2]}\n")
    for found in (*orders(argv, "--url", server.url), *orders(argv, "--config", "own.toml")):
        server.seen.clear()
        assert main(found) == 0, (found, capsys.readouterr().err)
        assert server.seen, found
    Path("own.toml").rename("slipstream.toml")
    server.seen.clear()
    assert main(argv) == 0
    assert server.seen


@pytest.mark.parametrize("name", JSON)
def test_json(server: Server, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill_all(server)
    url = ["--url", server.url] if name in ASKING or name in ("doctor", "backup") else []
    for argv in orders([*ALL[name], *url], "--json"):
        assert main(argv) in {0, 1}, argv
        out = capsys.readouterr().out
        [json.loads(line) for line in out.splitlines()] if name == "export" else json.loads(out)


def test_an_export_to_a_file_says_so_as_json(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    fill_all(server)
    assert main(["export", "--format", "sft", "--out", "o.jsonl", "--json", "--url", server.url]) == 0
    size = Path("o.jsonl").stat().st_size
    assert json.loads(capsys.readouterr().out) == {"file": "o.jsonl", "format": "sft", "bytes": size}


VERBS = ["adapters list", "adapters promote", "adapters push", "keys add", "keys revoke", "judge show", "judge eval"]


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_lists_what_it_takes(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*verb.split(), "--help"])
    said = capsys.readouterr().out
    shared = ["--config", "--set"]
    shared += [] if verb == "judge eval" else ["--json"]
    shared += [] if verb.startswith("keys") else ["--url", "--key"]
    assert all(option in said for option in shared)


def test_judge_show_takes_json_wherever_it_stands(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in orders(["judge", "show", "g1", "--url", server.url], "--json"):
        assert main(argv) == 1  # there is no such group
        assert "unrecognized" not in capsys.readouterr().err


@pytest.mark.parametrize("at", [0, 1, 2])
def test_completion_takes_a_configuration(at: int, capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.toml").write_text("")
    argv = ["completion", "bash"]
    assert main([*argv[:at], "--config", "c.toml", *argv[at:]]) == 0
    assert "slipstream" in capsys.readouterr().out


def fill_all(server: Server) -> None:
    fill(server)
    server.on("GET", "/export", '{"messages": []}\n')
    server.on("GET", "/backup", b"tar")
    server.on("POST", "/sql", {"columns": ["a"], "rows": [[1]]})
    server.on("GET", "/healthz", {})
    assert ADAPTER["name"] == "inbox@1" and EPISODE["id"] == "e1"


def test_the_proxy_of_the_data_folder(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `up` runs on is found without a flag, whatever its port; SLIPSTREAM_URL and flags count above it."""
    from slipstream.shared.processes.proxy_file import announce_proxy

    fill_all(server)
    Path("slipstream-data").mkdir()
    announce_proxy(Path("slipstream-data"), server.url)
    assert main(["status"]) == 0
    monkeypatch.setenv("SLIPSTREAM_URL", f"http://127.0.0.1:{free_port()}")
    assert main(["status"]) == 1
    assert main(["status", "--url", server.url]) == 0
    assert main(["status", "--set", "data_dir=slipstream-data"]) == 0


def test_since_takes_an_age(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    fill_all(server)
    for argv in (["episodes"], ["export"]):
        assert main([*argv, "--url", server.url, "--since", "2h", "--until", "2026-01-01"]) == 0
        query = server.seen[-1].query
        assert float(query["since"][0]) > 1.7e9 and float(query["until"][0]) == 1_767_225_600
        assert main([*argv, "--url", server.url, "--since", "yesterday"]) == 2
        assert "write an age" in capsys.readouterr().err


def test_what_a_command_does_not_take_is_refused() -> None:
    for argv in (["--json", "up"], ["--url", "http://h", "config"], ["completion", "x"]):
        with pytest.raises(SystemExit) as e:
            main(argv)
        assert e.value.code == 2
