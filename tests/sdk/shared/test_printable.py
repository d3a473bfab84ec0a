"""Nothing that a stranger wrote steers a terminal, turns round what stands beside it, or looks like another line."""

from __future__ import annotations

import io
import json
import logging
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.server import Server

from slipstream.cli import main
from slipstream.shared.log import setup_logging
from slipstream.shared.printable import PrintableStream, own, printable, printing

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
NASTY = st.text(
    st.one_of(
        st.sampled_from("".join(map(chr, [*range(0x20), *range(0x7F, 0xA0)])) + BIDI + "\u2028\u2029\ud800 ab"),
        st.characters(),
    )
)


def harmless(text: str) -> bool:
    """No control character but tab and line feed, no line end but that, nothing that turns the direction."""
    kinds = {unicodedata.category(c) for c in text if c not in "\t\n"}
    return not kinds & {"Cc", "Cs", "Zl", "Zp"} and not set(text) & set(BIDI)


@given(NASTY)
def test_any_text_is_harmless_and_one_line(text: str) -> None:
    assert harmless(printable(text)) and len(printable(text).splitlines()) <= 1
    assert harmless(printable(text, lines=True))
    assert printable(text, lines=True).count("\n") == text.count("\n")
    printable(text).encode()


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cf", "Zl", "Zp"])))
def test_any_other_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


@given(NASTY, st.sampled_from(["it is %s", "it is %r", "it is %(x)s", "it is %10s."]))
def test_any_value_in_a_log_line_is_one_line(text: str, form: str) -> None:
    said = io.StringIO()
    setup_logging()
    handler = logging.getLogger().handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(said)
    logging.getLogger("part").info(form, {"x": text} if "(x)" in form else text, extra={"model": text})
    assert harmless(said.getvalue()) and said.getvalue().count("\n") == 1


def test_signs_that_are_never_seen_are_shown() -> None:
    """Else one name looks like another, and a text may say to a model what no person reads."""
    unseen = "\u180e\u200b\u2060\u2064\ufeff\ufff9\U000e0041"
    assert printable(f"live{unseen}") == r"live\u180e\u200b\u2060\u2064\ufeff\ufff9\U000e0041"
    said = io.StringIO()
    PrintableStream(said).write(json.dumps({"a": unseen}, ensure_ascii=False))
    assert unseen not in said.getvalue() and json.loads(said.getvalue()) == {"a": unseen}


def test_a_reason_forges_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging()
    reason = "fine\n12:00:00 error   the store is gone"
    logging.getLogger("part").info("%s %s", "promote", f"reason={reason}")
    logging.getLogger("part").info("%d of %.1f", 3, 4.0)
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("promote reason=fine\\n12:00:00 error   the store is gone") and second.endswith("3 of 4.0")


def test_what_an_exception_says_forges_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging()
    try:
        raise OSError("fine\n12:00:00 error   the store is gone")
    except OSError:
        logging.getLogger("part").exception("it failed")
    first, *more = capsys.readouterr().err.splitlines()
    assert first.endswith("it failed") and more and all(line.startswith("    ") for line in more)


@given(NASTY)
def test_whatever_is_printed_is_harmless_and_json_stays_json(text: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    with printing(out, err):
        print(text)
        print(text, file=sys.stderr)
        print("\rdrawn again", end="", file=own(sys.stderr))
    assert harmless(out.getvalue()) and harmless(err.getvalue().removesuffix("\rdrawn again"))
    out = io.StringIO()
    with printing(out, err):
        print(json.dumps({"said": text}, ensure_ascii=False))
    assert harmless(out.getvalue()) and json.loads(out.getvalue()) == {"said": text}


EVIL = "a\x1b[2J\x9b31m\x7f\u202e\r\x07\u2028z"
WORDS = {"reason": EVIL, "name": "r", "value": 1.0, "source": EVIL, "at": 1.0}
RUN: dict[str, object] = {
    "id": "e1",
    "key": "-",
    "task": EVIL,
    "split": "train",
    "model": EVIL,
    "adapter": EVIL,
    "state": "done",
}
RUN |= {"started": 1.0, "calls": 0, "rewards": [WORDS], "call_list": []}
VERSION = {"name": "m@1", "model": "m", "version": 1, "state": "refused", "created": 1.0, "path": "m@1", "reason": EVIL}


@pytest.mark.parametrize("argv", [["episodes"], ["episodes", "e1"], ["adapters"], ["audit"], ["status"], ["sql", "q"]])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_commands_print_nothing_that_steers(
    server: Server, capsys: pytest.CaptureFixture[str], argv: list[str], form: list[str]
) -> None:
    server.on("GET", "/episodes", {"episodes": [RUN], "next": None})
    server.on("GET", "/episodes/e1", RUN)
    server.on("GET", "/adapters", {"adapters": [VERSION], "live": {EVIL: EVIL}})
    server.on("GET", "/audit", {"entries": [], "next": None})
    server.on("POST", "/sql", {"columns": [EVIL], "rows": [[EVIL]], "cut": False})
    code = main([*argv, "--url", server.url, *form])
    said = capsys.readouterr()
    assert harmless(said.out) and harmless(said.err)
    if code == 0 and form:
        json.loads(said.out)
