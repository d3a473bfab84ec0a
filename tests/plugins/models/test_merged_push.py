"""`slipstream adapters push --merged`: the exported weights say what base and adapter say together."""

from __future__ import annotations

from pathlib import Path

import torch
from tests.support import MODEL
from tests.support.adapters import make_adapter
from tests.support.server import serve

from slipstream.client import Client
from slipstream.config import load_config
from slipstream_models.push import push


def test_merged_weights_are_base_and_adapter_in_one(tmp_path: Path) -> None:
    from peft import PeftModel
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = make_adapter(tmp_path / "adapters" / "inbox@3", 3, rank=8)
    told = {
        "name": "inbox@3",
        "model": "inbox",
        "version": 3,
        "state": "live",
        "created": 1.0,
        "path": "inbox@3",
        "batches": ["b1"],
    }
    with serve() as server:
        server.on("GET", "/adapters", {"adapters": [told], "live": {}})
        server.on("GET", "/training/events", b"")
        config = load_config(env={}, flags=[f"adapters.dir={tmp_path}/adapters", f"engine.model={MODEL}"])
        with Client(server.url) as client:
            where = Path(push(client, config, "3", str(tmp_path / "out"), merged=True))
    assert not list(where.glob("adapter_*"))
    assert "base_model_relation: finetune" in (where / "README.md").read_text()
    with safe_open(where / "model.safetensors", "pt") as theirs, safe_open(MODEL / "model.safetensors", "pt") as base:
        name = next(n for n in base.keys() if n.endswith("q_proj.weight"))  # noqa: SIM118 - it is no dict
        assert theirs.get_tensor(name).dtype == base.get_tensor(name).dtype
        assert not torch.equal(theirs.get_tensor(name), base.get_tensor(name))
    ids = AutoTokenizer.from_pretrained(where)("the dentist for dana is monday", return_tensors="pt").input_ids
    with torch.no_grad():
        plain = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        before = plain(ids).logits.log_softmax(-1)
        together = PeftModel.from_pretrained(plain, source)(ids).logits.log_softmax(-1)
        merged = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32)(ids).logits.log_softmax(-1)
    apart = float((together - before).abs().max())
    assert apart > 0.05
    assert float((together - merged).abs().max()) < 0.1 * apart, "rounding to the base's type apart"
