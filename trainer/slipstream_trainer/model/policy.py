"""The model that is trained: base weights, LoRA on top, and nothing that vLLM would refuse."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from slipstream.config import Config
from slipstream.contract import check_lora_rank
from slipstream.errors import ConfigError, StartError
from slipstream.shared.hub import check_own_code, model_folder
from slipstream_trainer.model.adapter import load_adapter
from slipstream_trainer.model.compute import capped
from slipstream_trainer.model.memory import ACTIVATION_SHARE, activation_bytes
from slipstream_trainer.model.shards import forget_reading, reading_options

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


def auto_class(described: PretrainedConfig) -> Any:
    """``AutoModelForCausalLM``, or ``AutoModelForImageTextToText`` for a model that also sees.

    Some such models have a class for their text alone, too. Its modules have shorter names, and vLLM, which serves
    the whole model, would load an adapter with those names and use nothing of it. Raises ``StartError`` for a model
    that neither class knows.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    written = getattr(described, "architectures", None) or ["?"]
    kinds: tuple[Any, ...] = (AutoModelForCausalLM, AutoModelForImageTextToText)
    for kind in reversed(kinds) if written[0].endswith("ForConditionalGeneration") else kinds:
        if type(described) in kind._model_mapping or type(described).__name__ in getattr(described, "auto_map", {}):
            return kind
    if getattr(described, "auto_map", None):
        return AutoModelForCausalLM
    raise StartError(
        f"transformers has no class for {written[0]} (model_type {described.model_type}) that writes text: the model "
        "can be served, and not be trained; set trainer.enabled = false, or choose another model"
    )


def described_as(path: str, layers: int | None = None) -> PretrainedConfig:
    """A model's ``config.json``. ``layers``: only so many of its first layers."""
    from transformers import AutoConfig

    check_own_code(path)
    described: PretrainedConfig = AutoConfig.from_pretrained(path)
    if layers is not None:
        text = described.get_text_config()
        text.num_hidden_layers = layers
        if kinds := getattr(text, "layer_types", None):
            text.layer_types = kinds[:layers]
    return described


def skeleton(path: str, layers: int | None = None) -> PreTrainedModel:
    """The model without weights, by its ``config.json`` alone. Raises transformers' error for an unknown model."""
    described = described_as(path, layers)
    with torch.device("meta"):
        model: PreTrainedModel = auto_class(described).from_config(described)
    return model


def attention_of(model: type[PreTrainedModel] | PreTrainedModel, *, tree: bool) -> str:
    """``attn_implementation`` for this class. ``tree``: rows of branches are wanted, for which a GPU has
    FlexAttention.
    """
    if tree and torch.cuda.is_available() and getattr(model, "_supports_flex_attn", False):
        return "flex_attention"
    if capped(model):
        return "eager"
    return "sdpa" if getattr(model, "_supports_sdpa", False) else "eager"


ROUTER_LAYERS = frozenset({"gate", "router", "shared_expert_gate"})
"""Layers that choose experts. A LoRA there would move tokens to other experts between sampling and training."""
REFUSED_SETTINGS = {
    "falcon_h1": frozenset({"out_proj", "conv1d"}),
    "nemotron_h": frozenset({"out_proj", "conv1d"}),
    "glm": frozenset({"gate_up_proj"}),
    "glm4": frozenset({"gate_up_proj"}),
}
"""Model type → layers that PEFT (state-space models) or vLLM (it has two layers for GLM's one) does not take."""


@dataclass(slots=True)
class Targets:
    """What LoRA adapts. ``names``: what PEFT gets."""

    names: list[str]
    says: str
    """For people: what is adapted, and what is not and why."""


def _blocks(model: PreTrainedModel) -> dict[str, torch.nn.Module]:
    """The language model's blocks by name: of several stacks of layers (a picture's, a sound's) its own decoder's."""
    found = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.ModuleList) and len(m)}
    text = model.config.get_text_config()
    layers = getattr(text, "num_hidden_layers", None)
    whole = [n for n in found if n.rpartition(".")[2] in ("layers", "h", "blocks") and len(found[n]) == layers]
    seeing = [n for n in whole if _SEEING.search(n)]
    return {n: found[n] for n in whole if n not in seeing}


_SEEING = re.compile(r"(^|[._])(visual|vision|image|audio|speech)([._]|$)|vision_tower|audio_tower")


