"""Transcripts of the servants: what a small model reads. Rendered again they have the same ids; calls are four tokens."""

from __future__ import annotations

import json
from collections import Counter

from common.hermes import encode, not_rerendered, opening, render
from retail import make_model
from retail.desk import Desk, cases
from retail.domains import DOMAINS
from retail.players import transcripts
from retail.task import TASK
from retail.vocabulary import desk_tokenizer, words


def test_the_same_seed_gives_the_same_transcripts() -> None:
    assert list(transcripts(3, 5)) == list(transcripts(3, 5)) != list(transcripts(4, 5))


def test_both_companies_are_served() -> None:
    systems = Counter(messages[0]["content"] for messages, _ in transcripts(0, 60))
    assert systems.keys() == {domain.policy for domain in DOMAINS.values()}


def test_a_conversation_that_is_rendered_again_has_the_same_ids() -> None:
    tokenizer = desk_tokenizer()
    for messages, tools in transcripts(1, 60):
        assert not_rerendered(tokenizer, messages, tools) == []


def test_every_word_is_a_token_and_a_call_is_few() -> None:
    tokenizer = desk_tokenizer()
    assert len(tokenizer) < 1000
    bytes_of = {tokenizer.convert_ids_to_tokens(i) for i in range(len(tokenizer))} - set(words())
    for messages, tools in transcripts(2, 40):
        tokens = tokenizer.convert_ids_to_tokens(render(tokenizer, messages, tools))
        single = {t for t in tokens if len(t) == 1 and t in bytes_of and t.isalnum()}
        assert single <= set("s"), "the s of customer's, and nothing else, falls into bytes"
    assert len(encode(tokenizer, opening("customer", "code", text=False) + "37}}\n</tool_call><|im_end|>")) == 4


def test_rows_mark_what_the_servant_said() -> None:
    tokenizer = desk_tokenizer()
    row = make_model.make_rows(0, 1)[0]
    own = tokenizer.decode([i for i, mine in zip(row.ids, row.own, strict=True) if mine])
    assert own.count("<|im_end|>") == sum(m["role"] == "assistant" for m in next(transcripts(0, 1))[0])


def test_a_model_is_served_as_the_agent_serves() -> None:
    case = next(c for c in cases("eval") if not c.mind and c.gives_code and c.wrong_code is None)
    wish, served = case.wishes[0], make_model.Served(case)
    record = case.record(wish).id

    def call(name: str, **said: object) -> None:
        function = {"name": name, "arguments": json.dumps(said)}
        served.act({"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": function}]})

    call("customer", code=case.code)
    call(case.domain.record, thing=wish.thing, id=record)
    served.act({"role": "assistant", "content": f"{wish.action} {record}?"})
    call(wish.action, id=record)
    assert not served.done
    served.act({"role": "assistant", "content": "done"})
    assert served.done
    assert served.reward == 1.0
    assert served.messages[1]["content"] == Desk(case).opening()


def test_the_committed_tokenizer_is_the_one_that_is_built() -> None:
    built = json.loads(desk_tokenizer().backend_tokenizer.to_str())
    assert built == json.loads((TASK.model / "tokenizer.json").read_text())
    assert (TASK.model / "model.safetensors").stat().st_size < 5_000_000
