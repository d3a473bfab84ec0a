"""Calls as recorded, as rows, and as users see them."""

from __future__ import annotations

from tests.support.records import call

from slipstream_proxy.store.conversation.call_rows import call_public, call_row, choices_of, pack, untrainable_reason
from slipstream_proxy.store.conversation.fingerprint import cut
from slipstream_proxy.store.tables.rows import ids_of, load


def test_untrainable_says_the_first_reason():
    assert untrainable_reason(call(outcome="error", external=True)) == "error"
    assert untrainable_reason(call(prompt=[], note="redacted")) == "redacted"
    assert untrainable_reason(call(external=True, note="redacted")) == "redacted"
    assert untrainable_reason(call()) is None


def test_a_call_comes_back_from_its_row():
    two = [({"role": "assistant", "content": "a"}, [4, 5], [-0.5, -0.25]), (None, [6], [-1.0])]
    record = call("e1", choices=two, tools=[{"name": "t"}], error="late\0")
    packed = pack(record)
    row = call_row(record, "-/e1", 3, packed, cut(packed.prompt, []))
    back = call_public(row, load(row.messages), load(row.tools), ids_of(row.prompt_ids))
    assert (back.episode, back.number, back.error) == ("e1", 3, "late\ufffd")
    assert (back.messages, back.tools, back.reply) == (record.parsed.messages, [{"name": "t"}], [two[0][0], None])
    assert (back.prompt_ids, back.completion_ids) == ([1, 2, 3], [[4, 5], [6]])
    assert [values.tolist() for _, values in choices_of(row)] == [[-0.5, -0.25], [-1.0]]
    assert (back.prompt_tokens, back.completion_tokens, back.finish_reason) == (3, 3, "stop")
