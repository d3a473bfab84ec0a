"""What is exported is what other tools read."""

from __future__ import annotations

import datasets
import pytest
from tests.proxy.control.conftest import until
from tests.support import MODEL


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
    from trl import SFTConfig, SFTTrainer

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
    for query in ("format=jsonl", "format=parquet", "format=sft&state=open"):
        r = await plane.client.get(f"/slipstream/v1/export?{query}", headers=plane.as_())
        await r.read()
        made.append(r.headers["x-slipstream-export"])
    status, body = await plane.ask("DELETE", "/episodes/gone")
    assert (status, body["exports"]) == (200, sorted(made[:2]))
    assert (await plane.ask("DELETE", "/episodes/kept"))[1]["exports"] == sorted(made[:2])
