#!/bin/sh
# Guess: load_adapter(folder, "a") where "a" is loaded already replaces it, and delete_adapter before it makes sure.
# Is: the weights are replaced; lora_alpha stays the old one, and so do layers that the new file lacks. No warning says
# so. After delete_adapter of the only adapter the one loaded next is not active: the model is the base.
# Seen in peft 0.21.2 (November 2026). peft.utils.hotswap does take the new scale.
# Here: trainer/slipstream_trainer/model/adapter.py loads weights itself, and versions never share a name.
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


def output(model):
    with torch.no_grad():
        return model(torch.tensor([[1, 2, 3]])).logits


def is_like(model):
    """Which of the models that were made anew has the same outputs."""
    return [name for name, there in made.items() if torch.allclose(output(model), output(there), atol=1e-5)]


print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in ("peft", "transformers", "torch")))
print("behaviour: an adapter loaded again under its name keeps its old alpha, and the layers that the new one lacks.")
kinds = {
    "alpha 4": {"lora_alpha": 4, "target_modules": ["q_proj"]},
    "other weights, alpha 16": {"lora_alpha": 16, "target_modules": ["q_proj"], "seed": 2},
    "other weights, alpha 4": {"lora_alpha": 4, "target_modules": ["q_proj"], "seed": 2},
    "two layers": {"lora_alpha": 4, "target_modules": ["q_proj", "v_proj"]},
}
made = {"base": base()}
for name, options in kinds.items():
    adapted(**options).save_pretrained(f"{sys.argv[1]}/{name}")
    made[name] = PeftModel.from_pretrained(base(), f"{sys.argv[1]}/{name}").eval()


def loaded(first, then, deleted=False):
    model = PeftModel.from_pretrained(base(), f"{sys.argv[1]}/{first}").eval()
    if deleted:
        model.delete_adapter("default")
    model.load_adapter(f"{sys.argv[1]}/{then}", "default")
    return is_like(model.eval())


cases = (
    ("alpha 4", "other weights, alpha 16"),
    ("two layers", "alpha 4"),
    ("alpha 4", "other weights, alpha 16", True),
)
seen = [loaded(*case) for case in cases]
for case, like in zip(cases, seen, strict=True):
    print(f"seen: {case[0]!r}, then {case[1]!r}{', deleted first' * len(case[2:])}: has the outputs of {like}")
same = seen == [["other weights, alpha 4"], ["two layers"], ["base"]]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
