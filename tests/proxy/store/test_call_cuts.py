"""A call is cut where an earlier one ends (that every history comes back is ``test_call_list``'s)."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_proxy.store.conversation.fingerprint import Known, Prompt, TokenPrint, chain, cut, digest
from slipstream_proxy.store.tables.rows import dump, load

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec=None)), inner, max_size=3),
    max_leaves=5,
)


def prompt(texts, ids, tools="[]"):
    ids = np.asarray(ids, np.int32)
    blocks = TokenPrint.of(ids).blocks
    return Prompt(texts, chain([digest(t) for t in texts]), ids, blocks, tools, digest(tools))


def known(name, texts, ids, tools="[]"):
    return Known(name, chain([digest(t) for t in texts]), TokenPrint.of(np.asarray(ids, np.int32)), digest(tools))


def test_a_conversation_costs_what_is_new():
    made = cut(prompt(["a", "b", "c"], [1, 2, 3, 4]), [known("1", ["a", "b"], [1, 2, 3])])
    assert (made.base, made.keep_messages, made.keep_tokens) == ("1", 2, 3)
    assert (made.messages, made.ids.tolist(), made.tools) == (["c"], [4], None)


def test_the_longest_match_is_the_base_and_the_later_of_equals():
    a, b = known("a", ["x"], []), known("b", ["x", "y"], [])
    assert cut(prompt(["x", "y"], []), [a, b, a]).base == "b"
    assert cut(prompt(["x"], []), [a, b]).base == "b"
    assert cut(prompt(["z"], []), [a, b]).base is None


def test_tokens_alone_may_match():
    made = cut(prompt(["b"], [*range(200), 9], "[1]"), [known("1", ["a"], [*range(200), 3])])
    assert (made.base, made.keep_messages, made.keep_tokens, made.tools) == ("1", 0, 192, "[1]"), "to a block"


@settings(max_examples=200, deadline=None, derandomize=True)
@given(JSON)
def test_json_comes_back_as_it_was(value):
    text = dump(value)
    assert dump(load(text)) == text
    assert repr(load(text)) == repr(value)
