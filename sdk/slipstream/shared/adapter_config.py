"""A LoRA adapter's ``adapter_config.json``: what rank and scale each of its modules has, as PEFT 0.21 and vLLM 0.32
read it, or why Slipstream does not take the adapter.

Proxy and trainer both read it here. Else the engine could serve another policy than the trainer goes on from.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.contract import check_lora_rank
from slipstream.errors import SlipstreamError

CONFIG_FILE_NAME = "adapter_config.json"
WEIGHTS_FILE_NAME = "adapter_model.safetensors"
CONFIG_BYTES = 4 * 2**20
MOST_DIGITS = 18
"""Of a number in a header or a configuration: such a number has 64 bits."""
MOST_ALPHA = 100_000
"""Adapters have 8 to 1,024. The weights are multiplied by it, over the rank."""
MOST_PATTERN_CHARS, MOST_MODULE_CHARS = 256, 200
"""Of an expression in ``rank_pattern`` or ``alpha_pattern``, and of a module's path that it is matched with."""
MOST_REPEATS, MOST_CHOICES = 2, 4
"""Parts of such an expression that may repeat, and these with its groups: each multiplies the ways to match."""
DEFAULT_ALPHA, DEFAULT_RANK = 8, 8
"""PEFT's defaults."""
WEIGHT_NAME_PATTERN = re.compile(r"^base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])(?:\.default)?\.weight$")
"""Name of a weight in the file → module of the base model, and which half it is."""
PLAIN_INITS = frozenset({"gaussian", "eva", "orthogonal", "mica", "lora_ga"})
"""Ways to begin that are over when the adapter is saved. The others change the base model's weights whenever PEFT loads
the adapter, which the engine does not.
"""
_ANEW = "train it again without this field"
_MERGED = f"{_ANEW}, or merge it into the base model (PEFT's merge_and_unload) and serve that model"
REFUSED_FIELDS = {
    "use_dora": ("DoRA, which vLLM does not compute", _MERGED),
    "bias": ("changed biases, of which vLLM takes none", _MERGED),
    "lora_bias": ("biases of LoRA's own, of which vLLM takes none", _MERGED),
    "modules_to_save": ("whole modules, of which vLLM takes none", _MERGED),
    "trainable_token_indices": ("embeddings of its own, of which vLLM takes none", _MERGED),
    "layer_replication": ("layers that the base model does not have", _MERGED),
    "kasa_config": ("KaSA, which changes the base model's weights when PEFT loads it", _MERGED),
    "use_bdlora": ("block-diagonal weights, which vLLM does not compute", _MERGED),
    "use_qalora": ("QALoRA, which vLLM does not compute", _ANEW),
    "alora_invocation_tokens": ("Activated LoRA, which vLLM would use from a prompt's first token on", _ANEW),
    "arrow_config": ("a router between adapters, which vLLM does not compute", _ANEW),
    "monteclora_config": ("random samples of its weights, which vLLM does not draw", _ANEW),
    "velora_config": ("VeLoRA's buffers, which vLLM does not take", "save it without velora_config and lora_velora_*"),
    "megatron_config": ("parts of Megatron's parallel layers", "save it as the whole layers of transformers"),
}
"""Field of PEFT's ``LoraConfig`` → what an adapter with it has, and what to do. Every other field is in the weights'
names and shapes, or changes nothing once the adapter is saved.
"""


class BadAdapter(SlipstreamError):
    """The adapter cannot be served; the message says why."""


def bounded_int(text: str) -> int:
    """A number of a file that somebody sent, bounded before anything is computed with it."""
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} digits, at most {MOST_DIGITS} are read")
    return int(text)


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """``rank_pattern`` and ``alpha_pattern``: the end of a module's path (a regular expression) → its own value. The
    first that fits counts.
    """

    rank: int
    alpha: float
    rslora: bool
    rank_pattern: dict[str, int]
    alpha_pattern: dict[str, float]
    parameters: tuple[str, ...] = ()
    """``target_parameters``: vLLM takes them, and the trainer adapts no such tensors."""

    @classmethod
    def read(cls, folder: Path, max_rank: int | None = None) -> AdapterConfig:
        """Raises ``BadAdapter``, which names field and fix. ``max_rank``: ``engine.max_lora_rank``; None: any."""
        try:
            if (size := (folder / CONFIG_FILE_NAME).stat().st_size) > CONFIG_BYTES:
                raise BadAdapter(f"{CONFIG_FILE_NAME} has {size} bytes, at most {CONFIG_BYTES} are read")
            found = json.loads((folder / CONFIG_FILE_NAME).read_bytes(), parse_int=bounded_int)
        except (OSError, ValueError, RecursionError) as e:
            raise BadAdapter(f"{CONFIG_FILE_NAME} cannot be read: {repr(e)[:200]}") from e
        if not isinstance(found, dict):
            raise BadAdapter(f"{CONFIG_FILE_NAME} cannot be read: it is no table of fields")
        _check_kind(found)
        rank_pattern, alpha_pattern = _pattern(found, "rank_pattern"), _pattern(found, "alpha_pattern")
        for field, rank in {"": found.get("r", DEFAULT_RANK), **rank_pattern}.items():
            where = f"rank_pattern, {field}: " if field else ""
            if why := check_lora_rank(rank, max_rank if max_rank is not None else 10**9):
                raise BadAdapter(f"{CONFIG_FILE_NAME}: {where}{why}")
        for alpha in (found.get("lora_alpha", DEFAULT_ALPHA), *alpha_pattern.values()):
            if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha <= MOST_ALPHA:
                raise BadAdapter(
                    f"{CONFIG_FILE_NAME}: lora_alpha {alpha!r} is no number above 0 and up to {MOST_ALPHA:,}"
                )
        return cls(
            found.get("r", DEFAULT_RANK),
            found.get("lora_alpha", DEFAULT_ALPHA),
            bool(found.get("use_rslora")),
            rank_pattern,
            alpha_pattern,
            tuple(map(str, found.get("target_parameters") or ())),
        )

    def rank_of(self, module: str) -> int:
        """``module``: its path in the base model."""
        return int(_match(self.rank_pattern, module, self.rank))

    def scale_of(self, module: str) -> float:
        """By what PEFT and vLLM multiply B · A."""
        rank = self.rank_of(module)
        alpha = _match(self.alpha_pattern, module, self.alpha)
        return float(alpha / (math.sqrt(rank) if self.rslora else rank))

    def check_rank(self, module: str, rank: int) -> None:
        """``rank``: that of its weights. vLLM takes weights of another rank, with a wrong scale. Experts that are one
        tensor have a rank for each.
        """
        owners = {name.rpartition(".")[0] for name in self.parameters}
        if any(owner and module.removesuffix(".base_layer").endswith(owner) for owner in owners):
            return
        if rank != (said := self.rank_of(module)):
            raise BadAdapter(
                f"{CONFIG_FILE_NAME}: r and rank_pattern give {module} the rank {said}, and its "
                f"weights have {rank}: write the "
                "rank that it was trained with"
            )


