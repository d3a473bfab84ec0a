"""N GPUs of one host: python -m benchmarks.trainer.bench_gpus --out gpus.jsonl [--cells 14b:1,14b:2,14b:4,…] [--plan]

A cell is ``SHAPE:GPUS[:KIND]``; it runs in processes of its own by torchrun, as soon as so many GPUs are free, and ends after ``--limit`` seconds at the
latest. Its line of JSON is appended to ``--out`` at once. Kinds:

``fsdp2``, ``ddp`` (without a kind: the first, and on one GPU the second)
    The product's steps (layout, trees, loss, guards, optimiser) over a base of random weights, which each process makes on its GPU, in its part: groups
    of 8 episodes × 6 turns behind a 1.5k prompt, 300 sampled tokens a turn, ``groups`` a GPU. Layers are compiled in the first step, which does not count,
    nor do the others up to ``--warm``. ``gradient_s`` is its part of ``seconds``; the rest is guards, which compute some rows again, and the reference.
    Rates and the share of the peak are of the gradient.
``loss``
    Loss and gradient of one batch in fp32, from files, for the comparison of numbers of processes.
``read``
    Files are written first, then read: seconds, and what each process takes of the host's memory.
``trl``, ``trl_fsdp2``
    TRL's GRPOTrainer with accelerate's FSDP2 on the same rows, merged, with gradient checkpointing; the second is its FSDP2 on one GPU, too.

``--plan`` computes on the meta device what each cell will take, and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from benchmarks.harness import child_env, free_port, provenance
from benchmarks.trainer import bench_trainer as small
from torch import distributed

from slipstream.config import Config, load_config

PEAK_TFLOPS = 989.0
"""Of an H200 in bf16, dense, by its data sheet."""
VOCAB = 152_064
DENSE = {"model_type": "qwen2", "vocab_size": VOCAB, "max_position_embeddings": 32_768, "tie_word_embeddings": False, "use_sliding_window": False}  # fmt: skip
MIXED = {"model_type": "qwen3_moe", "vocab_size": VOCAB, "max_position_embeddings": 32_768, "tie_word_embeddings": False, "use_sliding_window": False, "head_dim": 128, "norm_topk_prob": True}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": DENSE | {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 512},
    "tinymoe": MIXED | {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512, "moe_intermediate_size": 128, "num_experts": 8, "num_experts_per_tok": 2},
    "7b": DENSE | {"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944},
    "14b": DENSE | {"hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "intermediate_size": 13824},
    "32b": DENSE | {"hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 8, "intermediate_size": 27648},
    "70b": DENSE | {"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672},
    "moe": MIXED | {"hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8},
}  # fmt: skip
GROUPS = {"32b": 2, "70b": 2, "moe": 2}
"""Of a GPU in a step; else 4. A group is one row of 16,384 tokens."""
LAID_OUT = {"episodes": 8, "turns": 6, "prompt": 1500, "sampled": 300, "results": 0}
SMALLER = {"episodes": 4, "turns": 3, "prompt": 24, "sampled": 8, "results": 0}
"""The same on a CPU."""


# --- the model


def make_folder(folder: Path, shape: str, *, weights: bool) -> None:
    """Configuration and tokenizer; ``weights``: random ones too, made on a GPU if there is one."""
    from tokenizers import Tokenizer, models
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    described = dict(SHAPES[shape])
    config = AutoConfig.for_model(**described, bos_token_id=0, eos_token_id=1, dtype="bfloat16")
    raw = Tokenizer(models.WordLevel({"<pad>": 0, "<end>": 1, "<unk>": 2}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<end>", unk_token="<unk>").save_pretrained(folder)  # fmt: skip
    if not weights:
        config.architectures = [type(skeleton(config)).__name__]
        config.save_pretrained(folder)
        return
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder, max_shard_size="5GB")


def skeleton(config: Any) -> Any:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


class RandomWeights:
    """In place of a model's class: ``from_pretrained`` without files. What is missing is made, each process's part by
    itself.
    """

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def from_pretrained(self, path: str, **options: Any) -> Any:
        from transformers import AutoConfig

        from slipstream_trainer.model.policy import device

        known = options.pop("config", None) or AutoConfig.from_pretrained(path)
        if "distributed_config" not in options:
            options["device_map"] = {"": device()}
        kind = self.kind._model_mapping[type(known)]
        return kind.from_pretrained(None, config=known, state_dict={}, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kind, name)


# --- a cell, in each of its processes


def memory_mib() -> dict[str, float]:
    """Of this process on the host: now, its own (not of files) now, and the most there was."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    names = {"rss_mib": "VmRSS", "own_mib": "RssAnon", "peak_rss_mib": "VmHWM"}
    return {name: int(fields[field].split()[0]) / 1024 for name, field in names.items()}


