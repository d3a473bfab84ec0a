"""Copy an adapter to a folder, a hub or a bucket, with a card that says what it was trained on."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream.client import Client
from slipstream.config import Config
from slipstream.contract import Adapter, Event
from slipstream.errors import ApiError, SlipstreamError
from slipstream_models.destinations import destination

SETTING_FIELDS = (
    "algorithm",
    "loss",
    "learning_rate",
    "inner_steps",
    "lora_rank",
    "lora_alpha",
    "beta",
    "max_staleness",
    "seed",
)
"""The trainer's settings that a card lists, with their values at the push."""


def lineage(adapter: Adapter, known: Sequence[Adapter]) -> list[Adapter]:
    """From the first version to ``adapter``, as each was trained from the one before."""
    by_name = {a.name: a for a in known}
    chain = [adapter]
    while (parent := by_name.get(chain[-1].parent or "")) is not None and parent not in chain:
        chain.append(parent)
    return chain[::-1]


def _figure(data: dict[str, Any], name: str) -> str:
    value = data.get(name)
    return "" if not isinstance(value, int | float) else f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(chain: Sequence[Adapter], events: Sequence[Event]) -> list[str]:
    """A row per step: what it was trained on, as the trainer told it."""
    steps = {str(e.data["adapter"]): e.data for e in events if e.kind == "step" and e.data.get("adapter")}
    lines = [
        "| version | step | batches | groups | episodes | calls | tokens | mean reward |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for a in chain:
        data = steps.get(a.name, {})
        figures = [_figure(data, n) for n in ("groups", "episodes", "calls", "tokens", "reward")]
        lines.append(
            f"| {a.name} | {'' if a.step is None else a.step} | {', '.join(a.batches) or 'unknown'} | "
            f"{' | '.join(figures)} |"
        )
    return lines


def card(
    adapter: Adapter,
    base: str,
    *,
    known: Sequence[Adapter] = (),
    events: Sequence[Event] = (),
    config: Config | None = None,
    merged: bool = False,
) -> str:
    """A model card in the hub's format: base, lineage, each step's batches and what they held. No episode's text."""
    kind = "The base model with a LoRA adapter merged in" if merged else f"A LoRA adapter of `{base}`"
    made = time.strftime("%Y-%m-%d", time.gmtime(adapter.created))
    head = {
        "library_name": "transformers" if merged else "peft",
        "base_model": json.dumps(base) if not base.isprintable() or ": " in base else base,
        "base_model_relation": "finetune" if merged else "adapter",
    }
    lines = [
        "---",
        *(f"{k}: {v}" for k, v in head.items()),
        "tags: [slipstream, reinforcement-learning]",
        "---",
        "",
        f"# {adapter.name}",
        "",
        f"{kind}, trained by Slipstream on recorded episodes of `{adapter.model}`.",
        "",
        f"- step: {adapter.step}",
        f"- made: {made}",
        f"- parent: {adapter.parent or base}",
        f"- batches: {', '.join(adapter.batches) or 'unknown'}",
        f"- state when it was pushed: {adapter.state}",
        f"- gate: `{adapter.gate.model_dump_json() if adapter.gate else None}`",
        "",
        "## What it was trained on",
        "",
        "Each version continues the one above it; the first one starts from the base model.",
        "",
        *_table(lineage(adapter, known or [adapter]), events),
        "",
    ]
    if config is not None:
        values = ", ".join(f"{name} {getattr(config.trainer, name)}" for name in SETTING_FIELDS)
        lines += [f"Trainer at the time of this card: {values}. Rewards: {json.dumps(config.reward.weights)}.", ""]
    return "\n".join(lines)


def _merge(base: str, source: Path, target: Path) -> None:
    """Added up in 32 bits, and stored in the base's own type."""
    import torch
    from peft import PeftModel
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    own = getattr(AutoConfig.from_pretrained(base), "dtype", None) or torch.float32
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    PeftModel.from_pretrained(model, source).merge_and_unload().to(own).save_pretrained(target)
    AutoTokenizer.from_pretrained(base).save_pretrained(target)


def push(client: Client, config: Config, version: str, to: str, *, merged: bool = False) -> str:
    """Copy ``version`` (a number or a full name) to a folder or to one of ``SCHEMES``. Returns where it is."""
    send = destination(to, merged=merged)
    known = client.adapters().adapters
    found = [a for a in known if version in {a.name, str(a.version)}]
    if not found:
        raise SlipstreamError(f"no adapter {version}: `slipstream adapters` lists them")
    if len(found) > 1:
        raise SlipstreamError(f"{version} is {' and '.join(a.name for a in found)}: give the full name")
    adapter, base = found[0], config.trainer.model or config.engine.model or found[0].model
    source = config.adapters_dir / adapter.path
    if not (source / "adapter_config.json").is_file():
        raise SlipstreamError(f"{source} has no adapter: is adapters.dir the folder that the trainer writes to?")
    with tempfile.TemporaryDirectory() as scratch:
        ready = Path(scratch) / adapter.path
        if merged:
            _merge(base, source, ready)
        else:
            shutil.copytree(source, ready)
        text = card(adapter, base, known=known, events=_events(client), config=config, merged=merged)
        (ready / "README.md").write_text(text)
        return send(ready, base)


def _events(client: Client) -> list[Event]:
    try:
        return client.events()
    except ApiError:
        return []  # the card then knows the batches, and not how much was in them
