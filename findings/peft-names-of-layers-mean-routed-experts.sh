#!/bin/sh
# Guess: target_modules gate_proj, up_proj, down_proj adapts each layer of that name, at the rank that was asked for.
# Is: in a mixture of experts PEFT takes these names for its routed experts. The dense layers that have such modules get
# no adapter, all experts of a layer get one, of rank 2r for gate and up, and adapter_config.json says target_modules [].
# Seen in PEFT 0.21.2 with transformers 5.19.0 (Qwen3-MoE, whose first layer is dense).
# Here: trainer/slipstream_trainer/model/policy.py (targets_as_given) takes the names as they are.
# Source: https://github.com/huggingface/peft/issues/3711
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'torch==2.13.0' 'transformers==5.19.0' 'peft==0.21.2'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import importlib.metadata
import json
import pathlib
import sys
import warnings

warnings.simplefilter("ignore")
import peft
import safetensors
import transformers

experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "mlp_only_layers": [0]}
heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
names = ["down_proj", "gate_proj", "up_proj"]
base = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes, **heads, **experts))
dense = sorted(name.rpartition(".")[2] for name, _ in base.named_modules() if name.endswith(tuple(names)))
config = peft.LoraConfig(r=8, target_modules=names, task_type="CAUSAL_LM")
peft.get_peft_model(base, config).save_pretrained(sys.argv[1])
said = json.loads((pathlib.Path(sys.argv[1]) / "adapter_config.json").read_text())
shapes = {}
with safetensors.safe_open(f"{sys.argv[1]}/adapter_model.safetensors", "np") as file:
    for key in file.keys():
        shapes[key.removeprefix("base_model.model.model.")] = file.get_slice(key).get_shape()
print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in ("peft", "transformers", "torch")))
print("behaviour: gate_proj, up_proj and down_proj adapt a mixture's routed experts, and none of its dense layers.")
print("seen: the dense layer 0 has", dense)
print("seen: adapter_config.json has", {key: said[key] for key in ("target_modules", "target_parameters", "rank_pattern")})
for key, shape in shapes.items():
    print(f"seen: {key}: {shape}")
same = dense == names and said["target_modules"] == [] and list(said["rank_pattern"].values()) == [16]
same = same and len(shapes) == 4 and all(key.startswith("layers.1.mlp.experts.") for key in shapes)

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
