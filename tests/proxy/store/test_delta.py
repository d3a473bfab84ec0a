"""What is put together again equals what came, whatever the client did to its history."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream_proxy.store import delta
from slipstream_proxy.store.codec import dump, load
from slipstream_proxy.store.delta import Known, KnownCalls, Whole, common, common_ids, cut, digest, join

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec=None)), inner, max_size=3),
    max_leaves=5,
)
MESSAGES = st.lists(
    st.sampled_from(
        ["a", "b", "ccc", "é\ud800", {"role": "user", "content": 1.0}, {"content": 1, "role": "user"}, 1, 1.0, True]
    ),
    max_size=6,
)
IDS = st.lists(st.integers(0, 3), max_size=12)


@st.composite
def histories(draw):
    """Calls of an episode: most go on from an earlier one, edited, cut, re-ordered or replaced by a summary."""
    calls = []
    for _ in range(draw(st.integers(1, 12))):
        if calls and draw(st.integers(0, 9)):
            messages, ids, tools, reply, sampled = draw(st.sampled_from(calls))
            messages, ids = [*messages, reply], [*ids, *sampled]
            match draw(st.sampled_from(["extend", "edit", "cut", "turn", "compact", "same"])):
                case "extend":
                    messages, ids = messages + draw(MESSAGES), ids + draw(IDS)
                case "edit":
                    at, at_id = draw(st.integers(0, len(messages) - 1)), draw(st.integers(0, len(ids)))
                    messages, ids = [*messages[:at], "edited", *messages[at + 1 :]], [*ids[:at_id], 9, *ids[at_id:]]
                case "cut":
                    messages, ids = (
                        messages[draw(st.integers(0, len(messages))) :],
                        ids[draw(st.integers(0, len(ids))) :],
                    )
                case "turn":
                    messages, ids = messages[::-1], ids[::-1]
                case "compact":
                    messages, ids = [*messages[:1], "summary", *messages[-1:]], [*ids[:2], 8, *ids[-2:]]
            if not draw(st.integers(0, 4)):
                tools = draw(MESSAGES)
        else:
            messages, ids, tools = draw(MESSAGES), draw(IDS), draw(MESSAGES)
        calls.append((messages, ids, tools, draw(st.sampled_from(["yes", "no", {"role": "assistant"}])), draw(IDS)))
    return calls


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(histories())
def test_every_history_comes_back(calls):
    parents, stored, whole = KnownCalls(), {}, {}
    for number, (messages, ids, tools, reply, sampled) in enumerate(calls):
        name, array = str(number), np.asarray(ids, np.int32)
        texts = [dump(m) for m in messages]
        digests = [digest(t) for t in texts]
        made = cut(texts, digests, array, dump(tools), parents.get("day", "e") or [])
        stored[name] = made
        sequence = np.concatenate((array, np.asarray(sampled, np.int32)))
        parents.add("day", "e", Known(name, [*digests, digest(dump(reply))], sequence, dump(tools)))
        back = join(
            whole.get(made.base), made.keep_messages, made.keep_tokens, [load(t) for t in made.messages], made.ids,
            None if made.tools is None else load(made.tools),
        )  # fmt: skip
        assert [dump(m) for m in back.messages] == texts
        assert back.ids.tolist() == ids
        assert dump(back.tools) == dump(tools)
        whole[name] = Whole(back.messages, back.ids, back.tools, [*back.messages, reply], sequence)


def test_a_conversation_costs_what_is_new():
    known = Known("1", [digest("a"), digest("b")], np.asarray([1, 2, 3], np.int32), "[]")
    made = cut(["a", "b", "c"], [digest(x) for x in "abc"], np.asarray([1, 2, 3, 4], np.int32), "[]", [known])
    assert (made.base, made.keep_messages, made.keep_tokens, made.messages, made.ids.tolist(), made.tools) == (
        "1",
        2,
        3,
        ["c"],
        [4],
        None,
    )


def test_the_longest_match_is_the_parent_and_the_later_of_equals():
    a = Known("a", [digest("x")], delta.NO_IDS, "[]")
    b = Known("b", [digest("x"), digest("y")], delta.NO_IDS, "[]")
    assert cut(["x", "y"], [digest("x"), digest("y")], delta.NO_IDS, "[]", [a, b, a]).base == "b"
    assert cut(["x"], [digest("x")], delta.NO_IDS, "[]", [a, b]).base == "b"
    assert cut(["z"], [digest("z")], delta.NO_IDS, "[]", [a, b]).base is None


def test_tokens_alone_may_match():
    known = Known("1", [digest("a")], np.asarray([1, 2, 3], np.int32), "[]")
    made = cut(["b"], [digest("b")], np.asarray([1, 2, 9], np.int32), "[1]", [known])
    assert (made.base, made.keep_messages, made.keep_tokens, made.tools) == ("1", 0, 2, "[1]")


def test_prefixes():
    assert common([b"1", b"2"], [b"1", b"3", b"4"]) == 1
    assert common([], [b"1"]) == 0
    assert common_ids(np.asarray([1, 2]), np.asarray([1, 2, 3])) == 2
    assert common_ids(np.asarray([5]), np.asarray([1])) == 0


def test_a_parent_that_is_gone_leaves_what_the_call_has():
    assert join(None, 3, 4, ["new"], np.asarray([7]), None).messages == ["new"]


def test_memory_is_bounded():
    parents = KnownCalls(memory=10_000)
    for i in range(100):
        parents.add("d", f"e{i}", Known("c", [], np.zeros(250, np.int32), "[]"))
    assert parents.get("d", "e99") is not None
    assert parents.get("d", "e0") is None
    assert parents._size <= 10_000
    for i in range(20):
        parents.add("d", "e99", Known(str(i), [], delta.NO_IDS, "[]"))
    assert [k.id for k in parents.get("d", "e99")] == [str(i) for i in range(12, 20)]
    parents.put("d", "e99", [])
    parents.clear()
    assert parents._size == 0


@settings(max_examples=200, deadline=None, derandomize=True)
@given(JSON)
def test_json_comes_back_as_it_was(value):
    text = dump(value)
    assert dump(load(text)) == text
    assert repr(load(text)) == repr(value)
