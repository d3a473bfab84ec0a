"""Does an adapter change what an engine computes?

vLLM loads an adapter whose names fit no layer of the model, and serves the base model under its name. So the
log-probabilities of a few prompts are asked of the base model, of the adapter, and of the base model again. A busy GPU
rounds differently from call to call: what differs no more than the base model from itself is no effect.

An adapter of a first small step may change less than that. Then its twin is loaded: the same weights with a scale that
is ``TWIN_SCALE_FACTOR`` times as large. If the engine uses the weights, the twin changes the answer. If it does not,
or if all of them are zero, nothing does.

Whether an engine uses weights depends on their names, shapes and scales, and not on their values. So of adapters that
are alike in these (``shape_of``), and not all zero, an engine is asked about the first one alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slipstream.engines.engine import NEUTRAL_SAMPLING, Reading
from slipstream.shared.adapter_config import CONFIG_FILE_NAME, WEIGHT_NAME_PATTERN, WEIGHTS_FILE_NAME
from slipstream.shared.files import open_to_engine
from slipstream_proxy.json_types import JsonObject

PROBE_PROMPTS = ("a", "The", "1", '{"', "\n\n", "user: yes")
"""Prompts of the question. Any text does: an adapter that is used changes the likelihood of some token after it."""
LIKELIEST_TOKENS_ASKED = 5
"""Log-probabilities that are asked for after each prompt."""
TWIN_SCALE_FACTOR = 1000.0
"""Factor on the twin's scale: what a learning rate of 1e-6 makes in one step becomes as large as other weights."""
TWIN_FOLDER_PREFIX = ".tmp-check-"
"""Begins the name of the twin's folder in ``adapters.dir``. The engine unloads it after the question."""
WITHOUT_EFFECT = (
    "it has no effect: the engine answers as the base model does, even with the adapter's weights "
    f"{TWIN_SCALE_FACTOR:.0f} times "
    "as large. vLLM ignores weights whose names fit no layer of its model: set trainer.lora_targets to layers that the "
    "engine has, or publish it with the engine's names"
)


READ_BYTES = 2**20
"""Read at once while a weight that is not zero is looked for."""


def shape_of(folder: Path) -> str | None:
    """What adapters have in common of which an engine uses either all or none: a hash of the configuration, and of the
    weights' names, types and shapes. None: the files cannot be read, or each B · A is zero. The folder was checked
    before.
    """
    try:
        with (folder / WEIGHTS_FILE_NAME).open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header: dict[str, Any] = json.loads(file.read(size))
            header.pop("__metadata__", None)
            pairs: dict[str, list[tuple[int, int]]] = {}
            for name, entry in header.items():
                if found := WEIGHT_NAME_PATTERN.match(name):
                    begin, end = entry["data_offsets"]
                    pairs.setdefault(found["module"], []).append((8 + size + begin, end - begin))
            if not any(len(pair) == 2 and all(_has_value(file, *half) for half in pair) for pair in pairs.values()):
                return None
        tensors = sorted((name, entry["dtype"], entry["shape"]) for name, entry in header.items())
        config = json.loads((folder / CONFIG_FILE_NAME).read_bytes())
    except (OSError, ValueError, KeyError, TypeError, RecursionError, struct.error):
        return None
    return hashlib.sha256(json.dumps([config, tensors], sort_keys=True).encode()).hexdigest()


def _has_value(file: Any, place: int, size: int) -> bool:
    """Whether some byte of a tensor is not zero."""
    file.seek(place)
    while size > 0 and (part := file.read(min(size, READ_BYTES))):
        if part.strip(b"\0"):
            return True
        size -= len(part)
    return False


def question() -> JsonObject:
    """A completion of one token after each prompt, with log-probabilities."""
    asked: JsonObject = {
        "prompt": list(PROBE_PROMPTS),
        "max_tokens": 1,
        "logprobs": LIKELIEST_TOKENS_ASKED,
        **NEUTRAL_SAMPLING,
    }
    return {**asked, "return_tokens_as_token_ids": True}


def apart(one: Reading, other: Reading) -> float:
    """The largest difference of a log-probability, in nats. Infinity: after some prompt no likely token is the same."""
    most = 0.0
    for a, b in zip(one, other, strict=False):
        both = a.keys() & b.keys()
        if not both:
            return float("inf")
        most = max(most, *(abs(a[t] - b[t]) for t in both))
    return most


def changes(base: Reading, adapter: Reading, again: Reading) -> bool:
    """Whether the adapter's answer differs from the base model's by more than twice what that differs from itself."""
    return apart(base, adapter) > 2 * apart(base, again) and apart(again, adapter) > 2 * apart(base, again)


@contextlib.contextmanager
def twin_of(folder: Path, name: str) -> Iterator[Path | None]:
    """The louder twin's folder, beside the adapter's own. None: it cannot be written."""
    twin = folder.parent / f"{TWIN_FOLDER_PREFIX}{os.getpid()}-{name}"
    try:
        yield _write(folder, twin)
    finally:
        shutil.rmtree(twin, ignore_errors=True)


def _write(folder: Path, twin: Path) -> Path | None:
    try:
        config = json.loads((folder / CONFIG_FILE_NAME).read_text())
        config["lora_alpha"] = TWIN_SCALE_FACTOR * float(config.get("lora_alpha", 8))
        patterns = config.get("alpha_pattern") or {}
        config["alpha_pattern"] = {module: TWIN_SCALE_FACTOR * float(alpha) for module, alpha in patterns.items()}
        twin.mkdir()
        (twin / CONFIG_FILE_NAME).write_text(json.dumps(config))
        shutil.copyfile(folder / WEIGHTS_FILE_NAME, twin / WEIGHTS_FILE_NAME)
        open_to_engine(twin)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return twin
