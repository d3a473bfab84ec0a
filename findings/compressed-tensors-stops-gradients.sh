#!/bin/sh
# Guess: a linear layer that was read from a quantised model as plain floats passes gradients, as any frozen layer does.
# Is: where the model was made with quantised activations, compressed-tensors' layer rounds its input at each forward,
# under no_grad. So no gradient reaches what is below, without an error: other layers' LoRAs still get theirs.
# Seen in compressed-tensors 0.17.0, which vLLM 0.32 requires, and 0.20.0.
# Here: trainer/slipstream_trainer/model/policy.py (as_plain) takes the rounding away.
# Source: https://github.com/vllm-project/compressed-tensors/pull/8
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'torch==2.13.0' 'compressed-tensors==0.20.0'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import importlib.metadata
import sys
import warnings

warnings.simplefilter("ignore")
import torch
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    apply_quantization_config,
)

print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in ("compressed-tensors", "torch")))
print("behaviour: a frozen layer whose activations were quantised passes no gradient, also when its weights are floats.")
eight = QuantizationArgs(num_bits=8)
tokens = QuantizationArgs(num_bits=8, dynamic=True, strategy="token")
x = torch.ones(2, 16, requires_grad=True)
seen = {}
for what, activations in (("weights", None), ("weights and activations", tokens)):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16, bias=False))
    scheme = QuantizationScheme(targets=["Linear"], weights=eight, input_activations=activations)
    apply_quantization_config(model, QuantizationConfig(config_groups={"all": scheme}, quantization_status="frozen"))
    with torch.no_grad():
        model[0].weight_scale.fill_(0.01)
    seen[what] = model.requires_grad_(False)(x).requires_grad
    print(f"seen: quantised {what}: {model[0].weight.dtype}, a gradient passes: {seen[what]}")
same = seen == {"weights": True, "weights and activations": False}

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
