"""The sweep over families says where one fails, and why."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.models.bench_models import Row, table, train, whole_table, write
from benchmarks.models.speakers import SPEAKERS, TEKKEN, end_of, lessons, tekken_of, template_of, tokenizer_of
from benchmarks.models.whole import CELLS, Whole

from slipstream.engines.vllm.template import run


@pytest.mark.parametrize(("family", "cpu"), [("qwen3", "yes"), ("qwen3_moe", "it is a mixture of experts")])
def test_a_family_is_trained_and_published(tmp_path: Path, family: str, cpu: str) -> None:
    row = train(family, tmp_path)
    assert (row.loads, row.trains, row.publishes, row.cpu) == ("yes", "yes", "yes", cpu)
    assert {"q_proj", "o_proj"} <= set(row.targets)
    assert (tmp_path / f"{family}@1" / "adapter_model.safetensors").is_file()
    assert not row.whole, "vLLM was not asked"


def test_what_fails_stands_in_its_cell(tmp_path: Path) -> None:
    row = train("no_such_family", tmp_path)
    assert row.loads == "KeyError: 'no_such_family'"
    assert (row.trains, row.publishes) == ("", "")
    assert "| no_such_family | KeyError: 'no_such_family' | – |" in table([row, Row("llama")])


def test_a_sweep_over_some_families_leaves_the_rows_of_the_others(tmp_path: Path) -> None:
    write([Row("llama", loads="no"), Row("qwen3", loads="yes")], tmp_path / "models.json")
    found = write([Row("llama", "yes", "yes", "yes", "yes")], tmp_path / "models.json")
    assert [(row["family"], row["loads"]) for row in found["rows"]] == [("llama", "yes"), ("qwen3", "yes")]
    assert (found["families"], found["whole"]) == (2, 1)


def test_rows_of_the_whole_product_are_merged_and_say_why_not(tmp_path: Path) -> None:
    yes = Whole("llama")
    for cell in CELLS:
        setattr(yes, cell, "yes")
    yes.agrees, yes.dtype = "yes (mean 9.3e-04, largest 1.1e-01 nats over 643 tokens)", "bfloat16"
    no = Whole("qwen3", starts="yes", chat="not equal")
    write([Row("llama", "yes", "yes", "yes", "yes")], tmp_path / "models.json", [no])
    found = write([], tmp_path / "models.json", [yes])
    assert [row["family"] for row in found["product"]] == ["llama", "qwen3"]
    assert (found["families"], found["through_the_product"], found["whole_through_the_product"]) == (1, 2, 1)
    made = whole_table([yes, no])
    assert "| yes, 9.3e-04 | yes |" in made, "the gap, where the engine rounds"
    assert "| qwen3 | yes | no | – |" in made
    assert "- **qwen3**, chat: not equal" in made


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral", "mistral_tekken", "qwen3_5", "deepseek_v3"])
def test_a_speaker_learns_replies_that_its_own_template_ends(tmp_path: Path, name: str) -> None:
    tekken = tekken_of(tmp_path) if SPEAKERS[name].template == TEKKEN else None
    template = tekken.chat_template if tekken else template_of(SPEAKERS[name].template)
    facts = run(template)
    tokenizer = tekken or tokenizer_of(template, facts)
    end = end_of(tokenizer)
    found = lessons(tokenizer, facts, end)
    assert len(found) >= 40
    for prompt, reply in found:
        assert reply[-1:] == tokenizer.convert_tokens_to_ids([end])
        assert tokenizer.unk_token_id not in reply
        assert tokenizer(tokenizer.decode(prompt + reply), add_special_tokens=False).input_ids == prompt + reply
