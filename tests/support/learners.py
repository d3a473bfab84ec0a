"""Both learners on the tiny model, and what their gradients are, weight by weight."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from tests.support.tinker_server import skyrl_python
from tests.support.tiny import make_config
from transformers import AutoModelForCausalLM

from slipstream.config import Config
from slipstream.settings.trainer import LOSS_FUNCTIONS
from slipstream_trainer.algorithm.losses import trl_settings
from slipstream_trainer.run.start import start_trainer

LOSSES = list(LOSS_FUNCTIONS)
needs_server = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        skyrl_python() is None or importlib.util.find_spec("tinker") is None,
        reason="needs the open server (tests/support/tinker_server.py)",
    ),
]
SHARED_A = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers that have one lora_A at the service."""
PROBE = 1e4
"""AdamW's eps that is so large that a step is the gradient itself, times ``GAIN``."""
GAIN = 30.0


def tinker_config(model: Path, data: Path, url: str, **trainer: Any) -> Config:
    config = make_config(model, data, backend="tinker", lora_alpha=32.0, max_kl=1e3, **trainer)
    config.plugins["tinker"] = {"url": url, "deadline": 240.0}
    return config


def tinker_trainer(config: Config) -> Any:
    return start_trainer(config, None)[0]


def use(trainer: Any, loss: str, beta: float) -> None:
    """The settings that differ between losses, on a trainer that is there already."""
    t = trainer.config.trainer
    t.loss, t.beta = loss, beta
    trainer.beta = beta
    found = trl_settings(t)
    trainer.loss_type = found["loss_type"]
    trainer.importance_sampling_level = found["importance_sampling_level"]
    trainer.epsilon_low, trainer.epsilon_high = found["epsilon"], found["epsilon_high"]


def exported(learner: Any, folder: Path) -> dict[str, torch.Tensor]:
    learner.adapter(folder)
    return load_file(folder / "adapter_model.safetensors")


def learner_gradients(trainer: Any, folder: Path) -> dict[str, torch.Tensor]:
    """Of what ``backward`` left, by the names in an adapter's file. The weights stay as they were."""
    learner = trainer.learner
    if hasattr(learner, "model"):
        named = learner.model.named_parameters()
        return {n.replace(".default", ""): p.grad.double() for n, p in named if p.grad is not None}
    before, gradient = learner.save(), list(learner._pending)
    old = exported(learner, folder / "old")
    count = sum(len(g.chains) for g in gradient)
    for g in gradient:
        slopes = [s * learner._undo(len(s), count) for s in g.slopes]
        learner.run.backward(g.chains, g.logprobs, slopes)
    learner.run.step(learning_rate=GAIN * PROBE, beta1=0.0, beta2=0.0, eps=PROBE, weight_decay=0.0)
    learner._state = None
    new = exported(learner, folder / "new")
    learner.restore(before)
    moved = {n: (old[n].double() - new[n].double()) / GAIN for n in old}
    return {n: m * PROBE / (PROBE - m.abs()) for n, m in moved.items()}  # of PROBE · g / (|g| + PROBE)


def exact_model(model: Path, adapter: Path) -> PeftModel:
    """In fp64, with an adapter that can be trained."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    made = PeftModel.from_pretrained(base, str(adapter), is_trainable=True, autocast_adapter_dtype=False)
    for name, p in made.named_parameters():
        if "lora_" in name:
            p.data = p.data.double()
    return made


def exact_gradients(model: PeftModel, *, shared: bool) -> dict[str, torch.Tensor]:
    """``shared``: lora_A's as the service has them, each copy with the sum."""
    found = {n.replace(".default", ""): p.grad for n, p in model.named_parameters() if p.grad is not None}
    if not shared:
        return found
    summed = dict(found)
    for name in (n for n in found if "lora_A" in n):
        layer = name.split(".lora_A")[0].rpartition(".")[2]
        kinds = next((k for k in SHARED_A if layer in k), (layer,))
        summed[name] = torch.stack([found[name.replace(layer, k)] for k in kinds]).sum(0)
    return summed