def _match(pattern: dict[str, Any], module: str, other: Any) -> Any:
    """As PEFT's ``get_pattern_key``. Raises ``BadAdapter``."""
    if pattern and len(module) > MOST_MODULE_CHARS:
        raise BadAdapter(f"a module's path has {len(module)} characters, at most {MOST_MODULE_CHARS} are matched")
    return next((value for key, value in pattern.items() if re.match(rf"(.*\.)?({key})$", module)), other)


def _pattern(found: dict[str, Any], field: str) -> dict[str, Any]:
    pattern = found.get(field) or {}
    if not isinstance(pattern, dict):
        raise BadAdapter(f"{CONFIG_FILE_NAME}: {field} {pattern!r} is no table of names and numbers")
    for key in pattern:
        if why := _dear(key):
            fix = "write the ends of the modules' paths out, each with its number"
            raise BadAdapter(f"{CONFIG_FILE_NAME}: {field}, {key[:80]}: {why}: {fix}")
        try:
            re.compile(f"({key})")
        except re.error as e:
            raise BadAdapter(
                f"{CONFIG_FILE_NAME}: {field}, {key}: the end of a module's name, and no expression: {e}"
            ) from e
    return pattern


_EXPRESSION_PARTS = re.compile(
    r"\\(?P<escaped>.)|\[\^?\]?(?:\\.|[^]\\])*\]|(?P<looks>\(\?[^:])|(?P<group>\((?:\?:)?)|"
    r"(?P<repeated>\)[*+{])|(?P<repeat>[*+?{])"
)
"""What of an expression decides how long a match of it can take."""


def _dear(key: str) -> str | None:
    """Why an expression of a stranger could take for ever. Engines match it as well, and cannot stop."""
    if len(key) > MOST_PATTERN_CHARS:
        return f"an expression of {len(key)} characters, at most {MOST_PATTERN_CHARS} are read"
    parts = list(_EXPRESSION_PARTS.finditer(key))
    if any(m["looks"] or (m["escaped"] or "").isdigit() for m in parts):
        return "an expression that looks around or back"
    if any(m["repeated"] for m in parts):
        return "an expression in which a group repeats"
    repeats, groups = (sum(m[kind] is not None for m in parts) for kind in ("repeat", "group"))
    if repeats > MOST_REPEATS or repeats + groups > MOST_CHOICES:
        return f"an expression with more than {MOST_REPEATS} parts that repeat, or {MOST_CHOICES} that can be chosen"
    return None


def _check_kind(found: dict[str, Any]) -> None:
    """Raises ``BadAdapter`` for what is no plain LoRA."""
    if (kind := found.get("peft_type", "LORA")) != "LORA":
        raise BadAdapter(f"{CONFIG_FILE_NAME}: peft_type {kind!r}: vLLM takes LORA alone; train it again as one")
    for field, (what, fix) in REFUSED_FIELDS.items():
        value = found.get(field)
        if value and value != "none":
            raise BadAdapter(f"{CONFIG_FILE_NAME}: {field} = {json.dumps(value)[:80]}: the adapter has {what}: {fix}")
    for field in ("target_modules", "exclude_modules"):
        value = found.get(field)
        if isinstance(value, str) and any(m["repeated"] for m in _EXPRESSION_PARTS.finditer(value)):
            why = "an expression in which a group repeats, which an engine may match for ever"
            raise BadAdapter(
                f"{CONFIG_FILE_NAME}: {field}, {value[:80]}: {why}: write the modules' names out, as a list"
            )
    init = found.get("init_lora_weights", True)
    if isinstance(init, str) and init.lower() not in PLAIN_INITS:
        raise BadAdapter(
            f"{CONFIG_FILE_NAME}: init_lora_weights = {init[:40]!r}: PEFT changes the base model's "
            "weights with it, and the "
            "engine does not: save it with path_initial_model_for_weight_conversion; or set true, if the engine and "
            "trainer.model have the changed base model"
        )
