#!/bin/sh
# Guess: epsilon_high of TRL's cispo is an offset as in its other losses: a token's ratio counts up to 1 + epsilon_high.
# Is: the ratio is cut at epsilon_high itself. With the default (epsilon, 0.2) or DAPO's 0.28 each token counts at most
# 0.2 or 0.28, also right after sampling, where its ratio is 1: no token differs, and the gradient is a fifth.
# Seen in TRL 1.16.0 (ratios are told through old_per_token_logps). ScaleRL's cap of 5 is epsilon_high 5.
# Here: trainer/slipstream_trainer/algorithm/losses.py (trl_settings) adds the 1.
# Source: https://github.com/huggingface/trl/pull/4495
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'torch==2.13.0' 'transformers==5.19.0' 'trl==1.16.0'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import importlib.metadata
import sys
import warnings

warnings.simplefilter("ignore")
import pyarrow
import torch
import transformers
from datasets import Dataset
from tokenizers import Tokenizer, models
from trl import GRPOConfig, GRPOTrainer

words = Tokenizer(models.WordLevel({"?": 0, "</s>": 1, "a": 2}, unk_token="?"))
tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=words, eos_token="</s>", pad_token="</s>", unk_token="?"
)
heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8}
sizes = {"vocab_size": 3, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
ids = torch.tensor([[2, 2], [2, 0]])
ones = torch.ones_like(ids)


def gradient(ratio, **settings):
    """The gradient's length where each token is now `ratio` times as likely as when it was sampled."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads))
    settings |= {"output_dir": sys.argv[1], "use_cpu": True, "report_to": [], "disable_tqdm": True}
    config = GRPOConfig(num_generations=2, per_device_train_batch_size=2, **settings)
    rows = Dataset(pyarrow.table({"prompt": ["a", "a"]}), fingerprint="a")
    trainer = GRPOTrainer(model, lambda **_: [0.0, 1.0], config, rows, processing_class=tokenizer)
    trainer.current_gradient_accumulation_steps = 1
    with torch.no_grad():
        logits = model(torch.cat([ids, ids], 1)).logits[:, 1:-1]
    now = torch.log_softmax(logits, -1).gather(2, ids[:, :, None])[:, :, 0]
    inputs = {"prompt_ids": ids, "prompt_mask": ones, "completion_ids": ids, "completion_mask": ones}
    inputs |= {"advantages": torch.ones(2), "num_items_in_batch": torch.tensor(4.0)}
    inputs["old_per_token_logps"] = now - torch.tensor(ratio).log()
    trainer._compute_loss(model, inputs).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()


print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in ("trl", "transformers", "torch")))
print("behaviour: TRL's cispo cuts a token's ratio at epsilon_high itself, not at 1 + epsilon_high: at 0.2 by default.")
unclipped = gradient(1.0, loss_type="dapo")
seen = {}
for high in (None, 0.28, 5.0):
    more = {} if high is None else {"epsilon_high": high}
    seen[high] = [round(gradient(ratio, loss_type="cispo", **more) / unclipped, 3) for ratio in (0.1, 1.0, 2.0)]
    print(f"seen: epsilon_high {high}: tokens of the ratios 0.1, 1 and 2 count {seen[high]}")
same = seen == {None: [0.1, 0.2, 0.2], 0.28: [0.1, 0.28, 0.28], 5.0: [0.1, 1.0, 2.0]}

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
