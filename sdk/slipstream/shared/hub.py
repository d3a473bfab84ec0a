"""Where a model's files lie on this machine: in its folder, or in the hub's cache."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from slipstream.errors import StartError

log = logging.getLogger(__name__)
MODEL_DESCRIPTION_GLOBS = ("*.json", "*.jinja", "tokenizer.model", "tokenizer*")
"""Files that say what a model is. Its weights are none of them."""
HUB_TIMEOUT_S = 5.0
HUB_REFUSALS = {
    401: "there is no such model, or it wants a login (`hf auth login`, or HF_TOKEN)",
    403: "it wants a login that may read this model (`hf auth login`, or HF_TOKEN)",
    404: "there is no such model",
}
"""Status of a hub's answer → what it means."""


def cache_folder() -> Path:
    """The hub's cache, as huggingface_hub finds it."""
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()


def is_hub_name(model: str) -> bool:
    return model.count("/") == 1 and not model.startswith((".", "/", "~"))


def model_folder(model: str | None) -> Path | None:
    """The folder with the model's ``config.json``: ``model`` itself, or the newest snapshot of that hub name in the
    cache. None: it is not here.
    """
    if not model:
        return None
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if not is_hub_name(model):
        return None
    cached = cache_folder() / f"models--{model.replace('/', '--')}"
    try:
        found = cached / "snapshots" / (cached / "refs" / "main").read_text().strip()
        return found if (found / "config.json").is_file() else None
    except OSError:
        return None


def fetch_description(model: str) -> Path | None:
    """Bring a hub model's small files into the cache, where vLLM looks for them too: its parsers and limits follow from
    them. → Its folder; None: the hub does not give them, or is not to be asked.
    """
    found = model_folder(model)
    if found is not None or not is_hub_name(model) or os.environ.get("HF_HUB_OFFLINE") == "1":
        return found
    try:
        from huggingface_hub import snapshot_download

        snapshot_download(
            model, allow_patterns=list(MODEL_DESCRIPTION_GLOBS), ignore_patterns=["*.safetensors.index.json"]
        )
    except Exception as e:  # vLLM says what is wrong with the model or with the way to the hub
        log.warning(
            "the files of %s cannot be fetched yet: %s", model, str(e).splitlines()[0] if str(e) else type(e).__name__
        )
    return model_folder(model)


def trouble_of_hub(model: str) -> str | None:
    """Why the hub would not give this model to who asks from here. None: it would, or the files are here, or no hub is
    to be asked.
    """
    elsewhere = os.environ.get("HF_HUB_OFFLINE") == "1" or os.environ.get("VLLM_USE_MODELSCOPE")
    if model_folder(model) is not None or not is_hub_name(model) or elsewhere:
        return None
    import httpx  # most who ask where a model lies need no network

    hub = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    token = os.environ.get("HF_TOKEN")
    try:
        asked = httpx.get(
            f"{hub}/{model}/resolve/main/config.json",
            headers={"authorization": f"Bearer {token}"} if token else {},
            follow_redirects=True,
            timeout=HUB_TIMEOUT_S,
        )
    except (httpx.HTTPError, httpx.InvalidURL) as e:
        return f"{hub} does not answer: {e or type(e).__name__}"
    if asked.status_code in HUB_REFUSALS:
        return f"{hub} answers {asked.status_code}: {HUB_REFUSALS[asked.status_code]}"
    return None


def model_config(model: str, setting: str = "--model") -> dict[str, object]:
    """The model's ``config.json`` where it is a folder. Raises ``StartError`` when no such model can exist."""
    path = Path(model).expanduser()
    if path.is_dir():
        file = path / "config.json"
        if not file.is_file():
            raise StartError(f"{setting} {model}: the folder has no config.json, so it is no model")
        try:
            config = json.loads(file.read_text())
        except (OSError, ValueError) as e:
            raise StartError(f"{setting} {model}: its config.json can't be read: {e}") from e
        return config if isinstance(config, dict) else {}
    if (cached := model_folder(model)) is not None:
        return model_config(str(cached), setting)
    looks_local = model.startswith((".", "/", "~")) or model.count("/") != 1
    if looks_local or os.environ.get("HF_HUB_OFFLINE") == "1":
        why = "" if looks_local else " and not in the hub's cache (HF_HUB_OFFLINE=1, so no hub is asked)"
        raise StartError(f"{setting} {model}: no such folder{why}; give a folder or a hub name like Qwen/Qwen3-4B")
    return {}


def vocabulary_of(model: str | None) -> int | None:
    """How many tokens the model has. None: nothing can be said from here."""
    folder = model_folder(model)
    try:
        described = model_config(str(folder)) if folder is not None else {}
    except StartError:
        return None
    text = described.get("text_config")
    size = (text if isinstance(text, dict) else described).get("vocab_size")
    return size if isinstance(size, int) and size > 0 else None


def quantised_as(model: str) -> str:
    """How the weights in a model's files are quantised. Empty: they are not, or nothing can be said from here."""
    try:
        found = model_config(model).get("quantization_config")
    except StartError:
        return ""
    return str(found.get("quant_method", "")) if isinstance(found, dict) else ""


def check_own_code(model: str | None) -> None:
    """Raises ``StartError`` for a model whose code is its own and not in transformers, as InternLM's: the trainer runs
    no such code, and transformers would ask at the terminal whether to. Silent where nothing can be said from here.
    """
    folder = model_folder(model)
    described = model_config(str(folder)) if folder and (folder / "config.json").is_file() else {}
    if "auto_map" not in described:
        return
    try:
        from transformers import CONFIG_MAPPING
    except ImportError:  # the trainer is elsewhere, and says it there
        return
    kind = described.get("model_type")
    if kind not in CONFIG_MAPPING:
        raise StartError(
            f"the model {model} (model_type {kind}) brings its own code, and transformers has none for it: it can be "
            'served, if you trust that code (engine.args = ["--trust-remote-code"]), and not be trained; set '
            "trainer.enabled = false, or choose another model"
        )
