from __future__ import annotations

import argparse

import pytest

from slipstream.cli import main
from slipstream.cli.start.proxy import add, own_flags
from slipstream.config import load_config


def test_options_stand_for_settings() -> None:
    parser = argparse.ArgumentParser()
    add(parser)
    args = parser.parse_args(
        ["--engine", "http://a:1/v1", "--engine", "http://b:2/", "--name", "inbox", "--host", "::1", "--port", "0"]
    )
    config = load_config(env={}, flags=own_flags(args))
    assert config.engine.urls == ["http://a:1", "http://b:2"]
    assert (config.model_name, config.proxy.host, config.proxy.port) == ("inbox", "::1", 0)
    assert own_flags(parser.parse_args([])) == []


def test_open_to_all_needs_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["proxy", "--host", "0.0.0.0", "--port", "0", "--engine", "http://127.0.0.1:1"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("slipstream proxy: ")
    assert "slipstream keys add" in err
