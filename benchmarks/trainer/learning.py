"""How far a step may go: many LoRA policies learn one task side by side, each by other rules of a step.

    python -m benchmarks.trainer.learning MODEL TASKS.json TASK SPEC.json --out FILE [--seconds 120]

MODEL: a folder with a Llama or Gemma 3 (text) in safetensors. TASKS.json: of ``benchmarks.peers.tasks``. SPEC.json::

    {"runs": 104, "seeds": [0, 1], "steps": 24, "variants": [{"lag": 1, "target_kl": 0.03, "betas": [0.8, 0.95]}]}

A variant has a fixed ``learning_rate``, or a ``target_kl`` that its rate follows as the trainer's does; ``lag``: how many
steps old the policy is that its runs are sampled from; ``betas`` of AdamW; ``beta`` of the KL to the base model;
``is_max`` of the importance weights (0: none); ``passes`` over a batch; ``units`` of a minibatch, each of
``unit_groups`` groups, which stands beside ``runs`` (without them a batch is one minibatch). All of them share one base,
one forward pass and one backward pass, so that 24 of them take a GPU little longer than one does. KL is of the sampled
tokens, of a minibatch's last unit. The last line is one JSON object; FILE has each variant's rewards, KL and rates by
step.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.harness import report
from benchmarks.peers import tasks
from safetensors.torch import load_file
from torch.utils.checkpoint import checkpoint
from transformers import AutoTokenizer

from slipstream.settings import TrainerConfig
from slipstream_trainer.algorithm.learning_rate import (
    EPISODE_NATS,
    FULL_STEP_EPISODES,
    MOST_STEPS,
    TOO_FAR,
    Reach,
    StepPace,
    start_rate,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
GROUP_RUNS, LORA_RANK, LORA_SCALE, CHUNK_TOKENS = 8, 16, 2.0, 8192
MODULES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
Adapters = dict[tuple[int, str], tuple[torch.Tensor, torch.Tensor]]
"""(Layer, module) → A (variant, rank, input) and B (variant, output, rank)."""


class TokenLogprobs(torch.autograd.Function):
    """Log-probabilities of tokens, whose logits are computed in pieces and again on the way back."""

    @staticmethod
    def forward(ctx: Any, hidden_TH: torch.Tensor, head_VH: torch.Tensor, token_T: torch.Tensor) -> torch.Tensor:
        found_T, total_T = (torch.empty(len(hidden_TH), device=hidden_TH.device) for _ in range(2))
        for at in range(0, len(hidden_TH), CHUNK_TOKENS):
            part = slice(at, at + CHUNK_TOKENS)
            logits = (hidden_TH[part] @ head_VH.T).float()
            total_T[part] = torch.logsumexp(logits, -1)
            found_T[part] = logits.gather(-1, token_T[part, None])[:, 0] - total_T[part]
        ctx.save_for_backward(hidden_TH, head_VH, token_T, total_T)
        return found_T

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        hidden_TH, head_VH, token_T, total_T = ctx.saved_tensors
        slope_TH = torch.empty_like(hidden_TH)
        for at in range(0, len(hidden_TH), CHUNK_TOKENS):
            part = slice(at, at + CHUNK_TOKENS)
            share = -torch.exp((hidden_TH[part] @ head_VH.T).float() - total_T[part, None])
            share.scatter_add_(1, token_T[part, None], torch.ones_like(share[:, :1]))
            slope_TH[part] = (share * slopes[0][part, None]).to(hidden_TH.dtype) @ head_VH
        return slope_TH, None, None


class Policies:
    """One base model under the LoRA of many variants. A row is a run; the rows of a variant are neighbours."""

    def __init__(self, folder: Path, variants: int, seeds: list[int]) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        c = self.config
        self.gemma = c["model_type"].startswith("gemma")
        weights = {
            k.removeprefix("model."): v.to(DEVICE, DTYPE) for k, v in load_file(folder / "model.safetensors").items()
        }
        self.embedding, self.norm = weights["embed_tokens.weight"], weights["norm.weight"]
        self.head = weights.get("lm_head.weight", self.embedding)
        layers: range = range(c["num_hidden_layers"])
        self.layers = [
            {
                k.removeprefix(f"layers.{i}.").removesuffix(".weight"): v
                for k, v in weights.items()
                if k.startswith(f"layers.{i}.")
            }
            for i in layers
        ]
        self.heads, self.kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.head_size: int = c.get("head_dim") or c["hidden_size"] // self.heads
        ropes = c["rope_parameters"]
        self.thetas = [
            float(ropes[c["layer_types"][i]]["rope_theta"] if self.gemma else ropes["rope_theta"]) for i in layers
        ]
        self.variants = variants
        self.lora: Adapters = {}
        for i in layers:
            for name in MODULES:
                out, into = self.layers[i][name].shape
                drawn = [
                    torch.rand(
                        LORA_RANK,
                        into,
                        generator=torch.Generator().manual_seed(1000 * s + i * len(MODULES) + MODULES.index(name)),
                    )
                    for s in seeds
                ]
                a = ((torch.stack(drawn) * 2 - 1) / math.sqrt(into)).to(DEVICE).requires_grad_()
                self.lora[i, name] = a, torch.zeros(variants, out, LORA_RANK, device=DEVICE, requires_grad=True)
        self.trained = [p for pair in self.lora.values() for p in pair]

    def now(self, *, kept: bool = False) -> Adapters:
        """In the base's number format. ``kept``: a copy without gradients."""
        return {
            k: tuple(p.detach().to(DTYPE, copy=True) if kept else p.to(DTYPE) for p in v) for k, v in self.lora.items()
        }  # type: ignore[misc]

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return (y * (1 + weight.float())).to(x.dtype) if self.gemma else weight * y.to(x.dtype)

    def _linear(self, x: torch.Tensor, i: int, name: str, lora: Adapters | None) -> torch.Tensor:
        y = x @ self.layers[i][name].T
        if lora is None:
            return y
        a, b = lora[i, name]
        low = x.reshape(self.variants, -1, x.shape[-1]) @ a.transpose(1, 2)
        return torch.baddbmm(y.reshape(self.variants, -1, y.shape[-1]), low, b.transpose(1, 2), alpha=LORA_SCALE).view(
            y.shape
        )

    def _layer(
        self,
        x: torch.Tensor,
        i: int,
        lora: Adapters | None,
        rope: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor,
        cache: Any,
        at: int,
    ) -> torch.Tensor:
        w, (rows, length, _) = self.layers[i], x.shape
        h = self._normed(x, w["input_layernorm"])
        q, k, v = (
            self._linear(h, i, f"self_attn.{n}_proj", lora).view(rows, length, heads, self.head_size).transpose(1, 2)
            for n, heads in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads))
        )
        if self.gemma:
            q, k = self._normed(q, w["self_attn.q_norm"]), self._normed(k, w["self_attn.k_norm"])
        half = self.head_size // 2
        q, k = (z * rope[0] + torch.cat([-z[..., half:], z[..., :half]], -1) * rope[1] for z in (q, k))
        if cache is not None:
            for kept, new in zip(cache[i], (k, v), strict=True):
                kept[:, :, at : at + length] = new
            k, v = (kept[:, :, : at + length] for kept in cache[i])
        scale = self.config["query_pre_attn_scalar"] ** -0.5 if self.gemma else self.head_size**-0.5
        k, v = (z.repeat_interleave(self.heads // self.kv_heads, 1) for z in (k, v))
        out = (
            F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
            .transpose(1, 2)
            .reshape(rows, length, -1)
        )
        out = self._linear(out, i, "self_attn.o_proj", lora)
        x = x + (self._normed(out, w["post_attention_layernorm"]) if self.gemma else out)
        h = self._normed(x, w["pre_feedforward_layernorm" if self.gemma else "post_attention_layernorm"])
        gate = self._linear(h, i, "mlp.gate_proj", lora)
        gate = F.gelu(gate, approximate="tanh") if self.gemma else F.silu(gate)
        out = self._linear(gate * self._linear(h, i, "mlp.up_proj", lora), i, "mlp.down_proj", lora)
        return x + (self._normed(out, w["post_feedforward_layernorm"]) if self.gemma else out)

    def hidden(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
        lora: Adapters | None,
        cache: Any = None,
        at: int = 0,
    ) -> torch.Tensor:
        """What the head reads, for each place of each row. ``cache``: keys and values of ``at`` earlier places."""
        x = self.embedding[ids]
        if self.gemma:
            x = x * torch.tensor(self.config["hidden_size"] ** 0.5, dtype=DTYPE, device=DEVICE)
        ropes = {}
        for theta in {*self.thetas}:
            angle = positions.float()[..., None] / theta ** (
                torch.arange(0, self.head_size, 2, device=DEVICE) / self.head_size
            )
            both = torch.cat([angle, angle], -1)
            ropes[theta] = both.cos().to(DTYPE)[:, None], both.sin().to(DTYPE)[:, None]
        for i in range(len(self.layers)):
            args = (x, i, lora, ropes[self.thetas[i]], mask, cache, at)
            x = checkpoint(self._layer, *args, use_reentrant=False) if torch.is_grad_enabled() else self._layer(*args)
        return self._normed(x, self.norm)


@dataclass
class Learner:
    """One variant with one seed."""

    rules: dict[str, Any]
    order: Iterator[int]
    pace: StepPace = field(default_factory=StepPace)
    log: list[dict[str, float]] = field(default_factory=list)
    teach: int = 0
    tokens: float = 0.0
    runs: int = 0
    """Of the minibatch so far."""


def tasks_in_turn(count: int, seed: int) -> Iterator[int]:
    order = random.Random(seed)
    while True:
        yield from order.sample(range(count), count)


class World:
    """A task, and policies that learn it."""

    def __init__(self, folder: Path, items: list[dict[str, str]], spec: dict[str, Any]) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(str(folder))
        ends = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
        self.ends = torch.tensor(ends if isinstance(ends, list) else [ends], device=DEVICE)
        self.items, self.runs = items, int(spec["runs"])
        self.prompts: list[list[int]] = [
            self.tokenizer.apply_chat_template(tasks.messages(x["q"]), add_generation_prompt=True, return_dict=True)[
                "input_ids"
            ]
            for x in items
        ]
        self.width = max(map(len, self.prompts))
        pairs = [(rules, seed) for rules in spec["variants"] for seed in spec["seeds"]]
        self.learners = [Learner(rules | {"seed": seed}, tasks_in_turn(len(items), seed)) for rules, seed in pairs]
        self.policies = Policies(folder, len(pairs), [seed for _, seed in pairs])
        self.first = [p.detach().clone() for p in self.policies.trained]
        self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in self.policies.trained]
        self.past: list[Adapters] = []
        self.steps = 0
        self.taken = torch.zeros(len(pairs), device=DEVICE)
        self.unit_groups: int = spec.get("unit_groups", self.runs // GROUP_RUNS)

    def each(self, name: str, default: Any, at: int | None = None) -> torch.Tensor:
        """A rule of each variant, as (variant)."""
        values = [x.rules.get(name, default) for x in self.learners]
        return torch.tensor([float(v if at is None else v[at]) for v in values], device=DEVICE)

    def sampled_from(self) -> Adapters:
        """Each variant's policy of ``lag`` steps ago."""
        most = 1 + max(x.rules.get("lag", 0) for x in self.learners)
        self.past = [*self.past, self.policies.now(kept=True)][-most:]
        ages = [min(x.rules.get("lag", 0), len(self.past) - 1) for x in self.learners]
        return {
            k: tuple(torch.stack([self.past[-1 - age][k][z][v] for v, age in enumerate(ages)]) for z in (0, 1))
            for k in self.policies.lora
        }  # type: ignore[misc]

    @torch.no_grad()
    def sample(self) -> Batch:
        """A step's runs of every variant, with their rewards."""
        chosen = [next(x.order) for x in self.learners for _ in range(self.runs // GROUP_RUNS)]
        rows, width, length = len(chosen) * GROUP_RUNS, self.width, self.width + tasks.MAX_TOKENS
        ids, pad = torch.zeros(rows, length, dtype=torch.long), torch.zeros(rows, dtype=torch.long)
        for n, item in enumerate(chosen):
            prompt, part = self.prompts[item], slice(n * GROUP_RUNS, (n + 1) * GROUP_RUNS)
            ids[part, width - len(prompt) : width], pad[part] = torch.tensor(prompt), width - len(prompt)
        ids, pad = ids.to(DEVICE), pad.to(DEVICE)
        place = torch.arange(length, device=DEVICE)
        seen = (place[None, :] <= place[:, None]) & (place[None, None, :] >= pad[:, None, None]) | torch.eye(
            length, dtype=torch.bool, device=DEVICE
        )
        batch = Batch(ids, (place - pad[:, None]).clamp(min=0), seen[:, None])
        p, lora = self.policies, self.sampled_from()
        cache = [
            tuple(torch.zeros(rows, p.kv_heads, length, p.head_size, dtype=DTYPE, device=DEVICE) for _ in "kv")
            for _ in p.layers
        ]
        alive = torch.ones(rows, dtype=torch.bool, device=DEVICE)
        old, kept = (
            torch.zeros(rows, tasks.MAX_TOKENS, device=DEVICE),
            torch.zeros(rows, tasks.MAX_TOKENS, dtype=torch.bool, device=DEVICE),
        )
        begin, end = 0, width
        for n in range(tasks.MAX_TOKENS):
            hidden = p.hidden(
                ids[:, begin:end], batch.positions[:, begin:end], batch.seen[:, :, begin:end, :end], lora, cache, begin
            )[:, -1]
            for at in range(0, rows, CHUNK_TOKENS):
                part = slice(at, at + CHUNK_TOKENS)
                logprobs = torch.log_softmax((hidden[part] @ p.head.T).float(), -1)
                new = (logprobs - torch.empty_like(logprobs).exponential_().log()).argmax(-1)
                old[part, n] = logprobs.gather(-1, new[:, None])[:, 0]
                ids[part, width + n] = torch.where(alive[part], new, 0)
            kept[:, n] = alive
            alive &= ~torch.isin(ids[:, width + n], self.ends)
            begin, end = end, end + 1
        batch.kept, batch.engine_T = kept.reshape(-1), old.reshape(-1)[kept.reshape(-1)]
        texts = self.tokenizer.batch_decode(
            [row[on].tolist() for row, on in zip(ids[:, width:].cpu(), kept.cpu(), strict=True)],
            skip_special_tokens=True,
        )
        rewards = [tasks.reward(text, self.items[chosen[n // GROUP_RUNS]]["a"]) for n, text in enumerate(texts)]
        batch.rewards = torch.tensor(rewards, device=DEVICE).view(len(self.learners), -1, GROUP_RUNS)
        return batch

    def logprobs(self, batch: Batch, lora: Adapters | None) -> torch.Tensor:
        """Of the sampled tokens (T)."""
        length = batch.ids.shape[1] - 1
        hidden = self.policies.hidden(
            batch.ids[:, :-1], batch.positions[:, :-1], batch.seen[:, :, :length, :length], lora
        )
        own = hidden[:, self.width - 1 :].reshape(-1, hidden.shape[-1])[batch.kept]
        found: torch.Tensor = TokenLogprobs.apply(
            own, self.policies.head, batch.ids[:, self.width :].reshape(-1)[batch.kept]
        )  # type: ignore[no-untyped-call]
        return found

    def step(self) -> None:
        """One batch of every variant, in each one's minibatches, as often as each one passes over it."""
        batch = self.sample()
        centred = batch.rewards - batch.rewards.mean(-1, keepdim=True)
        batch.advantage = (centred / (batch.rewards.std(-1, keepdim=True) + 1e-4)).view(-1)
        units = [self.part(batch, groups) for groups in torch.arange(self.runs // GROUP_RUNS).split(self.unit_groups)]
        for v, x in enumerate(self.learners):
            x.log.append({"reward": round(float(batch.rewards[v].mean()), 4)})
        for passes in range(max(int(x.rules.get("passes", 1)) for x in self.learners)):
            for n, unit in enumerate(units):
                steps = [
                    passes < x.rules.get("passes", 1)
                    and ((n + 1) % x.rules.get("units", len(units)) == 0 or n + 1 == len(units))
                    for x in self.learners
                ]
                self.minibatch(unit, torch.tensor(steps, device=DEVICE), passes)
        self.steps += 1

    def part(self, batch: Batch, groups: torch.Tensor) -> Batch:
        """These groups of every variant."""
        runs = (groups[:, None] * GROUP_RUNS + torch.arange(GROUP_RUNS)).view(-1)
        rows = (torch.arange(len(self.learners))[:, None] * self.runs + runs).view(-1).to(DEVICE)
        kept = batch.kept.view(len(batch.ids), -1)
        engine = torch.zeros(kept.shape, device=DEVICE).masked_scatter(kept, batch.engine_T)
        part = Batch(batch.ids[rows], batch.positions[rows], batch.seen[rows], kept[rows].view(-1))
        part.engine_T = engine[rows][kept[rows]]
        part.advantage, part.rewards = batch.advantage[rows], batch.rewards[:, groups.to(DEVICE)]
        return part

    def minibatch(self, batch: Batch, steps: torch.Tensor, passes: int) -> None:
        """Gradients of every variant, and a step of those whose minibatch is whole."""
        variants, runs = len(self.learners), len(batch.ids) // len(self.learners)
        row_T = torch.arange(len(batch.ids), device=DEVICE).repeat_interleave(tasks.MAX_TOKENS)[batch.kept]
        of_T = row_T // runs
        tokens = torch.bincount(of_T, minlength=variants).float()
        teach = (batch.rewards.std(-1) > 0).sum(-1) * GROUP_RUNS
        base_T = None
        if self.each("beta", 0.0).any():
            with torch.no_grad():
                base_T = self.logprobs(batch, None)
        now_T = self.logprobs(batch, self.policies.now())
        trainer_T = now_T.detach()
        cap_T = self.each("is_max", 2.0)[of_T]
        ratio_T, weight_T = (now_T - trainer_T).exp(), torch.minimum((trainer_T - batch.engine_T).exp(), cap_T)
        weight_T = torch.where(self.each("is_max", 2.0)[of_T] > 0, weight_T, torch.ones_like(weight_T))
        gain_T = weight_T * ratio_T.detach() * now_T * batch.advantage[row_T]
        if base_T is not None:
            apart_T = base_T - now_T
            gain_T = gain_T - self.each("beta", 0.0)[of_T] * weight_T * ratio_T * (apart_T.exp() - apart_T - 1)
        torch.autograd.backward(-gain_T.sum())
        for v, x in enumerate(self.learners):
            x.teach, x.tokens, x.runs = x.teach + int(teach[v]), x.tokens + float(tokens[v]), x.runs + runs
        if not steps.any():
            return
        taking = [v for v, on in enumerate(steps.tolist()) if on]
        reaches = [self.reach(v, x.teach, x.tokens, x.runs) for v, x in enumerate(self.learners)]
        before = [p.detach().clone() for p in self.policies.trained]
        total = torch.tensor([x.tokens for x in self.learners], device=DEVICE)
        self.optimise(torch.tensor([r.rate for r in reaches], device=DEVICE), steps, total)
        target = torch.tensor([r.target_kl for r in reaches], device=DEVICE)
        full = kl = self.moved(batch, trainer_T, of_T, tokens)
        for _ in range(2):
            factor = torch.where(kl > TOO_FAR * target, (target / kl).clamp(min=0.0025).sqrt(), 1.0)
            with torch.no_grad():
                for p, old in zip(self.policies.trained, before, strict=True):
                    p.copy_(torch.lerp(old, p, factor.view(-1, 1, 1)))
            kl = self.moved(batch, trainer_T, of_T, tokens)
        for v in taking:
            x = self.learners[v]
            x.pace.note(settings_of(x.rules), reaches[v], float(full[v]), undone=False)
            x.log[-1] |= {"kl": round(float(kl[v]), 5), "rate": reaches[v].rate, "teach": float(x.teach)}
            x.teach, x.tokens, x.runs = 0, 0.0, 0

    def reach(self, v: int, teach: int, tokens: float, runs: int) -> Reach:
        """As ``StepPace.reach``, whose batch has other types."""
        t, share = settings_of(self.learners[v].rules), min(MOST_STEPS, teach / FULL_STEP_EPISODES)
        rate = start_rate(t, self.policies.config["hidden_size"]) * self.learners[v].pace.scale
        if t.learning_rate != "auto":
            return Reach(rate, math.inf)
        return Reach(
            rate * math.sqrt(share), min(t.target_kl, EPISODE_NATS * runs / max(tokens, 1.0) * min(1.0, share))
        )

    def optimise(self, rate: torch.Tensor, steps: torch.Tensor, tokens: torch.Tensor) -> None:
        """AdamW of the variants that step, each gradient over its tokens and clipped to 1. The others keep theirs."""
        grads = [p.grad / tokens.clamp(min=1).view(-1, 1, 1) for p in self.policies.trained if p.grad is not None]
        norm = sum((g.flatten(1) ** 2).sum(1) for g in grads) ** 0.5
        first, second = (self.each("betas", (0.8, 0.95), at).view(-1, 1, 1) for at in (0, 1))
        self.taken = self.taken + steps
        n, on = self.taken.clamp(min=1).view(-1, 1, 1), steps.view(-1, 1, 1)
        with torch.no_grad():
            for p, grad, (mean, square) in zip(self.policies.trained, grads, self.moments, strict=True):
                grad = grad * (1 / (norm + 1e-6)).clamp(max=1.0).view(-1, 1, 1)
                mean.copy_(torch.where(on, first * mean + (1 - first) * grad, mean))
                square.copy_(torch.where(on, second * square + (1 - second) * grad**2, square))
                change = (mean / (1 - first**n)) / ((square / (1 - second**n)).sqrt() + 1e-8)
                p -= torch.where(on, rate.view(-1, 1, 1) * change, 0.0)
                if p.grad is not None:
                    p.grad = torch.where(on, 0.0, p.grad)

    @torch.no_grad()
    def moved(self, batch: Batch, trainer_T: torch.Tensor, of_T: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """KL of each variant's step, nats a token."""
        apart_T = self.logprobs(batch, self.policies.now()) - trainer_T
        return torch.zeros(len(tokens), device=DEVICE).index_add(0, of_T, apart_T.exp() - apart_T - 1) / tokens


@dataclass
class Batch:
    """Rows are runs; prompts end at one place, and replies begin there."""

    ids: torch.Tensor
    positions: torch.Tensor
    seen: torch.Tensor
    kept: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    """Which places of all replies were sampled."""
    engine_T: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    rewards: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    """(Variant, group, run)."""
    advantage: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    """Of each row."""


def settings_of(rules: dict[str, Any]) -> TrainerConfig:
    return TrainerConfig(**{k: v for k, v in rules.items() if k in ("learning_rate", "target_kl")})


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("task")
    parser.add_argument("spec", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=120.0)
    args = parser.parse_args()
    began, spec = time.time(), json.loads(args.spec.read_text())
    world = World(args.model, json.loads(args.tasks.read_text())[args.task][tasks.HELD_OUT :], spec)
    while world.steps < spec["steps"] and time.time() - began < args.seconds:
        world.step()
    found = [{"rules": x.rules, "steps": x.log} for x in world.learners]
    args.out.write_text(json.dumps({"task": args.task, "runs": world.runs, "variants": found}, indent=1) + "\n")
    last = [
        {**x.rules, "last": round(statistics.fmean(s["reward"] for s in x.log[-3:]), 3)}
        for x in world.learners
        if x.log
    ]
    report({"task": args.task, "steps": world.steps, "variants": last})


if __name__ == "__main__":
    main()
