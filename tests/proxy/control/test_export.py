"""What is exported is what other tools read."""

from __future__ import annotations

import json
from typing import Any

import datasets
import pytest
from tests.support import MODEL
from tests.support.plane import until

from slipstream.contract import EpisodeDetail
from slipstream_export.rows import sft_row


@pytest.fixture
async def exported(plane, tmp_path):
    """Format → file, of six rewarded episodes of two tasks."""
    for i in range(6):
        await plane.call(f"e{i}", task=f"t{i % 2}", text=f"question {i % 2}", done=True)
        await plane.seen(f"e{i}")
        await plane.ask("POST", f"/episodes/e{i}/rewards", {"value": i / 5})
    await until(lambda: _all(plane))
    found = {}
    for name in ("jsonl", "sft", "dpo", "parquet"):
        r = await plane.client.get(f"/slipstream/v1/export?format={name}", headers=plane.as_())
        assert r.status == 200
        found[name] = tmp_path / f"{name}.{'parquet' if name == 'parquet' else 'jsonl'}"
        found[name].write_bytes(await r.read())
    return found


async def _all(plane):
    return all(e["reward"] is not None for e in (await plane.ask("GET", "/episodes"))[1]["episodes"])


def load(path, kind, tmp_path):
    return datasets.load_dataset(kind, data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))


async def test_datasets_loads_all_of_them(exported, tmp_path):
    for name, path in exported.items():
        rows = load(path, "parquet" if name == "parquet" else "json", tmp_path)
        assert len(rows) == (2 if name == "dpo" else 6), name
    assert {"prompt", "chosen", "rejected"} <= set(load(exported["dpo"], "json", tmp_path).column_names)


async def test_sft_rows_train_in_trl(exported, tmp_path):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer  # type: ignore[attr-defined]

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(str(MODEL))
    config = AutoConfig.from_pretrained(str(MODEL))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    args = SFTConfig(
        output_dir=str(tmp_path / "out"), max_steps=2, per_device_train_batch_size=2, max_length=128, use_cpu=True, report_to=[], save_strategy="no",
        bf16=False, gradient_checkpointing=False, dataset_num_proc=None, disable_tqdm=True,
    )  # fmt: skip
    rows = load(exported["sft"], "json", tmp_path).select_columns(["messages"])
    trainer = SFTTrainer(model=model, args=args, train_dataset=rows, processing_class=tokenizer)
    result = trainer.train()
    assert result.global_step == 2
    assert result.training_loss > 0


async def test_who_forgets_is_told_of_the_datasets(plane):
    for name in ("gone", "kept"):
        await plane.call(name, done=True)
        await plane.seen(name)
    made = []
    for query in ("format=jsonl", "format=parquet", "format=sft&state=open", "format=jsonl&temporary=true"):
        r = await plane.client.get(f"/slipstream/v1/export?{query}", headers=plane.as_())
        await r.read()
        made.append(r.headers["x-slipstream-export"])
    status, body = await plane.ask("DELETE", "/episodes/gone")
    assert (status, body["exports"]) == (200, sorted(made[:2]))
    assert (await plane.ask("DELETE", "/episodes/kept"))[1]["exports"] == sorted(made[:2])


TOOL: Any = {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}


