"""The model that is trained: base weights, LoRA on top, and nothing that vLLM would refuse."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from slipstream.config import Config
from slipstream.contract import check_lora_rank
from slipstream.errors import ConfigError, StartError
from slipstream_trainer.memory import SHARE, activation_bytes
from slipstream_trainer.targets import check_quantize, check_targets

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


log = logging.getLogger(__name__)

ADAPTER = "default"
"""PEFT's name of the one adapter."""


def check_lora(config: Config) -> None:
    """Raises ``ConfigError`` for a LoRA that vLLM would refuse, before anything is loaded."""
    t = config.trainer
    if why := check_lora_rank(t.lora_rank, config.engine.max_lora_rank):
        raise ConfigError(f"trainer.lora_rank: {why}, so vLLM would refuse it")
    if isinstance(t.lora_targets, list):
        bad = [n for n in t.lora_targets if n.split(".")[-1] in ("lm_head", "embed_tokens")]
        if bad or not t.lora_targets:
            raise ConfigError(
                f"trainer.lora_targets {bad or 'is empty'}: name linear layers of the blocks (q_proj, up_proj, …)"
            )
    check_quantize(config)


def check_adapter(folder: Path, max_rank: int) -> str | None:
    """Why vLLM would refuse the adapter in ``folder`` (PEFT's files), or None."""
    try:
        found = json.loads((folder / "adapter_config.json").read_text())
    except (OSError, ValueError) as e:
        return f"adapter_config.json: {e}"
    if not (folder / "adapter_model.safetensors").is_file():
        return "adapter_model.safetensors is missing"
    if found.get("peft_type") != "LORA":
        return f"peft_type {found.get('peft_type')}: LORA only"
    if found.get("use_dora"):
        return "DoRA"
    if found.get("modules_to_save"):
        return "modules_to_save"
    if found.get("bias", "none") != "none":
        return "bias"
    rank = found.get("r")
    if why := check_lora_rank(rank, max_rank):
        return why
    if found.get("rank_pattern") or found.get("alpha_pattern"):
        return "rank_pattern or alpha_pattern"
    return None


def model_path(config: Config) -> str:
    path = config.trainer.model or config.engine.model
    if path is None:
        raise StartError("no model: set trainer.model or engine.model")
    return path


def device() -> torch.device:
    import os

    return (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


def dtype_of(config: Config) -> torch.dtype:
    named = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    return named.get(config.trainer.dtype) or (torch.bfloat16 if torch.cuda.is_available() else torch.float32)


def takes_trees(model_config: PretrainedConfig) -> bool:
    """Full attention in every layer. With sliding windows or linear attention a branch's distance is not its depth."""
    text = model_config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or [])
    if kinds:
        return kinds == {"full_attention"}
    if getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True):
        return False
    return getattr(text, "model_type", "") not in (
        "mamba",
        "mamba2",
        "falcon_mamba",
        "rwkv",
        "recurrent_gemma",
        "jamba",
        "zamba",
        "zamba2",
    )


def _lora(config: Config) -> LoraConfig:
    from peft import LoraConfig

    t = config.trainer
    return LoraConfig(
        r=t.lora_rank,
        lora_alpha=cast("int", t.lora_alpha),
        target_modules=t.lora_targets,
        use_rslora=t.rslora,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )


def _load_base(config: Config, path: str) -> PreTrainedModel:
    from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

    on_gpu = torch.cuda.is_available()
    options: dict[str, Any] = {"dtype": dtype_of(config)}
    wants_tree = config.trainer.mode in ("auto", "tree") and takes_trees(AutoConfig.from_pretrained(path))
    options["attn_implementation"] = "flex_attention" if on_gpu and wants_tree else "sdpa"
    if config.trainer.quantize == "4bit":
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
        options["device_map"] = {"": device()}
    return AutoModelForCausalLM.from_pretrained(path, **options)