def choose_targets(model: PreTrainedModel, wanted: list[str] | str) -> Targets:
    """``wanted``: ``trainer.lora_targets``. A list stands as it is. ``"all-linear"`` means each linear layer of the
    language model's blocks that vLLM takes an adapter for: attention, MLPs and shared experts.

    Routed experts are one tensor and not linear layers, and stay as they are.
    """
    if not isinstance(wanted, str):
        return Targets(list(wanted), f"LoRA adapts {', '.join(wanted)}, as trainer.lora_targets says")
    linear, refused = _linear(model)
    blocks = tuple(f"{n}." for n in _blocks(model))
    takes = [n for n in linear if n.startswith(blocks) and _last(n) not in refused | ROUTER_LAYERS] if blocks else []
    if not takes:
        raise ConfigError("trainer.lora_targets = 'all-linear' finds no linear layer in this model: name some")
    kinds = list(dict.fromkeys(_last(n) for n in takes))
    left = list(dict.fromkeys(_last(n) for n in linear if n not in takes))
    said = f"LoRA adapts {', '.join(kinds)}"
    if experts := any(_last(n) == "experts" for n, _ in model.named_modules()):
        left = ["the routed experts", *left]
    if left:
        said += f"; it leaves out {', '.join(left)}"
    if experts:
        said += " (set trainer.lora_targets to choose others)"
    unique = not any(_last(n) in kinds for n in linear if n not in takes)
    return Targets(kinds if unique else takes, said)


def _linear(model: PreTrainedModel) -> tuple[list[str], frozenset[str]]:
    """The names of its linear layers but the head, and what of them no adapter can have."""
    head = model.get_output_embeddings()
    names = [name for name, m in model.named_modules() if isinstance(m, torch.nn.Linear) and m is not head]
    return names, REFUSED_SETTINGS.get(str(model.config.get_text_config().model_type), frozenset())


def _last(name: str) -> str:
    return name.rpartition(".")[2]


@contextlib.contextmanager
def targets_as_given() -> Iterator[None]:
    """PEFT takes ``gate_proj``, ``up_proj`` and ``down_proj`` of a mixture of experts to be names of its routed
    experts (findings/README.md). Here they mean what the model's modules are called.
    """
    from peft.utils import transformers_weight_conversion as conversion

    before = conversion.convert_peft_config_for_transformers
    conversion.convert_peft_config_for_transformers = lambda *_, **__: None
    try:
        yield
    finally:
        conversion.convert_peft_config_for_transformers = before


def check_targets(config: Config, model: PreTrainedModel) -> None:
    """Raises ``ConfigError`` for a target that the model does not have as a linear layer: PEFT would leave it out
    without a word, or adapt what vLLM does not take.
    """
    wanted = config.trainer.lora_targets
    if isinstance(wanted, str):
        return
    there, refused = _linear(model)
    short = sorted({_last(name) for name in there})
    path = model.config.name_or_path
    for target in wanted:
        if _last(target) in refused:
            fits = ", ".join(n for n in short if n not in refused)
            raise ConfigError(f"trainer.lora_targets: {target!r} of {path} can't be adapted; it has {fits}")
        if not any(name == target or name.endswith(f".{target}") for name in there):
            near = difflib.get_close_matches(target, short, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(short)}"
            raise ConfigError(f"trainer.lora_targets: {path} has no linear layer {target!r}; {hint}")


def check_quantize(config: Config) -> None:
    """Raises ``ConfigError`` where a 4-bit base can't be loaded."""
    if config.trainer.quantize == "4bit":
        _check_4bit("trainer.quantize = '4bit'")


UNSLOTH_ADVICE = "pip install 'slipstream[unsloth]' in an environment of its own, and set trainer.python to its Python"


def check_frugal(config: Config) -> None:
    """Raises ``ConfigError`` where mode frugal is asked for and Unsloth is not there: without it the trainer would take
    more memory, just where there is not enough.
    """
    if config.trainer.mode != "frugal":
        return
    if not torch.cuda.is_available():
        raise ConfigError("trainer.mode = 'frugal' needs a GPU: set trainer.mode = 'auto'")
    if importlib.util.find_spec("unsloth") is None:
        raise ConfigError(f"trainer.mode = 'frugal' needs Unsloth: {UNSLOTH_ADVICE}")


def _check_4bit(what: str) -> None:
    if not torch.cuda.is_available():
        raise ConfigError(f"{what} needs a GPU")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError(f"{what} needs bitsandbytes: pip install bitsandbytes")


def stored_as(described: PretrainedConfig) -> str:
    """The method by which a model's weights are quantised in its files, as its ``config.json`` says. Empty: none."""
    found = getattr(described, "quantization_config", None) or {}
    told = found if isinstance(found, dict) else found.to_dict()
    return str(told.get("quant_method", "")).rpartition(".")[2].lower()


