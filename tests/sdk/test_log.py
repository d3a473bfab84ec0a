from __future__ import annotations

import json
import logging

import pytest

from slipstream.errors import ConfigError
from slipstream.log import setup_logging


def test_a_line_for_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging()
    logging.getLogger("part").info("two\nlines", extra={"episode": "e1"})
    logging.getLogger("part").debug("not this")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.split(" ", 1)[1] == "info    two\n    lines episode=e1\n"


def test_a_line_for_a_machine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_LOG_FORMAT", "json")
    monkeypatch.setenv("SLIPSTREAM_LOG_LEVEL", "debug")
    setup_logging()
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("part").exception("it %s", "failed", extra={"path": {1}})
    logging.getLogger("part").debug("small")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (first["level"], first["part"], first["message"], first["path"]) == ("error", "part", "it failed", "{1}")
    assert "ValueError: broken" in first["error"]
    assert isinstance(first["at"], float)
    assert (second["level"], second["message"]) == ("debug", "small")


def test_an_error_is_told_with_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("warning")
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger().warning("oh", exc_info=True)
    assert "ValueError: broken" in capsys.readouterr().err


def test_noisy_libraries_are_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("debug")
    logging.getLogger("httpx").info("HTTP Request: GET …")
    assert capsys.readouterr().err == ""


def test_an_unknown_level_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_LOG_LEVEL", "chatty")
    with pytest.raises(ConfigError, match="SLIPSTREAM_LOG_LEVEL=chatty: there are debug, info"):
        setup_logging()
