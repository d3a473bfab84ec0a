"""JSON that an agent, a model or an engine nests without end counts as none, and stops nothing."""

from __future__ import annotations

import json

import pytest
from tests.support.records import call

from slipstream.shared.chat_template import for_template
from slipstream_proxy.dialects.responses import begun_input, decoded_input
from slipstream_proxy.store.read.recent_calls import error_text
from slipstream_proxy.store.store import Store
from slipstream_proxy.store.tables.rows import TOO_DEEP_TEXT, dump
from slipstream_replay.comparison import calls_of

DEEP = "[" * 4000
SAID = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": DEEP}}],
}


@pytest.mark.parametrize("depth", [300, 700, 990, 1020, 4000])
def test_a_call_s_text_is_kept_however_deep_its_arguments_are(store: Store, depth: int) -> None:
    for n, arguments in enumerate(("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth, "[" * depth)):
        function = {"name": "f", "arguments": arguments}
        said = {**SAID, "tool_calls": [{"id": "1", "type": "function", "function": function}]}
        store.ingest(
            [call(f"e{n}", messages=[{"role": "user", "content": "x"}, said], choices=[(said, [7], [-0.5])])], {}
        )
        kept = store.episodes.get("-", f"e{n}")
        assert kept is not None
        (found,) = kept.call_list
        assert found.reply[0]["tool_calls"][0]["function"]["arguments"] == arguments


@pytest.mark.parametrize("depth", [190, 300, 990, 1020])
def test_a_run_is_kept_and_read_however_deep_its_request_is(store: Store, depth: int) -> None:
    nested = json.loads("[" * 190 + "]" * 190)
    for _ in range(depth - 190):
        nested = [nested]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"x": nested}}}
    said = {"role": "user", "content": nested}
    store.ingest([call("e", messages=[said], tools=[tool], choices=[(said, [7], [-0.5])])], {})
    kept = store.episodes.get("-", "e")
    assert kept is not None
    text = dump(kept.model_dump(mode="json")) if depth < 254 else json.dumps(kept.call_list[0].messages)
    assert (TOO_DEEP_TEXT in text) == (depth > 254)
    assert kept.call_list[0].tools[0]["function"]["name"] == "f"
    assert kept.call_list[0].completion_tokens == 1


def test_a_gate_s_measure_counts_such_arguments_as_broken(store: Store) -> None:
    plain = {**SAID, "tool_calls": [{"id": "2", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}
    calls = [call(name, choices=[(said, [7], [-0.5])]) for name, said in (("deep", SAID), ("plain", plain))]
    store.ingest(calls, {})
    found = store.outcomes.measures(["-/deep", "-/plain"], ["tool_errors"])
    assert found == {"-/deep": {"tool_errors": 1.0}, "-/plain": {"tool_errors": 0.0}}


def test_an_engine_s_error_is_said_as_it_came() -> None:
    assert error_text(DEEP).startswith("[[[")


@pytest.mark.parametrize("said", [True, False])
def test_a_template_gets_no_arguments_that_cannot_be_read(said: bool) -> None:
    (made,) = for_template([SAID], None, said=said)
    assert made["tool_calls"][0]["function"]["arguments"] == (DEEP if said else {})


def test_other_readers_of_arguments_take_them_as_text() -> None:
    assert calls_of(SAID) is None and decoded_input(DEEP) == DEEP and begun_input(DEEP) == ""
