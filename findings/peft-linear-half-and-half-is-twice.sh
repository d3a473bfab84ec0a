#!/bin/sh
# Guess: add_weighted_adapter(["a", "a"], [0.5, 0.5]) gives a again, whatever combination_type says.
# Is: "svd" and "cat" give a; "linear" gives twice a, and "ties" (density 1) half of it, without a warning. "linear"
# adds the factors A and B each, with the roots of the weights, so of two adapters it also adds A of one times B of the
# other.
# Seen in peft 0.21.2 (November 2026).
# Here: proxy/slipstream_proxy/control/adapters/swapper.py serves versions one by one, and averages none.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'torch==2.13.0' 'transformers==5.24.0' 'peft==0.21.2'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import importlib.metadata
import logging
import sys
import warnings

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model

heads = {"num_attention_heads": 1, "num_hidden_layers": 1}
sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8}


def base():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).eval()


def adapted(seed=1, **options):
    model = get_peft_model(base(), LoraConfig(r=4, task_type="CAUSAL_LM", **options)).eval()
    torch.manual_seed(seed)
    for name, weight in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight)
    return model


def change(model, name):
    """The change of the layer's weights by an adapter."""
    return model.base_model.model.model.layers[0].self_attn.q_proj.get_delta_weight(name)


print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in ("peft", "transformers", "torch")))
print("behaviour: half of an adapter and half of the same one is twice it by 'linear', and once by 'svd' and 'cat'.")
model = adapted(target_modules=["q_proj"])
whole = change(model, "default")
seen = {}
for kind, more in (("svd", {}), ("cat", {}), ("linear", {}), ("ties", {"density": 1.0})):
    model.add_weighted_adapter(["default", "default"], [0.5, 0.5], kind, combination_type=kind, **more)
    seen[kind] = round((change(model, kind).norm() / whole.norm()).item(), 2)
    print(f"seen: {kind}: {seen[kind]} times the adapter")
same = seen == {"svd": 1.0, "cat": 1.0, "linear": 2.0, "ties": 0.5}

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
