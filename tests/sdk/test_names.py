"""Names from any text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slipstream.contract import PLAIN_ID_PATTERN, name_of


@given(st.text(st.characters(), max_size=300))
def test_any_text_has_a_name_that_is_an_id(text: str) -> None:
    name = name_of(text)
    assert PLAIN_ID_PATTERN.match(name)
    assert name_of(name) == name
    assert (name == text) == bool(PLAIN_ID_PATTERN.match(text))


@given(st.text(max_size=40), st.text(max_size=40))
def test_two_texts_have_two_names(a: str, b: str) -> None:
    assert (name_of(a) == name_of(b)) == (a == b)


def test_what_it_looks_like() -> None:
    assert name_of("Book a flight to Oslo") == "Book-a-flight-to-Oslo-4d8bb65b"


def test_what_a_path_reads_as_a_folder_is_no_id() -> None:
    assert name_of(".") == ".-" + name_of(".")[-8:] and name_of("..").startswith("..-")
    assert name_of("...") == "..." and name_of(".a") == ".a"
