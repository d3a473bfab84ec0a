"""An adapter's files: where they are for this proxy and for the engine, and whether they are an adapter that vLLM
takes.

The answer comes before the engine is asked. It names file and field.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from slipstream.config import Config
from slipstream.contract import Adapter, folder_of
from slipstream.shared.adapter_config import (
    CONFIG_FILE_NAME,
    WEIGHT_NAME_PATTERN,
    WEIGHTS_FILE_NAME,
    AdapterConfig,
    BadAdapter,
    bounded_int,
)
from slipstream.shared.files import sha256_of
from slipstream.shared.hub import model_folder
from slipstream_proxy.json_types import JsonObject

MATCHING_TIMEOUT_S = 5.0
"""Seconds for all expressions of an adapter with all its modules; an ordinary adapter takes milliseconds."""


class AdapterFiles:
    def __init__(self, config: Config) -> None:
        self.config = config

    def folder(self, adapter: Adapter) -> Path:
        """As this proxy sees it: the name says where, no list and no journal does."""
        return self.config.adapters_dir / folder_of(adapter.name)

    def own_path(self, adapter: Adapter) -> str:
        """As vLLM sees the folder of this proxy (``engine.adapters_dir``)."""
        return str(Path(self.config.engine.adapters_dir or self.config.adapters_dir) / folder_of(adapter.name))

    def has_own(self, adapter: Adapter) -> bool:
        return self.folder(adapter).is_dir() and not self.leads_out(adapter)

    def leads_out(self, adapter: Adapter) -> bool:
        """Whether the folder is a link to another: nothing is read, loaded or deleted through one. Its name is one part
        of a path, and neither ``.`` nor ``..``.
        """
        return self.folder(adapter).is_symlink()

    def exist(self, adapter: Adapter) -> bool:
        """Whether any proxy has them."""
        return self.has_own(adapter) or adapter.engine_path is not None

    def path_for_engine(self, adapter: Adapter) -> str:
        """Where vLLM sees the files. If they are not here, the proxy that took the adapter in knows the path."""
        if adapter.engine_path is not None and not self.has_own(adapter):
            return adapter.engine_path
        return self.own_path(adapter)

    def engine_paths(self, adapter: Adapter) -> tuple[str, ...]:
        """All paths that an engine may have it from: this proxy's, and that of the proxy that took it in."""
        return (self.own_path(adapter), *((adapter.engine_path,) if adapter.engine_path is not None else ()))


def _real(path: Path) -> Path:
    """Without links. ``Path.resolve`` raises where links go round in circles."""
    return Path(os.path.realpath(path))


ADAPTER_NAME_PATTERN = re.compile(r"^(?P<model>[A-Za-z0-9._~-]{1,120})@(?P<version>[1-9][0-9]{0,8})$")
HEADER_BYTES = 16 * 2**20
"""Of a safetensors header: an entry has about 150, and an adapter of the largest models some 50,000 entries."""
MOST_AXES = 8
_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2} | dict.fromkeys(
    ("F8_E4M3", "F8_E5M2", "I8", "U8", "BOOL"), 1
)
_EXPONENTS = {"F64": 0x7FF0000000000000, "F32": 0x7F800000, "F16": 0x7C00, "BF16": 0x7F80}
"""Bits of a float's exponent."""
_PIECE = 2**22
"""Bytes of weights that are looked at at once: a whole number of each kind."""


def split_name(name: str) -> tuple[str, int]:
    """``<model>@<n>`` → (model, n)."""
    m = ADAPTER_NAME_PATTERN.match(name)
    if not m:
        raise BadAdapter(f"{name!r} is no adapter's name: <model>@<n> with n from 1 on")
    return m["model"], int(m["version"])


