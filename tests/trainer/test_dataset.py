from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.tiny import sample

from slipstream.errors import StartError
from slipstream_trainer.batch.dataset import choose, group_batches, read_rows, samples_of


def episode(name: str, reward: float | None, **call):
    fields = {
        "id": f"{name}-0", "number": 0, "prompt_ids": [3, 4, 5], "completion_ids": [[6, 7]], "logprobs": [[-1.0, -2.0]], "outcome": "ok",
        "trainable": True, "sampling": {"temperature": 0.5}, "adapter": "m@1",
    }  # fmt: skip
    messages = [{"role": "user", "content": "w4"}, {"role": "assistant", "content": "w5 w6"}]
    return {"id": name, "task": "t", "reward": reward, "call_list": [fields | call], "messages": messages}


@pytest.fixture(scope="module")
def tokenizer(tiny):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny)


def test_captured_tokens_are_taken_as_they_are(tokenizer) -> None:
    (s,) = samples_of([episode("e", 1.0)], tokenizer, sft=False)
    assert (s.prompt_P.tolist(), s.completion_C.tolist(), s.logprobs_C.tolist()) == ([3, 4, 5], [6, 7], [-1.0, -2.0])
    assert (s.temperature, s.reward, s.group, s.trainable) == (0.5, 1.0, "t", True)


def test_grpo_needs_logprobs_and_a_reward(tokenizer) -> None:
    found = samples_of(
        [episode("a", 1.0, logprobs=None), episode("b", None), episode("c", 1.0, trainable=False)], tokenizer, sft=False
    )
    assert [s.reason for s in found] == ["no_logprobs", "no_reward", "untrainable"]


def test_what_an_importance_weight_cannot_be_made_of_is_refused_as_in_a_batch(tokenizer) -> None:
    bad = {
        "not_finite": {"logprobs": [[float("nan"), -1.0]]}, "logprobs_missing": {"logprobs": [[-9999.0, -1.0]]},
        "temperature": {"sampling": {"temperature": 0.0}}, "unknown_token": {"completion_ids": [[6, 10_000]]},
    }  # fmt: skip
    rows = [episode(name, 1.0, **call) for name, call in bad.items()]  # type: ignore[arg-type]
    assert [s.reason for s in samples_of(rows, tokenizer, sft=False, vocab=64)] == list(bad)
    imitated = samples_of(rows, tokenizer, sft=True, vocab=64)
    assert [s.trainable for s in imitated] == [True, True, True, False] and {s.temperature for s in imitated} == {1.0}


def test_how_it_was_sampled_does_not_matter_to_who_imitates_it(tokenizer) -> None:
    row = episode("e", 1.0, trainable=False, untrainable_reason="top_k", sampling={"top_k": 5})
    (s,) = samples_of([row], tokenizer, sft=True)
    assert s.trainable and s.completion_C.tolist() == [6, 7]
    (failed,) = samples_of([episode("e", 1.0, outcome="aborted") | {"messages": []}], tokenizer, sft=True)
    assert not failed.trainable


def test_text_alone_is_rendered_by_the_template_for_sft(tokenizer) -> None:
    row = {"episode": "x", "task": "t", "reward": 1.0, "messages": [
        {"role": "user", "content": "w4"}, {"role": "assistant", "content": "w5"}, {"role": "user", "content": "w6"},
        {"role": "assistant", "content": "w7 w8"},
    ]}  # fmt: skip
    found = samples_of([row], tokenizer, sft=True)
    assert [tokenizer.decode(s.completion_C).strip() for s in found] == ["w5 <end>", "w7 w8 <end>"]
    assert all(s.trainable for s in found)
    assert found[1].prompt_P.tolist()[: len(found[0].prompt_P)] == found[0].prompt_P.tolist()
    assert samples_of([row], tokenizer, sft=False) == []