class Sampled:
    """The most that this process takes of the host's memory in a block, every 5 ms, beyond what it took before."""

    def __enter__(self) -> Self:
        self.first, self.most = memory_mib(), memory_mib()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()
        return self

    def look(self) -> None:
        while not self.done.wait(0.005):
            now = memory_mib()
            self.most = {name: max(self.most[name], now[name]) for name in now}

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()

    def grown(self) -> dict[str, float]:
        return {f"{name}_grown": self.most[name] - self.first[name] for name in ("rss_mib", "own_mib")}


def settings(args: argparse.Namespace, **trainer: Any) -> Config:
    loose = {"max_ratio": 1e30, "max_engine_kl": 1e30, "max_kl": 1e30}
    base = {
        "data_dir": f"{args.folder}/data-{os.environ.get('RANK', '0')}", "engine": {"model": f"{args.folder}/model"},
        "trainer": {"lora_rank": 16, "lora_alpha": 32} | loose | trainer,
    }  # fmt: skip
    return load_config(None, env={}, base=base, flags=args.set)


def batch(args: argparse.Namespace, groups: int, seed: int) -> list[Any]:
    small.VOCAB = VOCAB
    shape = LAID_OUT if torch.cuda.is_available() else SMALLER
    samples = small.episodes(SimpleNamespace(groups=groups, seed=seed, **shape), "plain")
    for s in samples:
        s.logprobs_C[:] = -np.log(VOCAB) + 1e-5 * seed  # what is drawn for a batch is drawn by them
    return samples


def seen_pairs(plan: Any) -> int:
    """(Query, key) pairs that attention has to look at, over the batch."""
    found = 0
    for m in plan.micro:
        rows, width = m.ids_RN.shape
        ends = np.tile(np.full(width, width), (rows, 1)) if m.ends_RN is None else m.ends_RN
        found += int((ends - np.arange(width))[:, : m.tokens].sum())
    return found


def needed_flops(config: Any, plan: Any) -> float:
    """Multiplications and additions, counted apart, that the batch's gradient of LoRA alone needs: forward and the gradient of
    the activations, through the base's weights, attention and the head. Nothing for what is computed again, LoRA, or the reference.
    """
    text = config.get_text_config()
    hidden, layers, heads = text.hidden_size, text.num_hidden_layers, text.num_attention_heads
    size = getattr(text, "head_dim", None) or hidden // heads
    attention = hidden * size * (2 * heads + 2 * text.num_key_value_heads)
    experts = getattr(text, "num_experts_per_tok", 0)
    wide = experts * text.moe_intermediate_size if experts else text.intermediate_size
    weights = layers * (attention + 3 * hidden * wide + (hidden * text.num_experts if experts else 0))
    pairs = 12.0 * seen_pairs(plan) * heads * size * layers
    return 4.0 * weights * plan.tokens + pairs + 4.0 * plan.scored.tokens * hidden * text.vocab_size


def now(gpu: bool) -> float:
    if gpu:
        torch.cuda.synchronize()
    return time.perf_counter()


def told(args: argparse.Namespace, found: dict[str, Any]) -> None:
    """What is known of the cell so far, for the process that started it. All processes call it."""
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
    mine = memory_mib() | {"peak_gib": peak}
    box: list[Any] = [mine]
    if distributed.is_initialized():
        box = [None] * distributed.get_world_size()
        distributed.all_gather_object(box, mine)
    most = {name: max(one[name] for one in box) for name in mine}
    if int(os.environ.get("RANK", "0")) == 0:
        Path(args.folder, "found.json").write_text(json.dumps(found | most))


