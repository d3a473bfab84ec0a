"""Stock TRL on a task, vLLM colocated: python -m benchmarks.peers.trl_run MODEL TASKS.json TASK SECONDS SEED OUT.jsonl

64 runs a step in 8 groups, the learning rate of TRL's own guide to LoRA, no KL term. A step's runs are fresh samples of
tasks that are not held out. Each step adds a line to OUT: [the time, the runs' rewards, their sampled tokens]. A task
with a check has more than one turn: TRL's ``rollout_func`` makes them, and only sampled tokens train.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.peers import tasks

BEGAN = time.time()
LEARNING_RATE = 1e-4
RUNS, GROUP = 64, 8


def between(said: str, ended: bool) -> str:
    """What stands between a reply and the next one (ChatML). A reply that the limit cut has no end mark of its own."""
    return f"{'' if ended else '<|im_end|>'}\n<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n"


def rollout(prompts: list[Any], trainer: Any, items: dict[str, dict[str, Any]]) -> dict[str, list[Any]]:
    """A run for each prompt, with the check's turns. ``items``: by question, as TRL hands over nothing but prompts."""
    tokenizer = trainer.processing_class
    asked = [items[prompt[-1]["content"]] for prompt in prompts]
    ids = tokenizer.apply_chat_template(
        conversation=prompts, add_generation_prompt=True, tokenize=True, return_dict=True
    )
    starts: list[list[int]] = ids["input_ids"]
    done: list[list[int]] = [[] for _ in prompts]
    logprobs: list[list[float | None]] = [[] for _ in prompts]
    mask: list[list[int]] = [[] for _ in prompts]
    replies, waiting = [""] * len(prompts), list(range(len(prompts)))
    for turn in range(tasks.TURNS):
        rows = [starts[i] + done[i] for i in waiting]
        _, sampled, found, _ = trainer.vllm_generation.generate(prompts=rows, images=None, num_generations=1)
        again = []
        for i, new, values in zip(waiting, sampled, found, strict=True):
            done[i] += new
            logprobs[i] += [value[0] for value in values]
            mask[i] += [1] * len(new)
            replies[i] = tokenizer.decode(new, skip_special_tokens=True)
            said = tasks.check(asked[i], replies[i])
            if said is None or turn + 1 == tasks.TURNS:
                continue
            text = between(said, new[-1] == tokenizer.eos_token_id)
            told = tokenizer(text, add_special_tokens=False)["input_ids"]
            done[i] += told
            logprobs[i] += [0.0] * len(told)
            mask[i] += [0] * len(told)
            again.append(i)
        waiting = again
        if not waiting:
            break
    return {
        "prompt_ids": starts, "completion_ids": done, "logprobs": logprobs, "env_mask": mask,
        "reply": replies, "sampled": [sum(own) for own in mask],
    }  # fmt: skip


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
    turns = any("check" in x for x in items)
    by_question = {x["q"]: x for x in items}

    def reward(completions: Any, answer: Any, completion_ids: Any, **more: Any) -> list[float | None]:
        replies = more["reply"] if turns else [c[0]["content"] for c in completions]
        sampled = more["sampled"] if turns else [len(ids) for ids in completion_ids]
        found = [tasks.reward(reply, a) for reply, a in zip(replies, answer, strict=True)]
        with Path(out).open("a") as log:
            log.write(json.dumps([time.time(), found, sampled]) + "\n")
        return list(found)

    def runs(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        return rollout(prompts, trainer, by_question)

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
    in_turns: dict[str, Any] = {"rollout_func": runs} if turns else {}
    trainer = GRPOTrainer(
        model=model, processing_class=tokenizer, reward_funcs=reward, args=settings, train_dataset=data, peft_config=lora, callbacks=[Clock()],
        **in_turns,
    )  # fmt: skip
    trainer.train()


if __name__ == "__main__":
    main()