def test_rows_of_json_lines_and_parquet(tmp_path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = episode("e", 1.0)
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n\n")
    flat = row | {"call_list": json.dumps(row["call_list"]), "messages": json.dumps(row["messages"])}
    pq.write_table(pa.Table.from_pylist([flat]), tmp_path / "a.parquet")
    assert list(read_rows(tmp_path / "a.jsonl")) == list(read_rows(tmp_path / "a.parquet")) == [row]
    (tmp_path / "b.jsonl").write_text('{"a": 1}\nnonsense\n')
    with pytest.raises(StartError, match=r"b\.jsonl:2"):
        list(read_rows(tmp_path / "b.jsonl"))
    with pytest.raises(StartError, match="No such file"):
        list(read_rows(tmp_path / "none.jsonl"))


def test_the_best_of_each_group_is_imitated() -> None:
    rewards = {"a": 0.2, "b": 0.9, "c": 0.9, "d": -1.0, "e": float("nan")}
    groups = {"d": "h", "e": "i"}
    samples = [sample(n, [3], [4], reward=r, group=groups.get(n, "g")) for n, r in rewards.items()]
    assert choose(samples) == 3
    assert [s.trainable for s in samples] == [False, True, True, False, True]
    assert all(s.advantage == 1.0 for s in samples)


def test_groups_stay_whole() -> None:
    samples = [sample(f"e{i}", [3], [4], group=f"g{i % 3}") for i in range(9)]
    found = group_batches(samples, 2)
    assert [sorted({s.group for s in b}) for b in found] == [["g0", "g1"], ["g2"]]
    assert sum(map(len, found)) == len(samples)
    assert np.isfinite(samples[0].reward)


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("task", ["t", None])
def test_an_episode_is_its_keys_own(tokenizer, text: bool, task: str | None) -> None:
    """Two keys use the same ids and tasks: each run is a loss unit of its own, and is compared with its own key's alone."""
    rows = [episode(f"e{n}", reward) | {"key": key, "task": task} for key, reward in (("a", 0.25), ("b", 1.0)) for n in range(2)]  # fmt: skip
    if text:
        rows = [{"episode": r["id"], **{k: v for k, v in r.items() if k not in ("id", "call_list")}} for r in rows]
    samples = samples_of(rows, tokenizer, sft=True)
    assert [s.run for s in samples] == ["a/e0", "a/e1", "b/e0", "b/e1"]
    together = [[s.key for s in samples if s.group == group] for group in dict.fromkeys(s.group for s in samples)]
    assert together == ([["a", "a"], ["b", "b"]] if task else [["a"], ["a"], ["b"], ["b"]])
    assert choose(samples) == 4, "each key's best, whatever another key's rewards are"


def test_a_long_runs_calls_begin_with_earlier_ones(tmp_path: Path) -> None:
    """As an export has them: what an earlier call has stands there alone."""
    calls = [
        {"id": "a", "number": 0, "prompt_ids": [1, 2], "completion_ids": [[3], [9]], "logprobs": [[-0.5], [-0.1]]},
        {
            "id": "b",
            "number": 1,
            "prompt_ids": [4],
            "completion_ids": [[5]],
            "logprobs": [[-0.5]],
            "prefix": {"call": "a", "messages": 2, "tokens": 3, "tools": False},
        },
        {"id": "c", "number": 2, "prompt_ids": [6], "completion_ids": [[7]], "prefix": {"call": "gone", "tokens": 2}},
    ]
    row = {"id": "e", "key": "-", "reward": 1.0, "call_list": calls}
    found = samples_of([row], None, sft=False)
    assert [s.prompt_P.tolist() for s in found] == [[1, 2], [1, 2], [1, 2, 3, 4], []]
    assert [s.trainable for s in found] == [True, True, True, False], "a beginning that is missing is not made up"
    lists = ("prompt_ids", "completion_ids", "logprobs")
    bare = [{k: v for k, v in call.items() if k not in lists} for call in calls]
    columns = {"id": ["e"], "key": ["-"], "reward": [1.0], "call_list": [json.dumps(bare)]}
    pq.write_table(pa.table(columns | {n: [[c.get(n) for c in calls]] for n in lists}), tmp_path / "e.parquet")
    again = samples_of(read_rows(tmp_path / "e.parquet"), None, sft=False)
    assert [s.prompt_P.tolist() for s in again] == [s.prompt_P.tolist() for s in found]
