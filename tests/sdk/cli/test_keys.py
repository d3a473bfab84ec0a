from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from slipstream.cli import main
from slipstream.shared.processes.proxy_file import announce_proxy


def keys(*args: str) -> int:
    return main(["keys", "--set", f"data_dir={Path.cwd()}/data", *args])


def test_add_list_revoke(capsys: pytest.CaptureFixture[str]) -> None:
    assert keys("add", "ci", "--scopes", "inference, admin", "--rate", "5", "--concurrency", "2") == 0
    secret, note = capsys.readouterr().out.splitlines()
    key_id = note.split()[1].rstrip(";")
    assert "only its hash is kept" in note
    file = Path("data/keys.json")
    assert secret not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert keys("list") == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["id", "name", "scopes", "limits", "age"]
    assert row.split()[:3] == [key_id, "ci", "inference,admin"]
    assert "  5 a second, 2 at once  " in row
    assert keys("list", "--json") == 0
    told = json.loads(capsys.readouterr().out)[0]
    assert (told["rate"], told["concurrency"]) == (5, 2)
    assert keys("revoke", key_id) == 0
    assert capsys.readouterr().out == f"revoked {key_id} (ci)\n"
    assert keys("revoke", key_id) == 1
    missing = f"slipstream keys: no key with id or name {key_id}: `slipstream keys list` shows them\n"
    assert capsys.readouterr().err == missing
    assert keys("list") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_tenant_that_is_named_empty_makes_no_key_of_the_operators(capsys: pytest.CaptureFixture[str]) -> None:
    for action in (("add", "x"), ("list",), ("revoke", "x")):
        assert keys("--tenant", "", *action) == 2
        assert "is no tenant's name" in capsys.readouterr().err
    assert keys("--tenant", "acme", "add", "x") == 0 and keys("add", "y") == 0
    capsys.readouterr()
    assert keys("--tenant", "acme", "list") == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[1:]] == ["x"]
    assert keys("--tenant", "acme", "revoke", "y") == 2
    assert "the key y is of no tenant, not of acme" in capsys.readouterr().err


def test_a_name_does_as_well_as_an_id(capsys: pytest.CaptureFixture[str]) -> None:
    assert keys("add", "ci") == 0
    first, note = capsys.readouterr().out.splitlines()
    assert keys("rotate", "ci", "--grace", "60") == 0
    said, where = capsys.readouterr()
    second, again = said.splitlines()
    assert (
        second != first and again.split()[1].rstrip(",") == note.split()[1].rstrip(";") and "for another 60 s" in where
    )
    assert keys("rotate", "ci", "--grace=-1") == 1
    assert "a number of seconds" in capsys.readouterr().err
    assert keys("list") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2, "it is one key"
    assert keys("add", "ci") == 0
    capsys.readouterr()
    assert keys("revoke", "ci") == 1
    assert "2 keys have the name ci: give an id of " in capsys.readouterr().err
    assert keys("revoke", note.split()[1].rstrip(";")) == 0 and keys("revoke", "ci") == 0


def test_a_key_for_another_proxy_than_the_folders_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLIPSTREAM_URL", raising=False)
    assert main(["keys", "add", "ci"]) == 0
    said = capsys.readouterr()
    assert "no proxy runs on" in said.err and said.out.startswith("sk-slip-")
    monkeypatch.setenv("SLIPSTREAM_URL", "http://10.0.0.9:8790")
    assert main(["keys", "add", "ci"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "no proxy runs on that folder" in err and "http://10.0.0.9:8790" in err and "--config" in err
    announce_proxy(Path("slipstream-data"), "http://127.0.0.1:8791")
    assert main(["keys", "add", "ci"]) == 2
    assert "the proxy of that folder is http://127.0.0.1:8791" in capsys.readouterr().err
    announce_proxy(Path("slipstream-data"), "http://127.0.0.1:8790")
    assert main(["keys", "add", "ci"]) == 0
    assert main(["keys", "--url", "http://127.0.0.1:1", "list"]) == 2


def test_an_unknown_scope(capsys: pytest.CaptureFixture[str]) -> None:
    assert keys("add", "ci", "--scopes", "inference,root") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert (
        err
        == "slipstream keys: no such scope: root; there are inference, reward, grade, judge, trainer, viewer, admin\n"
    )
    assert not Path("data/keys.json").exists()


def test_no_scope(capsys: pytest.CaptureFixture[str]) -> None:
    assert keys("add", "ci", "--scopes", "") == 1
    assert capsys.readouterr().err.startswith("slipstream keys: a key needs a scope")


def test_limits_that_mean_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        keys("add", "ci", "--rate", "nan")
    assert "--rate: 'nan' is no number" in capsys.readouterr().err
    for flags in (("--rate", "0"), ("--rate=-1",), ("--concurrency", "0")):
        assert keys("add", "ci", *flags) == 1
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("slipstream keys: a ")
    assert not Path("data/keys.json").exists()


def test_the_first_key_of_a_proxy_that_runs_without(capsys: pytest.CaptureFixture[str]) -> None:
    Path("data").mkdir()
    announce_proxy(Path("data"), "http://127.0.0.1:8123")
    assert keys("add", "ci") == 0
    said = capsys.readouterr().err
    assert "http://127.0.0.1:8123 asks everybody for one from now on" in said and "OPENAI_API_KEY" in said
    assert "next start" not in said
    assert keys("add", "ci") == 0
    assert capsys.readouterr().err == ""


def test_an_action_is_needed() -> None:
    with pytest.raises(SystemExit) as e:
        keys()
    assert e.value.code == 2
