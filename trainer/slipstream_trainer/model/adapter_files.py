"""The policy's adapter as PEFT's files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from safetensors.torch import save_file

from slipstream.shared.adapter_config import CONFIG_FILE_NAME, WEIGHTS_FILE_NAME
from slipstream_trainer.model.weights import trained_of

if TYPE_CHECKING:
    from peft import PeftModel


@dataclass(slots=True)
class PolicyFiles:
    """What stays the same in all adapters of a policy."""

    config: bytes
    tensors: dict[str, str | torch.Tensor]
    """Name in the file → the policy's name of that weight, or the tensor, if it is not trained."""


_FILES: WeakKeyDictionary[torch.nn.Module, PolicyFiles] = WeakKeyDictionary()


def save_adapter(model: PeftModel, folder: Path, weights: dict[str, torch.Tensor] | None = None) -> None:
    """Write the files that PEFT's ``save_pretrained`` writes, but for its model card. ``weights``: by the policy's
    names; None: as they are now.

    ``save_pretrained`` looks through the whole model and makes a model card: a tenth of a second each time.
    """
    if (files := _FILES.get(model)) is None:
        model.save_pretrained(str(folder), safe_serialization=True, save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)
        files = _FILES[model] = PolicyFiles((folder / CONFIG_FILE_NAME).read_bytes(), _tensors(model))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_FILE_NAME).write_bytes(files.config)
    now = weights if weights is not None else dict(trained_of(model))
    found = {name: now[value] if isinstance(value, str) else value for name, value in files.tensors.items()}
    save_file(
        {n: t.detach().cpu().contiguous() for n, t in found.items()}, folder / WEIGHTS_FILE_NAME, {"format": "pt"}
    )


def _tensors(model: PeftModel) -> dict[str, str | torch.Tensor]:
    """PEFT's tensors are the policy's own weights, in the same memory."""
    trained = {p.data_ptr(): name for name, p in trained_of(model) if p.numel()}
    from peft import get_peft_model_state_dict

    found = get_peft_model_state_dict(model, save_embedding_layers=False)
    return {name: trained.get(t.data_ptr(), t.detach().cpu()) for name, t in found.items()}