def base_options(config: Config, described: PretrainedConfig) -> dict[str, object]:
    """What transformers needs so that the base model can be trained through. Weights in FP8, MXFP4 and
    compressed-tensors become plain ones of the same values. Raises ``ConfigError`` for those that cannot.
    """
    from transformers import CompressedTensorsConfig, FineGrainedFP8Config
    from transformers.utils.quantization_config import Mxfp4Config

    kind = stored_as(described)
    if not kind:
        return {}
    where = f"the base model {model_path(config)} is stored as {kind}"
    if config.trainer.quantize == "4bit" and kind != "bitsandbytes":
        raise ConfigError(f"{where}: set trainer.quantize = 'none', or trainer.model to the unquantised model")
    if kind == "bitsandbytes":
        _check_4bit(where + ", which")
        return {"device_map": {"": device()}}
    if kind == "fp8":
        return {"quantization_config": FineGrainedFP8Config(dequantize=True)}
    if kind == "mxfp4":
        return {"quantization_config": Mxfp4Config(dequantize=True)}
    if kind != "compressed-tensors":
        raise ConfigError(
            f"{where}, and can't be trained through: set trainer.model to the unquantised model that it was made "
            "from (the engine goes on with this one), or trainer.enabled = false"
        )
    if importlib.util.find_spec("compressed_tensors") is None:
        raise ConfigError(f"{where}, which the trainer reads with compressed-tensors: pip install compressed-tensors")
    return {"quantization_config": CompressedTensorsConfig(run_compressed=False)}


def as_plain(base: PreTrainedModel) -> None:
    """Take from a base that was stored quantised what rounds in its forward: compressed-tensors leaves linear layers
    that round their inputs again, through which no gradient passes (findings/README.md).
    The weights stay.

    Raises ``StartError`` for a linear layer through which none passes all the same.
    """
    for name, module in base.named_modules():
        if vars(module).pop("quantization_scheme", None) is not None:
            vars(module).pop("forward", None)
            vars(module).pop("quantization_status", None)
            for scale in module._parameters.keys() - {"weight", "bias"}:
                del module._parameters[scale]
        if isinstance(module, torch.nn.Linear):
            one = torch.zeros_like(module.weight[:1], requires_grad=True)
            if not module(one).requires_grad:
                raise StartError(
                    f"no gradient passes through {name} of {base.config.name_or_path}, as its weights are stored: set "
                    "trainer.model to the unquantised model that it was made from"
                )


log = logging.getLogger(__name__)


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
    check_frugal(config)


def model_path(config: Config) -> str:
    path = config.trainer.model or config.engine.model
    if path is None:
        raise StartError("no model: set trainer.model or engine.model")
    if path.startswith(("/", ".")) and not Path(path).is_dir():
        raise StartError(f"the model {path} does not exist: give an existing folder, or a hub name")
    return path


def device() -> torch.device:
    import os

    own = int(os.environ.get("LOCAL_RANK", "0"))
    return torch.device("cuda", own) if torch.cuda.is_available() else torch.device("cpu")


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


def _lora(config: Config, targets: list[str]) -> dict[str, Any]:
    t = config.trainer
    size = {"r": t.lora_rank, "lora_alpha": t.lora_alpha, "use_rslora": t.rslora}
    return {**size, "target_modules": targets, "lora_dropout": 0.0, "bias": "none"}


def _load_base(config: Config, path: str, bare: PreTrainedModel, layers: int | None) -> PreTrainedModel:
    """``bare``: its skeleton. ``layers``: only so many of its first layers."""
    from transformers import BitsAndBytesConfig

    tree = config.trainer.mode in ("auto", "tree") and takes_trees(bare.config)
    options: dict[str, Any] = {"dtype": dtype_of(config), "attn_implementation": attention_of(bare, tree=tree)}
    options |= (stored := base_options(config, bare.config))
    if layers is not None:
        options["config"] = described_as(path, layers)
    if config.trainer.quantize == "4bit":
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
        options["device_map"] = {"": device()}
    if config.trainer.sharding == "fsdp2" and layers is None and not stored:
        options |= reading_options(bare)
    base: PreTrainedModel = auto_class(bare.config).from_pretrained(path, **options)
    forget_reading(base)
    if "quantization_config" in stored:
        as_plain(base)
    base.config.use_cache = False
    return base