def _load_frugal(config: Config, path: str) -> tuple[PeftModel, PreTrainedTokenizerBase] | None:
    """Unsloth's model, or None where it is not to be had."""
    if not torch.cuda.is_available():
        return None
    try:
        from unsloth import FastLanguageModel
    except (ImportError, RuntimeError, NotImplementedError) as e:
        log.warning("mode frugal: Unsloth can't be used (%s), going on without", e)
        return None
    t = config.trainer
    model, tokenizer = FastLanguageModel.from_pretrained(
        path,
        max_seq_length=t.token_budget,
        dtype=dtype_of(config),
        load_in_4bit=t.quantize == "4bit",
        local_files_only=Path(path).is_dir(),
    )
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    targets = names if t.lora_targets == "all-linear" else t.lora_targets
    model = FastLanguageModel.get_peft_model(
        model,
        r=t.lora_rank,
        lora_alpha=t.lora_alpha,
        target_modules=targets,
        use_rslora=t.rslora,
        lora_dropout=0.0,
        bias="none",
        use_gradient_checkpointing="unsloth",
        random_state=t.seed,
    )
    return model, tokenizer


def is_frugal(base: PreTrainedModel) -> bool:
    """Unsloth has loaded it."""
    return "unsloth" in sys.modules and hasattr(base, "max_seq_length")


def frugal_is_needed(config: Config, path: str) -> bool:
    """Would base and one micro-batch, all layers recomputed, not fit the GPU's free memory? False: not known."""
    from transformers import AutoConfig

    weights = sum(f.stat().st_size for f in Path(path).glob("*.safetensors"))
    if (
        not torch.cuda.is_available() or not weights or config.engine.share
    ):  # what is free then is no measure: the engine has it
        return False
    text = AutoConfig.from_pretrained(path).get_text_config()
    tokens = config.trainer.token_budget
    entries = tokens * text.hidden_size * 2 * text.num_hidden_layers
    free, _ = torch.cuda.mem_get_info(device())
    needed = weights + entries + activation_bytes(text, tokens, 2)
    return bool(needed > SHARE * free)


def load_policy(config: Config) -> tuple[PeftModel, PreTrainedTokenizerBase]:
    """(PEFT model, tokenizer), LoRA weights as ``trainer.seed`` makes them (B is zero: the policy starts as the
    base model).

    ``trainer.mode = "auto"`` takes Unsloth where the memory does not do otherwise. Raises ``ConfigError`` for a
    LoRA that vLLM would refuse and ``StartError`` when the weights can't be read.
    """
    from peft import get_peft_model
    from transformers import AutoTokenizer, set_seed

    check_lora(config)
    path = model_path(config)
    mode = config.trainer.mode
    try:
        check_targets(config, path)
        set_seed(config.trainer.seed)
        if (mode == "frugal" or (mode == "auto" and frugal_is_needed(config, path))) and (
            found := _load_frugal(config, path)
        ):
            model, tokenizer = found
        else:
            tokenizer = AutoTokenizer.from_pretrained(path)
            base = _load_base(config, path)
            base.config.use_cache = False
            set_seed(config.trainer.seed)
            model = get_peft_model(base, _lora(config))
    except (OSError, ValueError, KeyError, ImportError) as e:
        raise StartError(f"the model {path} can't be loaded: {e}") from e
    if config.trainer.init_adapter:
        load_adapter(model, Path(config.trainer.init_adapter))
    return model, tokenizer


def load_adapter(model: PeftModel, folder: Path) -> None:
    """Put the weights of an adapter's folder in. Raises ``StartError`` when they are not of this shape."""
    from peft import load_peft_weights, set_peft_model_state_dict

    try:
        weights = load_peft_weights(str(folder), device="cpu")
        found = set_peft_model_state_dict(model, weights, adapter_name=ADAPTER)
    except (OSError, ValueError, RuntimeError) as e:
        raise StartError(f"the adapter {folder} can't be loaded: {e}") from e
    missing = [k for k in getattr(found, "missing_keys", []) if "lora_" in k]
    if missing or getattr(found, "unexpected_keys", []):
        raise StartError(
            f"the adapter {folder} is not of this model and these lora_targets ({len(missing)} weights missing)"
        )
