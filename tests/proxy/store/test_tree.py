"""Which call each call goes on with, whatever an agent does with its conversations."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.records import NOW, call

from slipstream_proxy.store.conversation.fingerprint import PIECE_CHARS, TokenEnd, TokenPrint, digest
from slipstream_proxy.store.conversation.tree import (
    Answered,
    Asked,
    ConversationTree,
    issued_ids,
    returned_ids,
    words_of,
)

_numbers = itertools.count()


class Agent:
    """Makes calls and knows the tree that they form. ``tokens``: the engine gives ids; ``rewrites``: the client writes replies in its own way."""

    def __init__(self, seed: int, *, tokens: bool, rewrites: bool, tools: bool) -> None:
        self.random = random.Random(seed)
        self.tokens, self.rewrites, self.tools = tokens, rewrites, tools
        self.name = f"run{next(_numbers)}"
        self.calls = []
        self.truth: dict[str, str | None] = {}
        self.tips: list[tuple[list, list, str | None]] = []
        """Of each conversation: messages, tokens, the call that it goes on with."""
        self.words = itertools.count(10)

    def _word(self) -> int:
        return next(self.words)

    def send(self, messages, ids, extends, *, outcome="ok"):
        word = self._word()
        reply = {"role": "assistant", "content": f"reply {word}"}
        tool = self.tools and self.random.random() < 0.5
        if tool:
            reply["tool_calls"] = [  # type: ignore[assignment]
                {"id": f"call-{word}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ]
        sampled = [word] * self.random.choice([3, 70])
        made = call(
            self.name, at=NOW + len(self.calls), messages=messages, prompt=ids if self.tokens else [],
            choices=[(reply, sampled if self.tokens else [], [-0.5] * len(sampled) if self.tokens else [])], outcome=outcome,
        )  # fmt: skip
        self.calls.append(made)
        self.truth[made.head.id] = extends
        if outcome != "ok":
            return
        shown = {**reply, "content": reply["content"].upper()} if self.rewrites else reply
        end = self._word()
        after = (
            {"role": "tool", "tool_call_id": f"call-{word}", "content": f"result {end}"}
            if tool
            else {"role": "user", "content": f"user {end}"}
        )
        # a client that writes the reply in its own way changes its tokens too
        said = [9 if self.rewrites else word, *sampled[1:]]
        self.tips.append(([*messages, shown, after], [*ids, *said, end, end], made.head.id))

    def begin(self):
        """A run's first call, or a sub-agent's: the same system prompt, another task."""
        word = self._word()
        self.send(
            [{"role": "system", "content": "be good"}, {"role": "user", "content": f"task {word}"}],
            [1, 2, 3, *[word] * 70],
            None,
        )

    def step(self):
        kind = self.random.choice(["on", "on", "on", "branch", "begin", "fail", "compact", "retry"])
        if not self.tips or kind == "begin":
            return self.begin()
        messages, ids, extends = self.random.choice(self.tips)
        if kind == "on":
            messages, ids, extends = self.tips[-1]
        if kind == "branch":  # the same beginning, another question
            word = self._word()
            messages, ids = [*messages, {"role": "user", "content": f"other {word}"}], [*ids, word]
        if kind == "compact":
            word = self._word()
            messages = [messages[0], {"role": "user", "content": f"summary {word}"}]
            ids, extends = [1, 2, 3, *[word] * 80], None
        if kind == "retry":
            self.send(messages, ids, extends, outcome="aborted")
        return self.send(messages, ids, extends, outcome="error" if kind == "fail" else "ok")


MODES = [
    {"tokens": True, "rewrites": False, "tools": False},
    {"tokens": False, "rewrites": False, "tools": False},
    {"tokens": False, "rewrites": True, "tools": False},
    {"tokens": True, "rewrites": True, "tools": True},
]


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), size=st.integers(1, 14), forgets=st.booleans())
def test_the_tree_is_the_one_that_the_agent_made(store, mode, seed, size, forgets):
    agent = Agent(seed, **mode)
    for _ in range(size):
        agent.step()
    for one in agent.calls:
        store.ingest([one], {})
        if forgets:
            store.calls.known.clear()  # as after a restart
    found = {c.id: c.extends for c in store.episodes.get("-", agent.name).call_list}
    assert found == agent.truth


def test_samples_of_one_prompt_are_each_gone_on_with(store):
    same = [({"role": "assistant", "content": "a"}, [7], [-0.5])]
    first, second = (call("e", choices=same, at=NOW + i) for i in range(2))
    said = [*first.parsed.messages, same[0][0], {"role": "user", "content": "b"}]
    thirds = [call("e", messages=said, prompt=[1, 2, 3, 7, 8], at=NOW + 2 + i) for i in range(2)]
    store.ingest([first, second, *thirds], {})
    found = [c.extends for c in store.episodes.get("-", "e").call_list]
    assert found == [None, None, first.head.id, second.head.id]


@pytest.mark.parametrize("extended", [False, True])
def test_a_call_costs_the_same_however_many_there_are(extended, monkeypatch):
    """Ten thousand samples of one prompt: of a run that has one id for ever, or that asks the same again and again."""
    tree = ConversationTree()
    for n in range(10_000):
        end = TokenPrint.of(np.array([1, 2, 3, 5 if extended else 100 + n])).whole()
        tree.add(Answered(f"c{n}", b"p", [], [], [end], []))
        if extended:
            tree.mark(f"c{n}")
    looks = []
    at = TokenEnd.at
    monkeypatch.setattr(TokenEnd, "at", lambda *args: looks.append(1) or at(*args))
    ids = np.array([1, 2, 3, 5 if extended else 9000, 4, 4])
    asked = Asked([b"x"], [], ids, TokenPrint.of(ids).blocks, [])
    found = [tree.extends(asked) for _ in range(3)]
    assert found == ["c9999" if extended else "c8900"] * 3
    assert len(looks) == 3 and len(tree._tokens[at(asked.blocks[0], ids, 4)]) == 1


def test_any_choice_may_be_gone_on_with(store):
    two = [({"role": "assistant", "content": c}, [n], [-0.5]) for c, n in (("a", 7), ("b", 8))]
    first = call("e", choices=two)
    second = call("e", messages=[*first.parsed.messages, two[1][0], "more"], prompt=[1, 2, 3, 8, 9], at=NOW + 1)
    store.ingest([first, second], {})
    assert store.episodes.get("-", "e").call_list[1].extends == first.head.id


def test_a_response_goes_on_with_the_one_that_it_names(store):
    first, other, second = (call("e", messages=[str(i)], prompt=[i], at=NOW + i) for i in range(3))
    first.response_id, other.response_id, second.previous_id = "resp_1", "resp_2", "resp_1"
    store.ingest([first, other], {})
    store.calls.known.clear()
    store.ingest([second], {})
    assert [c.extends for c in store.episodes.get("-", "e").call_list] == [None, None, first.head.id]


def test_an_id_that_two_calls_were_given_says_nothing(store):
    def asks(text, at):
        reply = {"role": "assistant", "tool_calls": [{"id": "call_0"}]}
        return call("e", messages=[text], prompt=[], choices=[(reply, [], [])], at=NOW + at)

    result = call("e", messages=["c", {"role": "tool", "tool_call_id": "call_0"}], prompt=[], at=NOW + 3)
    store.ingest([asks("a", 1), asks("b", 2), result], {})
    assert store.episodes.get("-", "e").call_list[2].extends is None


def test_ids_in_every_format():
    assert issued_ids({"role": "assistant", "tool_calls": [{"id": "a"}, {"id": "b"}]}) == ["a", "b"]
    assert issued_ids({"content": [{"type": "text"}, {"type": "tool_use", "id": "c"}]}) == ["c"]
    assert issued_ids([{"type": "reasoning"}, {"type": "function_call", "id": "fc_1", "call_id": "d"}]) == ["d"]
    assert issued_ids(None) == issued_ids("x") == issued_ids({"tool_calls": "x", "content": "y"}) == []
    assert returned_ids(
        [{"role": "tool", "tool_call_id": "old"}, {"role": "assistant"}, {"role": "tool", "tool_call_id": "a"}]
    ) == ["a"]
    assert returned_ids([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]}]) == ["c"]
    assert returned_ids(
        [{"type": "function_call", "call_id": "d"}, {"type": "function_call_output", "call_id": "d"}]
    ) == ["d"]


@pytest.mark.parametrize("filler", ["a", "\u00df ", "\u1e9e\u2003", "\u0130\u03a3 \t", "\U0001f600 x"])
def test_a_long_text_has_the_words_that_it_has_at_once(filler):
    """Spaces, sharp s and signs that fold to two lie across the pieces in which it is read."""
    for shift in range(3):
        text = "." * shift + filler * (2 * PIECE_CHARS // len(filler))
        whole = digest("".join(text.split()).casefold())
        assert words_of({"role": "assistant", "content": text}) == whole