def safetensors_header(path: Path) -> dict[str, JsonObject]:
    """Tensor name → its entry, checked against the file's size (https://huggingface.co/docs/safetensors, "Format")."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 2 <= length <= size - 8:
            raise BadAdapter(f"{path.name}: the header's length does not fit the file")
        if length > HEADER_BYTES:
            raise BadAdapter(f"{path.name}: the header has {length} bytes, at most {HEADER_BYTES} are read")
        raw = file.read(length)
    try:
        read = json.loads(raw, parse_int=bounded_int, parse_constant=_no_constant)
        tensors = {k: v for k, v in read.items() if k != "__metadata__"}
        end = 0
        for name, entry in sorted(tensors.items(), key=lambda kv: kv[1]["data_offsets"][0]):
            begin, stop = entry["data_offsets"]
            if begin != end or stop - begin != _count(entry["shape"]) * _BYTES[entry["dtype"]]:
                raise BadAdapter(f"{path.name}: tensor {name[:100]!r} has the wrong size")
            end = stop
    except BadAdapter:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as e:
        raise BadAdapter(f"{path.name}: the header cannot be read: {repr(e)[:200]}") from e
    if not tensors:
        raise BadAdapter(f"{path.name}: there is no tensor in it")
    if 8 + length + end != size:
        raise BadAdapter(f"{path.name}: {size} bytes long, its header says {8 + length + end}: cut off?")
    return tensors


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} in a header")


def _count(shape: list[int]) -> int:
    """How many numbers a tensor has."""
    if len(shape) > MOST_AXES:
        raise ValueError(f"a tensor of {len(shape)} axes, at most {MOST_AXES} are read")
    if any(type(axis) is not int or axis < 0 for axis in shape):
        raise ValueError(f"a shape of {shape!r}")
    return math.prod(shape)


def check_numbers(path: Path, tensors: dict[str, JsonObject]) -> None:
    """No NaN or infinity in the weights: an exponent of all ones is one, in each of the float formats. And not all
    that is added to the base model is zero.

    The file is read and not mapped: of a map that somebody cuts off meanwhile, the next page is a SIGBUS.
    """
    import numpy as np

    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        adds, zero = False, True
        for name, entry in tensors.items():
            begin, stop = (int(x) for x in entry["data_offsets"])
            kind = str(entry["dtype"])
            if kind not in _EXPONENTS:
                continue
            size, mask = _BYTES[kind], _EXPONENTS[kind]
            outer = ".lora_B." in name
            adds |= outer
            file.seek(start + begin)
            for at in range(begin, stop, _PIECE):
                data = file.read(min(_PIECE, stop - at))
                if len(data) != min(_PIECE, stop - at):
                    raise BadAdapter(f"{path.name}: it was cut off while it was read")
                bits = np.frombuffer(data, f"<u{size}")
                if bool(np.any((bits & np.array(mask, bits.dtype)) == mask)):
                    raise BadAdapter(f"{path.name}: tensor {name} holds NaN or infinity")
                zero = zero and not (outer and bool(np.any(bits << np.array(1, bits.dtype))))  # all but the sign
    if adds and zero:
        raise BadAdapter(f"{path.name}: all lora_B weights are zero, so that it would answer as the base model does")


def base_shapes(model: str | None) -> dict[str, list[int]]:
    """Module → shape of its weight, where the base model's safetensors are on this machine; else nothing to compare
    with.
    """
    folder = model_folder(model)
    if folder is None:
        return {}
    shapes: dict[str, list[int]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, entry in safetensors_header(file).items():
            if name.endswith(".weight"):
                shapes[name.removesuffix(".weight")] = [int(n) for n in entry["shape"]]
    return shapes


def check_shapes(tensors: dict[str, JsonObject], base: dict[str, list[int]]) -> None:
    """A is [rank, in] and B [out, rank] of a base module. vLLM 0.32 takes smaller ones and computes
    nonsense (findings/README.md).
    """
    for name, entry in tensors.items():
        part = WEIGHT_NAME_PATTERN.match(name)
        weight = base.get(part["module"]) if part else None
        if not part or weight is None or len(weight) != 2:
            continue  # saved names differ from module names in some families: those are for the engine to judge
        shape, outer = [int(n) for n in entry["shape"]], weight[1] if part["side"] == "A" else weight[0]
        if len(shape) != 2 or shape[1 if part["side"] == "A" else 0] != outer:
            there = f"the base model's layer has {weight}: an adapter of another model?"
            raise BadAdapter(f"{WEIGHTS_FILE_NAME}: {name} has shape {shape}, {there}")


def check_pairs(tensors: dict[str, JsonObject], config: AdapterConfig) -> None:
    """A's outer side is B's inner one, and the rank that the configuration gives it."""
    began = time.monotonic()
    shapes = {
        name: [int(n) for n in entry["shape"]] for name, entry in tensors.items() if WEIGHT_NAME_PATTERN.match(name)
    }
    for name, shape in shapes.items():
        side, twin = (".lora_A", ".lora_B") if ".lora_A" in name else (".lora_B", ".lora_A")
        other = shapes.get(name.replace(side, twin))
        if other is None:
            raise BadAdapter(f"{WEIGHTS_FILE_NAME}: {name} has no {twin.removeprefix('.')}")
        if len(shape) != 2 or len(other) != 2 or (side == ".lora_A" and shape[0] != other[1]):
            raise BadAdapter(
                f"{WEIGHTS_FILE_NAME}: {name} has shape {shape} and its {twin.removeprefix('.')} "
                f"{other}: their ranks differ"
            )
        if side == ".lora_A" and (part := WEIGHT_NAME_PATTERN.match(name)):
            config.check_rank(part["module"], shape[0])
            _in_time(began)


def _in_time(began: float) -> None:
    """Raises ``BadAdapter``: the expressions of its configuration would hold up everything else."""
    if time.monotonic() - began > MATCHING_TIMEOUT_S:
        why = f"matching rank_pattern and alpha_pattern takes more than {MATCHING_TIMEOUT_S:g} s"
        raise BadAdapter(f"{CONFIG_FILE_NAME}: {why}: write the ends of the modules' paths out")


@dataclass(frozen=True, slots=True)
class AdapterDigests:
    """What tells one policy from another, in hex: the weights' SHA-256, and that of each module's scale."""

    sha256: str
    scales_sha256: str

    def of_same(self, known: Adapter) -> bool:
        """Whether the files are those of ``known``. What nobody noted of it is not compared."""
        return known.sha256 in (None, self.sha256) and known.scales_sha256 in (None, self.scales_sha256)


def _scales_digest(config: AdapterConfig, tensors: dict[str, JsonObject]) -> str:
    """By module, so that it is the same however a configuration says it: PEFT's versions write other fields."""
    named = (name.removeprefix("base_model.model.").partition(".lora_") for name in tensors)
    began, lines = time.monotonic(), []
    for module in sorted({module for module, lora, _ in named if lora}):
        lines.append(f"{module} {config.scale_of(module)!r}")
        _in_time(began)
    scales = "\n".join(lines)
    return hashlib.sha256(scales.encode("utf-8", "surrogatepass")).hexdigest()


