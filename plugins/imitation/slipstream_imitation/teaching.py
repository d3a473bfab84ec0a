"""Training on sequences that somebody else said: TRL's SFT, DPO and KTO trainers on token ids that are ready.

A row has ``ids`` and ``said`` (1 for each token that the model is to say); a pair for DPO also ``bad_ids`` and
``bad_said``; one for KTO ``good``.
"""

from __future__ import annotations

import logging
import random
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

import torch
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from slipstream.config import Config
from slipstream.errors import StartError
from slipstream_trainer.algorithm.learning_rate import start_rate
from slipstream_trainer.model.policy import targets_as_given
from slipstream_trainer.model.weights import put_weights, weights_of

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedTokenizerBase, Trainer, TrainerControl, TrainerState, TrainingArguments

log = logging.getLogger(__name__)
Method = Literal["sft", "dpo", "kto"]


class TaughtRow(TypedDict, total=False):
    """A sequence, or a pair of two."""

    ids: list[int]
    said: list[int]
    bad_ids: list[int]
    bad_said: list[int]
    good: bool


HELD_OUT, MOST_HELD_OUT = 0.1, 64
"""Share of the parts that are not trained on, and the most. The epoch with the least loss on them is kept."""
STEP_SEQUENCES = 16
"""Sequences, or pairs, of a step."""
DEFAULT_EPOCHS = 3.0
PREFERENCE_RATE = 0.1
"""Share of imitation's learning rate for preferences: a pair pulls on whole conversations."""


def teach(
    config: Config,
    model: PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    parts: Sequence[list[TaughtRow]],
    method: Method,
    epochs: float | None = None,
) -> dict[str, float]:
    """Train the LoRA weights in place. → ``loss_base`` and ``loss`` on what was held out, ``steps``, ``epochs``.

    Raises ``StartError`` if the adapter changes nothing.
    """
    t = config.trainer
    train, held_out = _split(parts, t.seed)
    with tempfile.TemporaryDirectory(prefix="slipstream-distill-") as scratch, targets_as_given():
        trainer = _trainer(config, model, tokenizer, train, held_out, method, epochs or DEFAULT_EPOCHS, scratch)
        best = _Best(model)
        for unwanted in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(unwanted)
        trainer.add_callback(best)
        before = float(trainer.evaluate()["eval_loss"])
        best.loss, best.weights = float("inf"), None  # the start is no epoch
        trainer.train()
    if best.weights is not None:
        put_weights(model, best.weights)
    if "ref" in model.peft_config:  # TRL's own copy of the start, for DPO and KTO
        model.delete_adapter("ref")
    if best.loss == before:
        raise StartError("the adapter changes nothing that the model says: set a higher trainer.learning_rate")
    log.info("loss on %d held-out sequences: %.4f -> %.4f", len(held_out), before, best.loss)
    return {
        "loss_base": round(before, 4),
        "loss": round(best.loss, 4),
        "steps": int(trainer.state.global_step),
        "epochs": best.epoch,
        "held_out": len(held_out),
    }


def _split(parts: Sequence[list[TaughtRow]], seed: int) -> tuple[list[TaughtRow], list[TaughtRow]]:
    """Rows to train on, and rows of parts that are held out. A few parts alone are measured on what they train."""
    shuffled = list(parts)
    random.Random(seed).shuffle(shuffled)
    count = min(MOST_HELD_OUT, int(len(shuffled) * HELD_OUT))
    held_out, train = shuffled[:count], shuffled[count:]
    rows = [row for part in train for row in part]
    random.Random(seed + 1).shuffle(rows)
    return rows, [row for part in held_out for row in part] or rows[:MOST_HELD_OUT]