def product(args: argparse.Namespace, config: Config, *, random: bool) -> tuple[Any, dict[str, Any]]:
    """A trainer as the product starts it, and what starting took."""
    from slipstream_trainer.model import policy
    from slipstream_trainer.run.start import start_trainer

    if torch.cuda.is_available():
        torch.cuda.set_device(policy.device())
        torch.zeros(1, device="cuda")
    if random:
        kind_of = policy.auto_class
        policy.auto_class = lambda described: RandomWeights(kind_of(described))
    began = time.perf_counter()
    with Sampled() as host:
        trainer, _ = start_trainer(config, None)
    parameters = sum(p.numel() for p in trainer.model.parameters() if not p.requires_grad)
    return trainer, {"start_s": time.perf_counter() - began, "parameters": parameters} | host.grown()


def cell_steps(args: argparse.Namespace) -> None:
    from slipstream_trainer.algorithm.learning_rate import StepPace
    from slipstream_trainer.step.step import train

    trainer, found = product(args, settings(args, sharding=args.kind), random=True)
    world, groups = trainer.world, (args.groups or GROUPS.get(args.shape, 4)) * trainer.world
    if trainer.learner.compiler is not None:
        trainer.learner.compiler.late = False
    pace, each = StepPace(), []
    found |= {"mode": trainer.learner.mode, "attention": trainer.learner.attention, "groups": groups, "each": each}
    gpu = torch.cuda.is_available()
    gradient = trainer.backward
    spent = [0.0]

    def timed(work: Any) -> float:
        spent[0] -= now(gpu)
        value = float(gradient(work))
        spent[0] += now(gpu)
        return value

    trainer.backward = timed
    for step in range(args.steps):
        samples = batch(args, groups, step)
        spent[0] = 0.0
        if step == args.warm and gpu:
            torch.cuda.reset_peak_memory_stats()
        began = now(gpu)
        result = train(trainer, samples, pace, step)
        took = now(gpu) - began
        figures = result.figures
        each.append({"seconds": took, "gradient_s": spent[0], "outcome": result.outcome, "reason": result.reason, "referred": trainer.beta > 0} | {
            name: figures.get(name) for name in ("loss", "grad_norm", "kl", "layers_recomputed", "tokens_computed", "tokens", "micro_batches", "padding")
        })  # fmt: skip
        if counted := each[args.warm :]:
            plan = trainer.learner.plan([s for s in batch(args, groups, step) if not setattr(s, "advantage", 1.0)])
            flops = needed_flops(trainer.learner.base.config, plan)
            whole, mean = (sum(one[name] for one in counted) / len(counted) for name in ("seconds", "gradient_s"))
            found |= {
                "seconds": whole, "gradient_s": mean, "counted": len(counted), "step_computed_per_s_gpu": plan.tokens / whole / world, "computed_per_s_gpu": plan.tokens / mean / world, "sampled_per_s_gpu": plan.scored.tokens / mean / world,
                "needed_tflop": flops / 1e12, "share_of_peak": flops / mean / world / (PEAK_TFLOPS * 1e12),
            }  # fmt: skip
        told(args, found)


def cell_loss(args: argparse.Namespace) -> None:
    """Two gradients: the first is all of LoRA's B, which is zero before; the second is after a step."""
    from slipstream_trainer.algorithm.advantage import assign

    world = int(os.environ.get("WORLD_SIZE", "1"))
    config = settings(args, sharding="fsdp2" if world > 1 else "ddp", dtype="float32", beta_share=1.0)
    trainer, found = product(args, config, random=False)
    losses, norms = [], []
    for step in range(2):
        samples = batch(args, 4, step)
        assign(samples, "std")
        for s in samples:  # ratios that are not all one
            s.logprobs_C[:] += np.random.default_rng(step).normal(0, 0.05, len(s.logprobs_C)).astype(np.float32)
        plan = trainer.learner.plan(samples)
        trainer.learner.checkpointing.choose(plan)
        losses.append(trainer.backward(trainer.start(plan)))
        norms.append(trainer.learner.clip())
        trainer.learner.step(1e-3)
    told(args, found | {"losses": losses, "grad_norms": norms, "mode": trainer.learner.mode})