def check_folder(
    folder: Path, max_rank: int, base: dict[str, list[int]] | None = None, sha256: str | None = None
) -> AdapterDigests:
    """What tells it from others. Raises ``BadAdapter``. ``base``: see ``base_shapes``. ``sha256``: of its weights, if
    they were looked at already.
    """
    config_path, weights = folder / CONFIG_FILE_NAME, folder / WEIGHTS_FILE_NAME
    for path in (config_path, weights):
        if not path.is_file():
            raise BadAdapter(f"{folder.name}/{path.name} is missing")
    for path in folder.rglob("*"):  # an engine may read a tokenizer or other weights there, too
        if path.is_symlink() and not (path.exists() and _real(path).is_relative_to(_real(folder))):
            name = path.relative_to(folder.parent)
            raise BadAdapter(f"{name} is a link out of the folder, or to nothing: copy the file")
    config = AdapterConfig.read(folder, max_rank)
    tensors = safetensors_header(weights)
    check_numbers(weights, tensors)
    check_pairs(tensors, config)
    if base:
        check_shapes(tensors, base)
    return AdapterDigests(sha256 or sha256_of(weights), _scales_digest(config, tensors))


def has_weights(folder: Path, sha256: str) -> bool:
    """Whether the weights file in a folder is the one with this hash."""
    try:
        return sha256_of(folder / WEIGHTS_FILE_NAME) == sha256
    except OSError:
        return False


def highest_folder(root: Path, model: str) -> int:
    """The highest version of a model that has a folder under ``adapters.dir``; 0: none has."""
    names = (path.name.rpartition("@") for path in root.glob(f"{folder_of(model)}@*"))
    return max((int(n) for name, _, n in names if name == folder_of(model) and n.isdecimal()), default=0)