def _load_frugal(config: Config, path: str) -> tuple[PeftModel, PreTrainedTokenizerBase] | None:
    """Unsloth's model. None: it is not to be had. Raises ``ConfigError`` if it was asked for then."""
    if not torch.cuda.is_available():
        return None
    try:
        from unsloth import FastLanguageModel
    except (ImportError, RuntimeError, NotImplementedError) as e:
        said = f"Unsloth can't be used ({type(e).__name__}: {e})"
        if config.trainer.mode == "frugal":
            raise ConfigError(f"trainer.mode = 'frugal': {said}: {UNSLOTH_ADVICE}") from e
        log.warning("the model may not fit this GPU, and %s: %s", said, UNSLOTH_ADVICE)
        return None
    t = config.trainer
    model, tokenizer = FastLanguageModel.from_pretrained(
        path,
        # beyond the context Unsloth stretches the positions, which makes another model
        max_seq_length=min(t.token_budget, context_of(path)),
        dtype=dtype_of(config),
        load_in_4bit=t.quantize == "4bit",
        local_files_only=Path(path).is_dir(),
    )
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    targets = names if t.lora_targets == "all-linear" else t.lora_targets
    more = {"use_gradient_checkpointing": "unsloth", "random_state": t.seed}
    model = FastLanguageModel.get_peft_model(model, **_lora(config, targets), **more)
    return model, tokenizer


def context_of(path: str) -> int:
    """Positions of a row that the model knows."""
    from transformers import AutoConfig

    text = AutoConfig.from_pretrained(path).get_text_config()
    return getattr(text, "max_position_embeddings", None) or sys.maxsize


def is_frugal(base: PreTrainedModel) -> bool:
    """Unsloth has loaded it."""
    return "unsloth" in sys.modules and hasattr(base, "max_seq_length")


def frugal_is_needed(config: Config, path: str) -> bool:
    """Would base and one micro-batch, all layers recomputed, not fit the GPU's free memory? False: not known."""
    from transformers import AutoConfig

    weights = sum(f.stat().st_size for f in Path(path).glob("*.safetensors"))
    # with engine.share what is free is no measure: the engine has it
    if not torch.cuda.is_available() or not weights or config.engine.share:
        return False
    text = AutoConfig.from_pretrained(path).get_text_config()
    tokens = config.trainer.token_budget
    entries = tokens * text.hidden_size * 2 * text.num_hidden_layers
    free, _ = torch.cuda.mem_get_info(device())
    needed = weights + entries + activation_bytes(text, tokens, 2)
    return bool(needed > ACTIVATION_SHARE * free)


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """In transformers' own form. Mistral's (``tekken.json``) has no chat template, and takes a special token in a text
    for its letters.
    """
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    folder = model_folder(path)
    if type(tokenizer).__name__ != "MistralCommonBackend" or folder is None or not (folder / "tekken.json").is_file():
        return tokenizer
    from transformers.integrations.mistral.tokenizer import convert_tekken_tokenizer

    return convert_tekken_tokenizer(str(folder / "tekken.json"))


def load_policy(config: Config, *, layers: int | None = None) -> tuple[PeftModel, PreTrainedTokenizerBase]:
    """(PEFT model, tokenizer), LoRA weights as ``trainer.seed`` makes them (B is zero: the policy starts as the
    base model).

    ``layers``: only so many of the model's first layers. ``trainer.mode = "auto"`` takes Unsloth where the memory does
    not do otherwise. Raises ``ConfigError`` for a LoRA that vLLM would refuse and ``StartError`` when the weights
    can't be read.
    """
    from peft import LoraConfig, get_peft_model
    from transformers import set_seed

    check_lora(config)
    path = model_path(config)
    mode = config.trainer.mode
    try:
        bare = skeleton(path, layers)
        check_targets(config, bare)
        set_seed(config.trainer.seed)
        if (mode == "frugal" or (mode == "auto" and frugal_is_needed(config, path))) and (
            found := _load_frugal(config, path)
        ):
            model, tokenizer = found
        else:
            tokenizer = load_tokenizer(path)
            targets = choose_targets(bare, config.trainer.lora_targets)
            log.info("%s", targets.says)
            base = _load_base(config, path, bare, layers)
            set_seed(config.trainer.seed)
            with targets_as_given():
                model = get_peft_model(base, LoraConfig(**_lora(config, targets.names), task_type="CAUSAL_LM"))
    except (OSError, ValueError, KeyError, ImportError, AttributeError, RuntimeError) as e:
        raise StartError(f"the model {path} can't be loaded: {type(e).__name__}: {e}") from e
    without_chance(model)
    if config.trainer.init_adapter:
        load_adapter(model, Path(config.trainer.init_adapter))
    return model, tokenizer


def without_chance(model: torch.nn.Module) -> None:
    """No dropout and no jitter: the engine has none, and the policy that is trained has to be the one that sampled. TRL
    switches off the modules for it, and not what a layer does by a number of its own (Seed-OSS, Phi, StarCoder2).
    """
    for module in model.modules():
        for holder in (module, getattr(module, "config", None)):
            for name, value in vars(holder).items() if holder is not None else ():
                if isinstance(value, float) and any(part in name for part in ("dropout", "pdrop", "jitter")):
                    setattr(holder, name, 0.0)