def cell_read(args: argparse.Namespace) -> None:
    """Reading alone; then a small batch, which says that the weights are there."""
    from slipstream_trainer.algorithm.advantage import assign

    world = int(os.environ.get("WORLD_SIZE", "1"))
    trainer, found = product(args, settings(args, sharding="fsdp2" if world > 1 else "ddp"), random=False)
    files = sum(path.stat().st_size for path in Path(args.folder, "model").glob("*.safetensors")) / 2**20
    samples = batch(args, world, 0)
    assign(samples, "std")
    plan = trainer.learner.plan(samples)
    trainer.learner.checkpointing.choose(plan)
    loss = trainer.backward(trainer.start(plan))
    told(args, found | {"files_mib": files, "loss": loss, "bound_mib": files / world + 0.2 * files})


def cell_trl(args: argparse.Namespace) -> None:
    """Each process has its share of the rows, ``--rows`` of them a micro-batch. Its base is made whole on each GPU first."""
    from datasets import Dataset
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from slipstream_trainer.algorithm.advantage import assign

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    began = time.perf_counter()
    described = AutoConfig.from_pretrained(f"{args.folder}/model")
    described.use_cache = False
    with torch.device("cuda" if gpu else "cpu"):
        base = AutoModelForCausalLM.from_config(described, dtype=torch.bfloat16 if gpu else torch.float32, attn_implementation="sdpa")  # fmt: skip
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", *([] if "moe" in args.shape else ["gate_proj", "up_proj", "down_proj"])]  # fmt: skip
    model = get_peft_model(base, LoraConfig(r=16, lora_alpha=32, target_modules=targets, task_type="CAUSAL_LM"))
    options = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}, "beta": 0.0}
    trainer = GRPOTrainer(
        model=model, reward_funcs=lambda **_: [0.0], train_dataset=Dataset.from_dict({"prompt": [""]}), processing_class=AutoTokenizer.from_pretrained(f"{args.folder}/model"),
        args=GRPOConfig(output_dir=f"{args.folder}/trl", report_to="none", bf16=gpu, use_cpu=not gpu, per_device_train_batch_size=8, num_generations=8, **options),
    )  # fmt: skip
    trainer.create_optimizer()
    trainer.model, trainer.optimizer = trainer.accelerator.prepare(trainer.model, trainer.optimizer)
    trainer.model_wrapped = trainer.model
    trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation = 1
    trainer.model.train()
    stock = small.Stock.__new__(small.Stock)
    stock.trainer = trainer
    start, each = time.perf_counter() - began, []
    for step in range(2):
        samples = batch(args, (args.groups or 2) * world, step)
        assign(samples, "std")
        rows, rewards = small.rows_of(samples, merged=True)
        share = -(-len(rows) // (world * args.rows)) * args.rows  # as many micro-batches on each
        mine = [i % len(rows) for i in range(rank * share, (rank + 1) * share)]
        if step == 0:
            mine = mine[: args.rows]
        if gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        if distributed.is_initialized():
            distributed.barrier()
        began = time.perf_counter()
        stock.run([rows[i] for i in mine], [rewards[i] for i in mine], args.rows)
        trainer.optimizer.step()
        if gpu:
            torch.cuda.synchronize()
        took = time.perf_counter() - began
        computed, sampled = sum(len(rows[i][0]) for i in mine), sum(int(rows[i][1].sum()) for i in mine)
        each.append({"seconds": took, "rows": len(mine)})
        told(args, {
            "start_s": start, "each": each, "seconds": took, "computed_per_s_gpu": computed / took, "sampled_per_s_gpu": sampled / took, "groups": (args.groups or 2) * world,
        })  # fmt: skip


CELLS = {"fsdp2": cell_steps, "ddp": cell_steps, "loss": cell_loss, "read": cell_read, "trl": cell_trl, "trl_fsdp2": cell_trl}  # fmt: skip
NEEDS_FILES = ("loss", "read")
ACCELERATE = {
    "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP", "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT", "FSDP_CPU_RAM_EFFICIENT_LOADING": "false", "FSDP_OFFLOAD_PARAMS": "false", "FSDP_ACTIVATION_CHECKPOINTING": "false",
}  # fmt: skip
"""What ``accelerate launch`` gives for ``fsdp_version: 2`` in its configuration."""
SAFE_ENV = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
"""Without NVLink multicast, which needs a right that a machine with lent GPUs may not give."""


# --- all cells


class Cell:
    def __init__(self, spec: str) -> None:
        shape, gpus, *kind = spec.split(":")
        self.spec, self.shape, self.gpus = spec, shape, int(gpus)
        self.kind = kind[0] if kind else ("fsdp2" if self.gpus > 1 else "ddp")
        if shape not in SHAPES or self.kind not in CELLS:
            raise SystemExit(f"{spec}: a cell is SHAPE:GPUS[:KIND]; shapes {', '.join(SHAPES)}; kinds {', '.join(CELLS)}")  # fmt: skip

    def start(self, args: argparse.Namespace, cards: list[int]) -> None:
        self.cards, self.began = cards, time.monotonic()
        name = self.spec.replace(":", "-")
        self.folder = args.work / name
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "found.json").unlink(missing_ok=True)
        own = [
            "-m", "benchmarks.trainer.bench_gpus", "--cell", self.spec, "--folder", str(self.folder), "--steps", str(args.steps), "--warm", str(args.warm),
            "--rows", str(args.rows), *(["--groups", str(args.groups)] if args.groups else []), *(word for flag in args.set for word in ("--set", flag)),
        ]  # fmt: skip
        torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={self.gpus}", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]  # fmt: skip
        more = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, cards)), "OMP_NUM_THREADS": str(args.threads)}
        if self.kind == "trl_fsdp2" or (self.kind == "trl" and self.gpus > 1):
            more |= ACCELERATE | {"FSDP_TRANSFORMER_CLS_TO_WRAP": "Qwen3MoeDecoderLayer" if "moe" in self.shape else "Qwen2DecoderLayer"}  # fmt: skip
        made = [sys.executable, *own, "--make"]
        self.log = (args.logs or args.work) / f"{name}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        script = 'set -e; "${@:1:$0}"; exec "${@:$0+1}"'
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                ["bash", "-c", script, str(len(made)), *made, *torchrun, *own], stdout=out, stderr=subprocess.STDOUT, start_new_session=True, env=child_env(**SAFE_ENV, **more)
            )  # fmt: skip

    def ended(self, limit: float) -> bool:
        over = time.monotonic() - self.began > limit
        if over and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        return self.process.poll() is not None

    def result(self, limit: float) -> dict[str, Any]:
        took = time.monotonic() - self.began
        try:
            found = json.loads((self.folder / "found.json").read_text())
        except (OSError, ValueError):
            found = {}
        if self.process.returncode:
            said = "" if took > limit else f": {self.log.read_text(errors='replace')[-1500:]}"
            found["ended"] = f"by its limit of {limit:.0f} s" if took > limit else f"with code {self.process.returncode}{said}"  # fmt: skip
        return {"cell": self.spec, "shape": self.shape, "gpus": self.gpus, "kind": self.kind, "whole_s": took, **found}


