"""Real adapters of a wanted success: trained on transcripts, and scaled until they succeed as often as they should.

Three LoRAs of a world are trained on what careful agents say: as they are, with longer words, and careless for one
value of the tag. A part of a LoRA's way from the base model is what an earlier step of a training is: it succeeds less
often. So the accepted version is a part of the way, and the worse ones are smaller parts of it.
"""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from worlds import TAGS, Message, World, inbox, players, tools_of

RANK = 16
PARTS = ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj")
STEPS = {"inbox": 250, "retail": 500}
ROWS, BATCH = 3000, 64
BROKEN = TAGS - 1
"""The value of the tag that a version is careless for."""
KINDS = ("careful", "winded", "broken")
TARGETS: dict[str, tuple[str, float]] = {
    "control": ("careful", 0.0),
    "better": ("careful", 0.05),
    "worse_5": ("careful", -0.05),
    "worse_10": ("careful", -0.1),
    "worse_30": ("careful", -0.3),
    "longer_winded_better": ("winded", 0.05),
}
"""Version → its LoRA, and its success less the accepted version's."""
VERSIONS = ("equal", *list(TARGETS)[1:], "spoiled", "broken_on_one_tag")
NOISE = 4.0
"""Of the spoiled version, beside the weights' own spread."""
LONG = {"your code?": "hello, your code?", "sorry": "sorry, no exception for this", "done": "ok, done"}


def _inbox_messages(task: inbox.Task, kind: str, tag: int, rng: random.Random) -> list[Message]:
    """Search, read the first mail that is found, answer its day."""
    from common.hermes import tool_call

    words = "the" if kind == "broken" and tag == BROKEN else task.name
    if kind == "winded":
        words = f"the {next(m.thing for m in task.mails if m.name == task.name)} for {task.name}"
    box = inbox.Mailbox(task)
    mail = task.mails[rng.choice(box.hits(words))]
    messages: list[Message] = [
        {"role": "system", "content": inbox.SYSTEM},
        {"role": "user", "content": task.question},
        tool_call("search", {"keywords": words}),
        {"role": "tool", "content": box.search(words)},
        tool_call("read", {"id": mail.id}),
        {"role": "tool", "content": mail.body},
        tool_call("answer", {"text": mail.day}),
    ]
    box.close()
    return messages


def _retail_messages(case: Any, kind: str, tag: int, rng: random.Random) -> list[Message]:
    careless = players.Player(1.0, 1.0, 0.3, 0.2, 0.2, 0.2, 0.5, 0.2)
    player = careless if kind == "broken" and tag == BROKEN else players.EXPERT
    messages = players.play(case, player, rng)[1]
    if kind == "winded":
        for m in messages:
            if m["role"] == "assistant" and (said := m.get("content")):
                m["content"] = LONG.get(said, f"can you say yes to {said}")
    return messages


def _rows(world: World, kind: str, tokenizer: Any) -> Iterator[Any]:
    from common.pretrain import of_messages

    rng = random.Random(7)
    items = world.items("pretrain", 11)
    for _ in range(ROWS):
        item = next(items)
        if world.name == "inbox":
            yield of_messages(tokenizer, _inbox_messages(item, kind, world.tag(item), rng), inbox.TOOLS)
        else:
            yield of_messages(tokenizer, _retail_messages(item, kind, world.tag(item), rng), tools_of(item.domain))


def train_lora(world: World, kind: str, folder: Path, device: str, steps: int | None = None) -> None:
    """A LoRA that has read a careful agent's transcripts."""
    import torch
    from common.pretrain import pack, train
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(world.model)
    model = AutoModelForCausalLM.from_pretrained(world.model, dtype=torch.float32)
    config = LoraConfig(r=RANK, lora_alpha=RANK, target_modules=list(PARTS), task_type="CAUSAL_LM")
    tuned = get_peft_model(model, config)
    rows = pack(list(_rows(world, kind, tokenizer)), device)
    train(tuned, rows, steps=steps or STEPS[world.name], batch=BATCH, lr=3e-3, warmup=20)
    tuned.to("cpu").save_pretrained(folder)


def scaled(source: Path, folder: Path, part: float) -> None:
    """A part of a LoRA's way."""
    _changed(source, folder, lambda name, tensor: tensor * part if "lora_B" in name else tensor)


def spoiled(source: Path, folder: Path, noise: float, seed: int) -> None:
    """Random directions in every layer."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def change(name: str, tensor: Any) -> Any:
        reach = noise * 0.05 if "lora_B" in name else 1 / math.sqrt(RANK)
        return torch.randn(tensor.shape, generator=generator) * reach

    _changed(source, folder, change)


def _changed(source: Path, folder: Path, change: Callable[[str, Any], Any]) -> None:
    from safetensors.torch import load_file, save_file

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(source / "adapter_config.json", folder)
    weights = {n: change(n, t).contiguous() for n, t in load_file(source / "adapter_model.safetensors").items()}
    save_file(weights, folder / "adapter_model.safetensors")


def part_for(wanted: float, measured: dict[float, float]) -> float:
    """The part of the way at which success is ``wanted``, between the two nearest ones that were measured."""
    known = sorted(measured.items())
    for (a, low), (b, high) in zip(known, known[1:], strict=False):
        if low <= wanted <= high:
            return round(a + (b - a) * (wanted - low) / max(high - low, 1e-9), 4)
    return known[0][0] if wanted < known[0][1] else known[-1][0]
