"""Adapters leave the house: a copy in a folder, on a hub or in a bucket, with a card that says what it was trained on."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from slipstream.client import Client
from slipstream.config import Config
from slipstream.contract import Adapter
from slipstream.errors import SlipstreamError, StartError


def card(adapter: Adapter, base: str) -> str:
    """A model card in the hub's format."""
    lines = [
        "---", "library_name: peft", f"base_model: {base}", "---", "", f"# {adapter.name}", "",
        f"A LoRA adapter of `{base}`, trained by Slipstream on recorded episodes.", "",
        f"- step: {adapter.step}", f"- parent: {adapter.parent or base}", f"- batches: {', '.join(adapter.batches) or 'unknown'}",
        f"- state when it was pushed: {adapter.state}", f"- numbers: `{json.dumps(adapter.numbers)}`", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _merge(base: str, source: Path, target: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(base)
    PeftModel.from_pretrained(model, source).merge_and_unload().save_pretrained(target)
    AutoTokenizer.from_pretrained(base).save_pretrained(target)


def push(client: Client, config: Config, version: str, to: str, *, merged: bool = False) -> str:
    """Copy ``version`` (a number or a full name) to a folder, ``hf:owner/name`` or ``s3://bucket/prefix``. Returns where it is."""
    found = [a for a in client.adapters().adapters if version in {a.name, str(a.version)}]
    if not found:
        raise SlipstreamError(f"no adapter {version}: `slipstream adapters` lists them")
    if len(found) > 1:
        raise SlipstreamError(f"{version} is {' and '.join(a.name for a in found)}: give the full name")
    adapter, base = found[0], config.trainer.model or config.engine.model or found[0].model
    source = config.adapters_dir / adapter.name
    if not (source / "adapter_config.json").is_file():
        raise SlipstreamError(f"{source} has no adapter: is adapters.dir the folder that the trainer writes to?")
    with tempfile.TemporaryDirectory() as scratch:
        ready = Path(scratch) / adapter.name
        if merged:
            _merge(base, source, ready)
        else:
            shutil.copytree(source, ready)
        (ready / "README.md").write_text(card(adapter, base))
        return _send(ready, to)


def _send(ready: Path, to: str) -> str:
    if to.startswith("s3://"):
        if shutil.which("aws") is None:
            raise StartError("--to s3://…: the `aws` command is not installed")
        if code := subprocess.run(["aws", "s3", "cp", "--recursive", str(ready), to], check=False).returncode:
            raise SlipstreamError(f"`aws s3 cp` to {to} ended with exit code {code}")
        return to
    if to.startswith("hf:"):
        from huggingface_hub import HfApi

        name = to.removeprefix("hf:")
        HfApi().create_repo(name, exist_ok=True, private=True)
        HfApi().upload_folder(repo_id=name, folder_path=str(ready))
        return to
    target = Path(to).expanduser() / ready.name
    if target.exists():
        raise SlipstreamError(f"{target} is there already; versions are immutable, choose another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(ready, target)
    return str(target)
