from __future__ import annotations

import json
import logging
import threading

import pytest

from slipstream.errors import ConfigError
from slipstream.shared.log import MAX_LINES_PER_CAUSE, brief, describe, setup_logging


def test_a_line_for_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging()
    logging.getLogger("part").info("two\nlines", extra={"episode": "e1"})
    logging.getLogger("part").debug("not this")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.split(" ", 1)[1] == "info    two\n    lines episode=e1\n"


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("the judge's answer could not be used, after one repair: 'secret' is not", "the judge's answer could not be used, after one repair"),
        ("no score for 'a secret run'", "no score for"),
        ('it said "it\'s me"', "it said"),
        ("{secret}", ""),
        ("two\nlines", "two"),
    ],
)  # fmt: skip
def test_a_reason_is_short_and_quotes_nothing(why: str, said: str) -> None:
    assert brief(why) == said


def test_what_a_stranger_wrote_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging()
    text = "a\x1b[31m\r\x00\x9b1m\u2028\u202e\ud800é✓\tb"
    try:
        raise OSError(text)
    except OSError:
        logging.getLogger("part").exception("it is %s", text, extra={"tag": text})
    err = capsys.readouterr().err
    assert set(err) & set("\x1b\r\x00\x9b\u2028\u202e\ud800") == set()
    assert "it is a\\x1b[31m\\r\\x00\\x9b1m\\u2028\\u202e\\ud800é✓\tb" in err


def test_a_line_for_a_machine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_LOG_FORMAT", "json")
    monkeypatch.setenv("SLIPSTREAM_LOG_LEVEL", "debug")
    setup_logging()
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("slipstream.part").exception("it %s", "failed", extra={"path": {1}})
    logging.getLogger("slipstream.part").debug("small")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (first["level"], first["part"], first["message"], first["path"]) == (
        "error",
        "slipstream.part",
        "it failed",
        "{1}",
    )
    assert first["error"].startswith("ValueError\n")
    assert "broken" not in first["error"], "an exception may quote what it could not read"
    assert "test_log.py" in first["error"]
    assert isinstance(first["at"], float)
    assert (second["level"], second["message"]) == ("debug", "small")


def test_an_error_is_told_with_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("warning")
    try:
        raise OSError(28, "No space left on device")
    except OSError:
        logging.getLogger().warning("oh", exc_info=True)
    assert "OSError: [Errno 28] No space left on device" in capsys.readouterr().err


def test_noisy_libraries_are_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("debug")
    logging.getLogger("httpx").info("HTTP Request: GET …")
    assert capsys.readouterr().err == ""


def test_an_unknown_level_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_LOG_LEVEL", "chatty")
    with pytest.raises(ConfigError, match="SLIPSTREAM_LOG_LEVEL=chatty: there are debug, info"):
        setup_logging()


def test_an_unknown_form_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_LOG_FORMAT", "xml")
    with pytest.raises(ConfigError, match="SLIPSTREAM_LOG_FORMAT=xml: there are console and json"):
        setup_logging()


def test_debug_is_for_our_own_packages(capsys: pytest.CaptureFixture[str]) -> None:
    """An HTTP client's debug lines hold whole requests."""
    setup_logging("debug")
    logging.getLogger("openai._base_client").debug("Request options: a prompt")
    logging.getLogger("some.library").debug("a prompt")
    logging.getLogger("slipstream_judge.model.llm").debug("ours")
    err = capsys.readouterr().err
    assert "ours" in err
    assert "a prompt" not in err


def test_a_field_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging()
    logging.getLogger("part").info("call", extra={"model": "x\n12:00:00 error forged", "key": "plain"})
    assert capsys.readouterr().err.endswith('call model="x\\n12:00:00 error forged" key=plain\n')


def test_what_an_exception_says() -> None:
    try:
        try:
            raise KeyError("my secret")
        except KeyError as e:
            raise ConfigError("proxy.port: not a number") from e
    except ConfigError as e:
        text = describe(e)
    assert "my secret" not in text
    assert text.startswith("KeyError\n")
    assert "while handling it: ConfigError: proxy.port: not a number" in text
    assert describe(None) == ""


def test_the_count_of_a_flood_is_one_line_whatever_the_last_one_names(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream.shared.log.LINE_WINDOW_S", 0.05)
    setup_logging()
    for _ in range(MAX_LINES_PER_CAUSE + 1):
        logging.getLogger("part").warning("a model %s", "x\n12:00:00 error   forged")
    capsys.readouterr()
    for timer in [t for t in threading.enumerate() if isinstance(t, threading.Timer) and t.interval < 1]:
        timer.join()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("1 more lines of this kind in 0.05 s; the last: a model x\\n12:00:00 error   forged")


def test_a_flood_of_one_cause_is_counted_and_not_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream.shared.log.LINE_WINDOW_S", 0.2)
    setup_logging()
    log = logging.getLogger("part")
    for n in range(MAX_LINES_PER_CAUSE + 7):
        log.warning("call %d: bad", n)
        log.info("a state")
    log.warning("another cause")
    err = capsys.readouterr().err
    assert (err.count(": bad"), err.count("a state"), err.count("another")) == (
        MAX_LINES_PER_CAUSE,
        MAX_LINES_PER_CAUSE + 7,
        1,
    )
    for timer in [t for t in threading.enumerate() if isinstance(t, threading.Timer) and t.interval < 1]:
        timer.join()
    assert (
        f"7 more lines of this kind in 0.2 s; the last: call {MAX_LINES_PER_CAUSE + 6}: bad" in capsys.readouterr().err
    )
    log.warning("another cause")
    assert "another cause" in capsys.readouterr().err
