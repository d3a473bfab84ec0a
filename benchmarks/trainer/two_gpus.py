"""Two GPUs of one host, for an engine and a trainer of one model: which layout takes a step, and how fast?

    python benchmarks/trainer/two_gpus.py [--shape 14b] [--layouts apart,turns,replicas] [--out two_gpus.json]

``apart``: the engine on one GPU, the trainer on the other. ``turns``: the engine over both (tensor parallel), and the
trainer on both with its base sharded over them (FSDP2), by turns (``engine.share``). ``replicas``: an engine on each, and
the trainer beside them on both, with the whole base on each (DDP). Weights are random, and so are rewards: 32 streams of
episodes run until so many steps are live, or the time is over. The last line is one JSON object: for each layout the
seconds until agents are served and until the first step, a step's seconds, those in which no call began, tokens a second,
the most memory of a GPU; ``problem`` where a step did not come.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "curves"))

import bench_h200 as h200
import real_stack
import share
from real_size import versions
from real_stack import Stack, launch


@dataclass(frozen=True)
class Layout:
    """What is set beside the defaults, for both programs; which GPUs each sees; the trainer's processes."""

    engine_gpus: str
    trainer_gpus: str
    settings: list[str]
    engine_args: list[str] = field(default_factory=list)
    processes: int = 1


LAYOUTS = {
    "apart": Layout("0", "1", ["engine.gpu_memory=0.9"]),
    "turns": Layout("0,1", "0,1", ["engine.share=true", "trainer.sharding=fsdp2"], ["--tensor-parallel-size", "2"], 2),
    "replicas": Layout("0,1", "0,1", ["engine.gpu_memory=0.45"], ["--data-parallel-size", "2"], 2),
}

CHAT = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def make(folder: Path, shape: str) -> None:
    """Random weights of this shape, and a tokenizer of bytes that knows chats."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    h200.make_model(folder, shape)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<pad>", "<end>", *alphabet]  # as ids stand in the model's configuration
    names += [f"<{i}>" for i in range(len(names), h200.VOCAB)]
    raw = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(name, special=True) for name in ("<pad>", "<end>")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<end>")
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)


def used(gpus: str) -> list[int]:
    """MiB in use on each of these GPUs."""
    try:
        out = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id", gpus],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return []
    return [int(line) for line in out.split()]


async def watch(stack: Stack, trainer: subprocess.Popen[bytes], args: argparse.Namespace, end: float) -> dict[str, Any]:
    """Streams run until ``args.steps`` of them are live."""
    load = share.Load(stack.url, args)
    running = asyncio.create_task(load.run())
    began, most = time.monotonic(), [0, 0]
    steps: list[dict[str, Any]] = []
    while len(steps) < args.steps and time.monotonic() < end and trainer.poll() is None:
        await asyncio.sleep(0.5)
        events = await asyncio.to_thread(stack.events)
        steps = [e["data"] for e in events if e["kind"] == "step"]
        most = [max(pair) for pair in zip(most, await asyncio.to_thread(used, args.gpus) or most, strict=False)]
    seconds = time.monotonic() - began
    load.stop.set()
    await running
    later = steps[1:] or steps
    found = {
        "steps": len(steps), "first_step_s": seconds if len(steps) == 1 else None, "calls": load.calls, "failed_calls": load.failed,
        "errors": load.errors[:3], "output_tokens_per_s": load.tokens / seconds, "peak_mib": most,
    }  # fmt: skip
    for name in ("seconds", "tokens", "hold_seconds", "sleep_seconds", "wake_seconds"):
        values = [s[name] for s in later if name in s]
        found[name] = statistics.fmean(values) if values else None
    return found


def run(name: str, model: Path, args: argparse.Namespace) -> dict[str, Any]:
    layout, gpus = LAYOUTS[name], args.gpus.split(",")
    of_engine, of_trainer = (
        ",".join(gpus[int(n)] for n in chosen.split(",")) for chosen in (layout.engine_gpus, layout.trainer_gpus)
    )
    own = [f"engine.args={json.dumps([*args.engine_arg, *layout.engine_args])}"]
    settings = [*(s for s in share.SETTINGS if s != "engine.share=true"), *layout.settings, *args.set]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        if args.logs:
            Path(args.logs).mkdir(parents=True, exist_ok=True)
        logs = [Path(args.logs or folder) / f"{model.name}-{name}-{part}.log" for part in ("up", "trainer")]
        settings += [f"data_dir={folder}", f"engine.model={model}"]
        end, began = time.monotonic() + args.timeout, time.monotonic()
        chosen = [*settings, *own, "trainer.enabled=false"]
        stack = Stack(launch(["up"], chosen, logs[0], CUDA_VISIBLE_DEVICES=of_engine), logs[0], "")
        running = [stack.process]
        try:
            if not stack.ready(end):
                return {"problem": "`slipstream up` was not ready", "said": logs[0].read_text(errors="replace")[-600:]}
            ready = time.monotonic() - began
            argv = ["trainer", "--url", stack.url, "--processes", str(layout.processes)]
            trainer = launch(argv, settings, logs[1], CUDA_VISIBLE_DEVICES=of_trainer)
            running.append(trainer)
            found = {"ready_s": ready} | asyncio.run(watch(stack, trainer, args, end))
            if not found["steps"]:
                found |= {"problem": "no step in time", "said": logs[1].read_text(errors="replace")[-600:]}
            return found
        finally:
            for process in reversed(running):
                real_stack.end(process, 20.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=h200.SHAPES, default="14b")
    parser.add_argument("--gpus", default="0,1", help="the two of them")
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    parser.add_argument("--model", type=Path, help="a model of one's own, instead of a shape")
    parser.add_argument("--work", default="/tmp/slipstream-two-gpus", help="where the model is made")
    parser.add_argument("--steps", type=int, default=1)
    share.load_arguments(parser, tokens=100)
    parser.add_argument("--timeout", type=float, default=420.0, help="seconds of a layout")
    parser.add_argument("--engine-arg", action="append", default=[])
    parser.add_argument("--logs", help="folder for what both programs print")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE")
    parser.add_argument("--out", help="file for the JSON object")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what it started ends, too
    model = args.model or Path(args.work) / args.shape
    if not model.exists():  # in a process of its own, which gives the GPU back
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as maker:
            maker.submit(make, model, args.shape).result()
    found: dict[str, Any] = {"shape": model.name, "layouts": {}, "versions": versions()}
    for name in args.layouts.split(","):
        found["layouts"][name] = run(name, model, args)
        print(name, json.dumps(found["layouts"][name]), file=sys.stderr, flush=True)
    found["command"] = "python benchmarks/trainer/two_gpus.py " + " ".join(sys.argv[1:])
    if args.out:
        Path(args.out).write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))
    return int(any("problem" in part for part in found["layouts"].values()))


if __name__ == "__main__":
    sys.exit(main())
