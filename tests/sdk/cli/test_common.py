from __future__ import annotations

import argparse
import io
import json
import time
from pathlib import Path

import pytest

from slipstream.cli.common import (
    TextColour,
    add_client,
    ago,
    child_env,
    connect,
    fits,
    hoist,
    number,
    read_config,
    records,
    say,
    table,
    text_width,
)
from slipstream.config import Config, load_config
from slipstream.errors import ConfigError, StartError
from slipstream.shared.functions import need


def parse(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_client(parser)
    return parser.parse_args(argv)


def test_the_file_that_lies_here_is_read() -> None:
    assert read_config(parse()) == Config()
    Path("slipstream.toml").write_text("data_dir = 'here'")
    assert read_config(parse()).data_dir == "here"
    Path("other.toml").write_text("data_dir = 'other'")
    assert read_config(parse("--config", "other.toml")).data_dir == "other"
    assert read_config(parse("--set", "data_dir=flag"), ["data_dir=own"]).data_dir == "flag"
    assert read_config(parse(), ["data_dir=own"]).data_dir == "own"


def test_a_child_sees_the_parents_configuration_and_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(env={}, flags=["proxy.port=1", "reward.weights.style=0.5"])
    for name, value in child_env(config).items():
        monkeypatch.setenv(name, value)
    Path("slipstream.toml").write_text("data_dir = 'here'")
    assert read_config(parse()) == config
    assert read_config(parse("--set", "proxy.port=2")).proxy.port == 2


def test_a_handed_configuration_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_CONFIG_JSON", "{")
    with pytest.raises(ConfigError, match="SLIPSTREAM_CONFIG_JSON: not JSON"):
        read_config(parse())
    monkeypatch.setenv("SLIPSTREAM_CONFIG_JSON", json.dumps({"proxy": {"prot": 1}}))
    with pytest.raises(ConfigError, match=r"did you mean proxy\.port"):
        read_config(parse())


def test_the_client_by_flags() -> None:
    with connect(parse("--url", "http://h:1/v1", "--key", "k")) as client:
        assert client.url == "http://h:1"
        assert client.http.headers["authorization"] == "Bearer k"


def test_an_extra_that_is_missing_is_named() -> None:
    with pytest.raises(StartError, match=r"^slipstream_none is not installed: pip install 'slipstream\[judge\]'$"):
        need("slipstream_none.worker", "judge")
    assert need("json", "judge") is json


def test_tables_align() -> None:
    assert (
        table(("a", "long name"), [("x", 1), ("wide cell", "é")]) == "a          long name\nx          1\nwide cell  é"
    )
    assert table(("a", "b"), []) == "a  b"


def test_figures() -> None:
    assert (number(None), number(0.5), number(0.5, 1)) == ("-", "0.500", "0.5")
    assert ago(None) == "never" and ago(time.time() - 60) == "1 min ago"


def test_a_terminal_is_wide_enough_for_every_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = [("a" * 30, "b" * 30, 123), ("c", "日本語" * 9, 4)]
    text = table(("first", "second", "third"), rows, {"first": 10})
    assert max(map(text_width, text.splitlines())) == 40
    assert text.splitlines()[1].startswith("aaaaaaaaa…  ") and text.splitlines()[1].endswith("  123")
    assert fits(4) and not fits(5)
    assert (
        records(("x", "long"), [(1, "b" * 60), (2, "c")]) == f"x     1\nlong  {'b' * 16}…{'b' * 17}\n\nx     2\nlong  c"
    )


def test_a_sentence_breaks_between_words(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    say("  steps come later → make some room\nshort", look=TextColour.BAD)
    assert capsys.readouterr().out == "  steps come later →\n    make some room\nshort\n"
    monkeypatch.delenv("COLUMNS")
    say("a file gets each line whole, however long it is", look=TextColour.BAD)
    assert capsys.readouterr().out == "a file gets each line whole, however long it is\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_only_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TERM", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    said = Terminal()
    say("! it \x1b[2J stands", look=TextColour.BAD, file=said)
    assert said.getvalue() == "\x1b[1;31m! it \\x1b[2J stands\x1b[0m\n"
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as without:
            without.setenv(name, value)
            say("! it stands", look=TextColour.BAD, file=(plain := Terminal()))
        assert plain.getvalue() == "! it stands\n"


@pytest.mark.parametrize(
    ("argv", "hoisted"),
    [
        ("--config f status", "status --config f"),
        ("keys list --config=f --json", "keys --config=f --json list"),
        ("--json adapters --url u rollback v --set a.b=1", "adapters --json --url u --set a.b=1 rollback v"),
        ("sql q -- --json", "sql q -- --json"),
        ("--version", "--version"),
        ("--config", "--config"),
        ("", ""),
    ],
)
def test_shared_options_move_behind_the_command(argv: str, hoisted: str) -> None:
    assert hoist(argv.split()) == hoisted.split()