def _trainer(
    config: Config,
    model: PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    train: list[TaughtRow],
    held_out: list[TaughtRow],
    method: Method,
    epochs: float,
    scratch: str,
) -> Trainer:
    from datasets import Dataset

    from slipstream_trainer.step.trl_seam import teachers

    kind, settings = teachers()[method]
    t, gpu = config.trainer, torch.cuda.is_available()
    longest = max(max(len(r["ids"]), len(r.get("bad_ids", ()))) for r in [*train, *held_out])
    least = 2 if method == "kto" else 1  # its KL is estimated from the other sequences of a micro-batch
    size = max(least, min(STEP_SEQUENCES, len(train), t.token_budget // longest // (2 if method == "dpo" else 1)))
    imitation = t.model_copy(update={"algorithm": "sft"})
    rate = start_rate(imitation, int(model.config.get_text_config().hidden_size))
    more: dict[str, object] = {"dataset_kwargs": {"skip_prepare_dataset": True}} if method == "sft" else {}
    if method == "kto":
        more["train_sampling_strategy"] = "sequential"  # the rows are in random order already
    arguments = settings(
        output_dir=scratch,
        per_device_train_batch_size=size,
        per_device_eval_batch_size=size,
        gradient_accumulation_steps=max(1, STEP_SEQUENCES // size),
        num_train_epochs=epochs,
        learning_rate=rate if method == "sft" or t.learning_rate != "auto" else rate * PREFERENCE_RATE,
        lr_scheduler_type="linear",
        warmup_steps=t.warmup_steps,
        weight_decay=t.weight_decay,
        max_grad_norm=t.max_grad_norm,
        max_length=None,
        report_to=t.report_to or "none",
        seed=t.seed,
        bf16=gpu and t.dtype != "float32",
        use_cpu=not gpu,
        gradient_checkpointing=t.checkpointing == "on" or (gpu and t.checkpointing == "auto"),
        eval_strategy="epoch",
        save_strategy="no",
        logging_steps=10,
        disable_tqdm=True,
        dataloader_drop_last=False,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        optim="adamw_torch",
        **more,
    )
    return kind(
        model=model,
        args=arguments,
        data_collator=Collator(tokenizer.pad_token_id or 0, method),
        train_dataset=Dataset.from_list(train),
        eval_dataset=Dataset.from_list(held_out),
        processing_class=tokenizer,
    )


class Collator:
    """Rows as a padded batch of the form that TRL's trainer of ``method`` computes."""

    def __init__(self, pad: int, method: Method) -> None:
        self.pad, self.method = pad, method

    def __call__(self, rows: list[TaughtRow]) -> dict[str, torch.Tensor]:
        sides = [(r["ids"], r["said"]) for r in rows]
        if self.method == "dpo":
            sides += [(r["bad_ids"], r["bad_said"]) for r in rows]
        ids, attention, said = self._padded(sides)
        if self.method == "sft":
            return {"input_ids": ids, "attention_mask": attention, "labels": ids.masked_fill(said == 0, -100)}
        batch = {"input_ids": ids, "attention_mask": attention, "completion_mask": said}
        if self.method == "kto":
            other = [_said_of(r) for r in [*rows[-1:], *rows[:-1]]]
            mixed = [_asked_of(r) for r in rows]
            sides = [(p + c, [0] * len(p) + m) for p, (c, m) in zip(mixed, other, strict=True)]
            names = ("KL_input_ids", "KL_attention_mask", "KL_completion_mask")
            batch |= dict(zip(names, self._padded(sides), strict=True))
            batch["label"] = torch.tensor([r["good"] for r in rows])
        return batch

    def _padded(self, sides: Sequence[tuple[list[int], list[int]]]) -> tuple[torch.Tensor, ...]:
        longest = max(len(ids) for ids, _ in sides)

        def filled(rows: list[list[int]], value: int) -> torch.Tensor:
            return torch.tensor([row + [value] * (longest - len(row)) for row in rows])

        ones = [[1] * len(ids) for ids, _ in sides]
        return (
            filled([ids for ids, _ in sides], self.pad),
            filled(ones, 0),
            filled([said for _, said in sides], 0),
        )


def _asked_of(row: TaughtRow) -> list[int]:
    """The ids before the first that the model says."""
    return list(row["ids"][: row["said"].index(1)])


def _said_of(row: TaughtRow) -> tuple[list[int], list[int]]:
    begin = row["said"].index(1)
    return list(row["ids"][begin:]), list(row["said"][begin:])


class _Best(TrainerCallback):
    """Says how far it is, and keeps the weights of the epoch with the least loss on what was held out."""

    def __init__(self, model: PeftModel) -> None:
        self.model = model
        self.loss, self.epoch = float("inf"), 0.0
        self.weights: dict[str, torch.Tensor] | None = None

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: dict[str, float]
    ) -> None:
        if (loss := (given.get("logs") or {}).get("loss")) is not None:
            log.info("step %d of %d: loss %.4f", state.global_step, state.max_steps, float(loss))

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: dict[str, float]
    ) -> None:
        loss = float((given.get("metrics") or {}).get("eval_loss", float("inf")))
        if state.global_step and loss < self.loss:
            self.loss, self.epoch = loss, float(state.epoch or 0.0)
            self.weights = weights_of(self.model, device="cpu")