async def test_rows_for_trainers_carry_tools_and_no_null(plane):
    for i in range(2):
        call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
        messages = [
            {"role": "user", "content": "find it"},
            {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
            {"role": "tool", "tool_call_id": "c1", "content": "there"},
            {"role": "assistant", "content": f"answer {i}", "audio": None},
        ]
        body = {"id": f"i{i}", "task": "t", "messages": messages, "tools": [TOOL], "reward": float(i)}
        assert (await plane.ask("POST", "/import", body))[0] == 200
    await until(lambda: _all(plane))
    for name in ("sft", "dpo"):
        r = await plane.client.get(f"/slipstream/v1/export?format={name}", headers=plane.as_())
        rows = [json.loads(line) for line in (await r.read()).splitlines()]
        assert len(rows) == (2 if name == "sft" else 1)
        for row in rows:
            assert json.loads(row["tools"]) == [{**TOOL, "function": {**TOOL["function"], "description": None}}]
            assert "null" not in json.dumps({k: v for k, v in row.items() if k != "tools"})
            spoken = row.get("messages") or row["prompt"] + row["chosen"]
            assert [m["role"] for m in spoken] == ["user", "assistant", "tool", "assistant"]
            assert spoken[1]["content"] == "" and spoken[1]["tool_calls"][0]["function"]["name"] == "search"


def test_a_row_has_the_tools_of_the_call_that_it_is_of():
    """And not those of a title, which comes last."""
    fields = {"at": 0.0, "seconds": 1.0, "dialect": "chat", "model": "m", "adapter": None, "status": 200, "outcome": "ok", "trainable": True}  # fmt: skip
    asked = [{"role": "user", "content": "find it"}, {"role": "assistant", "content": "I look."}, {"role": "user", "content": "so?"}]  # fmt: skip
    reply = [{"role": "assistant", "content": "there"}]
    calls = [
        {**fields, "id": "e-0", "episode": "e", "number": 0, "messages": asked, "reply": reply, "tools": [TOOL]},
        {**fields, "id": "e-1", "episode": "e", "number": 1, "messages": asked[:1], "reply": reply, "tools": []},
    ]
    episode = {
        "id": "e", "key": "-", "task": "t", "split": "train", "model": "m", "adapter": None, "state": "done", "started": 0.0, "ended": 1.0,
        "calls": 2, "reward": 1.0, "call_list": calls,
    }  # fmt: skip
    row = sft_row(EpisodeDetail.model_validate(episode))
    assert row is not None and [m["content"] for m in row["messages"]] == ["find it", "I look.", "so?", "there"]
    assert json.loads(row["tools"])[0]["function"]["name"] == TOOL["function"]["name"]


async def test_many_pairs_are_fetched_together(plane, monkeypatch):
    monkeypatch.setattr("slipstream_export.rows.DPO_TASKS", 2)
    for i in range(10):
        messages = [{"role": "user", "content": f"q{i // 2}"}, {"role": "assistant", "content": f"a{i}"}]
        body = {"id": f"i{i}", "task": f"t{i // 2}", "messages": messages, "reward": float(i % 2)}
        assert (await plane.ask("POST", "/import", body))[0] == 200
    await until(lambda: _all(plane))
    r = await plane.client.get("/slipstream/v1/export?format=dpo", headers=plane.as_())
    rows = [json.loads(line) for line in (await r.read()).splitlines()]
    assert [row["task"] for row in rows] == [f"t{i}" for i in range(5)]
    assert all((row["chosen_reward"], row["rejected_reward"]) == (1.0, 0.0) for row in rows)


async def test_rows_name_their_episodes_by_key_and_id(plane):
    """Two keys use the same ids and the same task."""
    for key in ("a", "b"):
        for n in range(2):
            await plane.call("same" if n else "other", key=key, text="question", reply=f"{key}{n}")
            body = {"value": float(n == (key == "a"))}
            assert (await plane.ask("POST", f"/episodes/{'same' if n else 'other'}/rewards", body, key=key))[0] == 200
    await until(lambda: _all(plane))
    rows = {}
    for name in ("sft", "dpo"):
        r = await plane.client.get(f"/slipstream/v1/export?format={name}", headers=plane.as_())
        rows[name] = [json.loads(line) for line in (await r.read()).splitlines()]
    named = {(row["key"], row["episode"]): (row["messages"][-1]["content"], row["reward"]) for row in rows["sft"]}
    assert named == {
        ("a", "same"): ("a1", 1.0), ("a", "other"): ("a0", 0.0), ("b", "same"): ("b1", 0.0), ("b", "other"): ("b0", 1.0),
    }  # fmt: skip
    pairs = {
        row["key"]: (row["chosen_episode"], row["rejected_episode"], row["chosen"][-1]["content"])
        for row in rows["dpo"]
    }
    assert pairs == {"a": ("same", "other", "a1"), "b": ("other", "same", "b0")}
