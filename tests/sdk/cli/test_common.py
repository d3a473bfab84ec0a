from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from slipstream.cli.common import add_client, child_env, connect, hoist, number, read_config, table, when
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
    assert (when(None), len(when(1e9))) == ("-", 19)


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
