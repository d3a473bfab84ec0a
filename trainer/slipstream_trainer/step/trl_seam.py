"""TRL as we use it: imported without vLLM, which takes ten seconds. Our tokens come captured."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from trl import import_utils

from slipstream.config import Config
from slipstream.settings import TrainerConfig
from slipstream_trainer.algorithm.losses import trl_settings

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import Trainer, TrainingArguments


def _absent(*_: object, **__: object) -> bool:
    return False


_found = import_utils.is_vllm_available
import_utils.is_vllm_available = _absent
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl.trainer.grpo_config import GRPOConfig
        from trl.trainer.grpo_trainer import GRPOTrainer
finally:
    import_utils.is_vllm_available = _found

ADAM_BETAS, IMITATION_BETAS = (0.8, 0.95), (0.9, 0.999)
"""AdamW's memory of gradients and of their squares: 5 and 20 steps. With its usual 0.9 and 0.999 the first batches, in
which rewards are rare and gradients large, shorten every later step, and a direction goes on for steps after what it
was sampled from has gone. What is imitated stays the same, and has the usual ones.
"""

__all__ = ["GRPOConfig", "GRPOTrainer", "betas_of", "grpo_config", "teachers"]


def betas_of(t: TrainerConfig) -> tuple[float, float]:
    """AdamW's."""
    return IMITATION_BETAS if t.algorithm == "sft" else ADAM_BETAS


def teachers() -> dict[str, tuple[Callable[..., Trainer], Callable[..., TrainingArguments]]]:
    """Method → trainer and its settings, for rows that are token ids already."""
    from trl.trainer.dpo_config import DPOConfig
    from trl.trainer.dpo_trainer import DPOTrainer
    from trl.trainer.kto_config import KTOConfig
    from trl.trainer.kto_trainer import KTOTrainer
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    class Pairs(DPOTrainer):
        def _prepare_dataset(self, dataset: Dataset, *_: object) -> Dataset:
            return dataset

    class Labelled(KTOTrainer):
        def _prepare_dataset(self, dataset: Dataset, *_: object) -> Dataset:
            return dataset

    return {"sft": (SFTTrainer, SFTConfig), "dpo": (Pairs, DPOConfig), "kto": (Labelled, KTOConfig)}


def grpo_config(config: Config, output: Path) -> GRPOConfig:
    t = config.trainer
    gpu = torch.cuda.is_available()
    betas = betas_of(t)
    return GRPOConfig(
        output_dir=str(output),
        report_to=t.report_to or "none",
        per_device_train_batch_size=8,
        num_generations=8,
        learning_rate=1.0,
        weight_decay=t.weight_decay,
        max_grad_norm=t.max_grad_norm,
        beta=0.0,
        router_aux_loss_coef=0.0,  # routers are not trained, and our log-probabilities bring no loss of theirs
        seed=t.seed,
        bf16=gpu and t.dtype != "float32",
        use_cpu=not gpu,
        gradient_checkpointing=False,
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
        disable_dropout=True,
        temperature=1.0,
        optim="adamw_torch",
        adam_beta1=betas[0],
        adam_beta2=betas[1],
        lr_scheduler_type="constant",
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        **trl_settings(t),
    )
