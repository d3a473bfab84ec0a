"""Stock TRL on a task, vLLM colocated: python trl_run.py MODEL TASKS.json TASK SECONDS SEED OUT.json

64 runs a step in 8 groups, the learning rate of TRL's own guide to LoRA, no KL term. Writes ``{"began", "log": [[seconds
since the process began, reward of each run]]}``. A step's runs are fresh samples of tasks that are not held out.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import tasks

BEGAN = time.time()
LEARNING_RATE = 1e-4
RUNS, GROUP = 64, 8


def main() -> None:
    """Command line."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer, TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    model, file, task, limit, seed, out = sys.argv[1:7]
    items = json.loads(Path(file).read_text())[task][tasks.HELD_OUT :]
    data = Dataset.from_list([{"prompt": tasks.messages(x["q"]), "answer": x["a"]} for x in items])
    log: list[tuple[float, list[float]]] = []

    def reward(completions: Any, answer: Any, **_: Any) -> list[float | None]:
        found = [tasks.reward(c[0]["content"], a) for c, a in zip(completions, answer, strict=True)]
        log.append((time.time() - BEGAN, found))
        return list(found)

    class Clock(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = time.time() - BEGAN > float(limit)

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    tokenizer.padding_side = "left"
    settings = GRPOConfig(
        output_dir=str(Path(out).with_suffix("")), per_device_train_batch_size=RUNS, num_generations=GROUP, max_completion_length=tasks.MAX_TOKENS,
        learning_rate=LEARNING_RATE, lr_scheduler_type="constant", beta=0.0, temperature=1.0, bf16=True, seed=int(seed), max_steps=100_000,
        use_vllm=True, vllm_mode="colocate", vllm_gpu_memory_utilization=0.2, vllm_max_model_length=2048,
        logging_steps=1000, save_strategy="no", report_to=[],
    )  # fmt: skip
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
    trainer = GRPOTrainer(
        model=model, processing_class=tokenizer, reward_funcs=reward, args=settings, train_dataset=data, peft_config=lora, callbacks=[Clock()],
    )  # fmt: skip
    trainer.train()
    Path(out).write_text(json.dumps({"began": BEGAN, "log": log}))


if __name__ == "__main__":
    main()
