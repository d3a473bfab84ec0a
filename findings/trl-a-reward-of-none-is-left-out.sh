#!/bin/sh
# Guess: GRPO counts a reward of None as 0, so its reply is worse than the mean of the group.
# Is: the reply gets advantage 0, and the others are compared among themselves: [None, 0, 1, 1] gives 0, -1.15, 0.58 and
# 0.58, where [0, 0, 1, 1] gives -0.87 twice. NaN does the same. So None is "do not train on this", and not "bad".
# Seen in TRL 1.16.0 (October 2026).
# Here: trainer/slipstream_trainer/algorithm/advantage.py compares the episodes that have a reward.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'torch==2.13.0' 'transformers==5.19.0' 'trl==1.16.0'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import importlib.metadata
import logging
import sys
import warnings

warnings.simplefilter("ignore")
import pyarrow
import torch
import transformers
from datasets import Dataset
from tokenizers import Tokenizer, models
from trl import GRPOConfig, GRPOTrainer

logging.disable(logging.CRITICAL)
words = Tokenizer(models.WordLevel({"?": 0, "</s>": 1, "a": 2}, unk_token="?"))
tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=words, eos_token="</s>", pad_token="</s>", unk_token="?"
)
heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8}
sizes = {"vocab_size": 3, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
groups = {"num_generations": 4, "per_device_train_batch_size": 4, "max_completion_length": 2}


def advantages(rewards):
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads))
    config = GRPOConfig(output_dir=sys.argv[1], use_cpu=True, bf16=False, report_to=[], disable_tqdm=True, **groups)
    rows = Dataset(pyarrow.table({"prompt": ["a"] * 4}), fingerprint="a")
    trainer = GRPOTrainer(model, lambda **_: rewards, config, rows, processing_class=tokenizer)
    scored = trainer._generate_and_score_completions([{"prompt": "a"}] * 4)
    return [round(x, 2) for x in scored["advantages"].flatten().tolist()]


print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in ("trl", "transformers", "torch")))
print("behaviour: a reply whose reward is None gets advantage 0, and the others of its group are compared without it.")
nan = float("nan")
cases = [(0.0, 0.0, 1.0, 1.0), (None, 0.0, 1.0, 1.0), (nan, 0.0, 1.0, 1.0)]
seen = {rewards: advantages(list(rewards)) for rewards in cases}
for rewards, told in seen.items():
    print(f"seen: rewards {list(rewards)}: advantages {told}")
same = list(seen.values()) == [[-0.87, -0.87, 0.87, 0.87], [0.0, -1.15, 0.58, 0.58], [0.0, -1.15, 0.58, 0.58]]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