def run(args: argparse.Namespace) -> None:
    """Cells in their order, side by side where GPUs are free: no cell overtakes one before it."""
    waiting, running = [Cell(spec) for spec in args.cells.split(",")], []
    free, until = list(range(args.gpus)), time.monotonic() + args.until
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("a") as out:
        print(json.dumps({"made_by": provenance()}), file=out, flush=True)
        while waiting or running:
            for cell in [c for c in running if c.ended(min(args.limit, until - c.began))]:
                running.remove(cell)
                free = sorted([*free, *cell.cards])
                line = json.dumps(cell.result(min(args.limit, until - cell.began)))
                print(line, file=out, flush=True)
                print(line[:600], file=sys.stderr, flush=True)
            while waiting and waiting[0].gpus <= len(free) and until - time.monotonic() > args.least:
                cell = waiting.pop(0)
                cell.start(args, free[: cell.gpus])
                free = free[cell.gpus :]
                running.append(cell)
            if not running and waiting:
                print(f"not begun: {', '.join(c.spec for c in waiting)}", file=sys.stderr, flush=True)
                return
            time.sleep(0.2)


# --- what it will take


def plan(args: argparse.Namespace) -> None:
    """GiB a GPU, by the meta device and the trainer's own estimates."""
    from transformers import AutoConfig

    from slipstream_trainer.model.memory import ACTIVATION_SHARE, activation_bytes, decoder_layers, layers_to_checkpoint
    from slipstream_trainer.model.policy import choose_targets

    print(f"{'cell':10} {'base':>6} {'part':>6} {'gathered':>8} {'LoRA':>6} {'layers again':>13} {'activations':>11} {'sum':>6}")  # fmt: skip
    for cell in [Cell(spec) for spec in args.cells.split(",")]:
        model = skeleton(AutoConfig.for_model(**SHAPES[cell.shape]))
        text, layers = model.config.get_text_config(), decoder_layers(model)
        base = 2 * sum(p.numel() for p in model.parameters())
        layer = 2 * sum(p.numel() for p in layers[0].parameters())
        targets = set(choose_targets(model, "all-linear").names)
        adapted = [m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n.rpartition(".")[2] in targets]  # fmt: skip
        lora = (
            sum(16 * (m.in_features + m.out_features) for m in adapted) * 36
        )  # weights, slopes, Adam, and copies to go back to
        part = base if cell.gpus == 1 or cell.kind == "ddp" else base // cell.gpus
        gathered = 0 if part == base else 3 * layer + 2 * 2 * text.vocab_size * text.hidden_size
        entry, whole = 16_384 * text.hidden_size * 2, activation_bytes(model.config, 16_384, 2)
        room = int(ACTIVATION_SHARE * (139 * 2**30 - part - gathered - lora))
        again = layers_to_checkpoint(len(layers), whole, entry, room)
        kept = (len(layers) - again) * whole + again * entry + (whole if again else 0)
        row = [x / 2**30 for x in (base, part, gathered, lora, kept, part + gathered + lora + kept)]
        print(f"{cell.spec:10} {row[0]:6.1f} {row[1]:6.1f} {row[2]:8.1f} {row[3]:6.1f} {again:6} of {len(layers):3} {row[4]:11.1f} {row[5]:6.1f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default="14b:1,7b:1,moe:1,32b:1,14b:2,7b:2,32b:2,moe:2,14b:4,70b:4,moe:4,32b:4,7b:4")
    parser.add_argument("--gpus", type=int, default=max(1, torch.cuda.device_count()), help="of this host")
    parser.add_argument("--limit", type=float, default=200.0, help="seconds of a cell")
    parser.add_argument("--until", type=float, default=580.0, help="seconds of all cells")
    parser.add_argument("--least", type=float, default=60.0, help="seconds that must be left for a cell to begin")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--warm", type=int, default=1, help="steps that do not count")
    parser.add_argument("--groups", type=int, default=0, help="of a GPU in a step; 0: by the shape")
    parser.add_argument("--rows", type=int, default=4, help="rows of a micro-batch of TRL")
    parser.add_argument("--threads", type=int, default=8, help="of each process")
    parser.add_argument("--work", type=Path, default=Path("/tmp/slipstream-gpus"))
    parser.add_argument("--logs", type=Path, help="folder for the cells' logs")
    parser.add_argument("--out", type=Path, default=Path("gpus.jsonl"))
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--set", action="append", default=[], help="section.field=value of the configuration")
    for hidden in ("--cell", "--folder"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--make", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.plan:
        return plan(args)
    if not args.cell:
        return run(args)
    cell = Cell(args.cell)
    args.shape, args.kind = cell.shape, cell.kind
    if args.make:
        return make_folder(Path(args.folder) / "model", cell.shape, weights=cell.kind in NEEDS_FILES)
    try:
        CELLS[cell.kind](args)
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()
    return None


if __name__ == "__main__":
    main()
