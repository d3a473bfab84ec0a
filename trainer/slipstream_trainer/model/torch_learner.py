"""The learner in this process: a PEFT model, and torch's AdamW. Several processes share the micro-batches."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from slipstream.config import Config
from slipstream.errors import StartError
from slipstream_trainer.batch.layout import BLOCK_TOKENS, Costs, Layout, MicroBatch, Plan, make_plan
from slipstream_trainer.batch.work import Lesson, Work
from slipstream_trainer.model.adapter import changes_base, distance, fit, halves_of, load_adapter, scales_of
from slipstream_trainer.model.adapter_files import save_adapter
from slipstream_trainer.model.compute import LayerCompiler, ScoredPositions, add_scored_head, tree_mask
from slipstream_trainer.model.graphs import DecoderGraphs, decode
from slipstream_trainer.model.learner import Learner, Passed
from slipstream_trainer.model.lora_sums import use_sums
from slipstream_trainer.model.memory import Checkpointing, decoder_layers, largest
from slipstream_trainer.model.policy import is_frugal, takes_trees
from slipstream_trainer.model.shards import even
from slipstream_trainer.model.weights import Snapshot, kept_weights, put_weights, weights_of

if TYPE_CHECKING:
    from accelerate import Accelerator
    from peft import PeftModel
    from transformers import PreTrainedModel

    from slipstream_trainer.batch.rows import Sample

CPU_MICRO = 2048
"""Tokens of a micro-batch on a CPU: what stays in its caches, and the activations of one at a time."""
LAYOUT_BY_BACKEND: dict[str, Layout] = {"auto": "auto", "merged": "merged", "frugal": "merged", "tree": "tree"}


class TorchLearner(Learner):
    """``trees``, ``forests``: whether rows may be laid out so. A self-check may find that they may not."""

    def __init__(
        self,
        model: PeftModel,
        optimizer: torch.optim.Optimizer,
        accelerator: Accelerator,
        config: Config,
        output: Path,
        *,
        bf16: bool,
    ) -> None:
        """``output``: where the compiler's processes write. ``bf16``: the passes' products are."""
        self.model, self.optimizer, self.accelerator = model, optimizer, accelerator
        self.config, self.bf16 = config, bf16
        self.base = base = cast("PreTrainedModel", model.get_base_model())
        self.dtype = base.dtype
        self.trained = [p for p in model.parameters() if p.requires_grad]
        self.device = accelerator.device
        self.world = int(accelerator.num_processes)
        self.graphs = self._graphs()
        if self.graphs:
            use_sums(model)
        add_scored_head(base, self.graphs or decode)
        self.hidden = int(base.config.get_text_config().hidden_size)
        self.vocab = int(cast("torch.nn.Embedding", base.get_input_embeddings()).weight.shape[0])
        self.attention = str(base.config._attn_implementation)
        self.frugal = is_frugal(base)
        self.sharded = config.trainer.sharding == "fsdp2"
        self.trees = not self.frugal and takes_trees(base.config)
        self.forests = self.frugal or self.attention == "flex_attention"
        layers = [] if self.frugal else decoder_layers(base)  # Unsloth does its own
        self.checkpointing = Checkpointing(base, layers, self.device, config.trainer.checkpointing)
        self.compiler: LayerCompiler | None = None
        if self.attention == "flex_attention" and config.trainer.compile:
            self.compiler = LayerCompiler(base, layers, config, output, beside=self.world == 1)
        self.first = {} if config.trainer.algorithm == "sft" else weights_of(model)
        """Weights of the adapter that training started from, for β and for users' words. A new adapter's are the base
        model: it changes nothing. A model whose adapter is switched off would be compiled once more.
        """

    @functools.cached_property
    def costs(self) -> Costs:
        """By the base model's shape."""
        c = self.base.config.get_text_config()
        size = largest(c, "head_dim") or c.hidden_size // c.num_attention_heads
        weights = sum(p.numel() for n, p in self.model.named_parameters() if p.dim() == 2 and "embed_tokens" not in n)
        return Costs.of_shape(
            weights=weights,
            heads=c.num_attention_heads,
            head_size=size,
            layers=c.num_hidden_layers,
            dense=self.attention != "flex_attention",
        )

    def _graphs(self) -> DecoderGraphs | None:
        """None: the weights move (``engine.share``, sharding), the layers are another library's, or nothing is to be
        compiled.
        """
        t, c = self.config.trainer, self.config
        moves = c.engine.share or t.sharding == "fsdp2" or self.world > 1
        if self.device.type != "cuda" or not t.compile or moves or t.quantize != "none" or is_frugal(self.base):
            return None
        return DecoderGraphs(self.base, self.trained, torch.bfloat16 if self.bf16 else self.base.dtype)

    @property
    def mode(self) -> str:
        """``tree``, ``merged`` or ``frugal``: as it was asked for, or chosen by itself."""
        asked = self.config.trainer.mode
        return "frugal" if self.frugal else "merged" if asked == "merged" or not self.trees else "tree"

    # a batch

    def plan(self, samples: Sequence[Sample]) -> Plan:
        """For this device; on several processes there is work for each."""
        t = self.config.trainer
        cpu = self.device.type == "cpu"
        micro = min(t.token_budget, CPU_MICRO) if cpu else t.token_budget
        if self.world > 1:
            total = sum(len(s.prompt_P) + len(s.completion_C) for s in samples if s.trainable)
            micro = min(micro, -(-total // (2 * self.world)))
        plan = make_plan(
            samples,
            layout=LAYOUT_BY_BACKEND[t.mode] if self.trees else "merged",
            budget=t.token_budget,
            micro=max(1, micro),
            costs=self.costs,
            multiple=1 if cpu else BLOCK_TOKENS,
            forest=self.forests,
            compiled=self.compiler.ready if self.compiler and self.world == 1 else (),
        )
        return even(plan, self.world) if self.sharded else plan

    def prepare(self, plan: Plan) -> int:
        return self.checkpointing.choose(plan)

    def logprobs(
        self,
        micro: MicroBatch,
        work: Work,
        places_P: torch.Tensor | None = None,
        old_PH: torch.Tensor | None = None,
        lesson: Lesson | None = None,
    ) -> Passed:
        d = self.device
        attention = self.compiler.switch(*micro.ids_RN.shape) if self.compiler else self.attention
        inputs: dict[str, Any] = {"input_ids": torch.from_numpy(micro.ids_RN).to(d)}
        if micro.ends_RN is not None and micro.positions_RN is not None:
            inputs["position_ids"] = torch.from_numpy(micro.positions_RN).to(d)
            if not self.frugal:  # Unsloth reads from the positions where a sequence begins
                boolean = d.type == "cpu" and attention == "sdpa"  # eager attention adds its mask to the scores
                added = None if boolean else torch.bfloat16 if self.bf16 else self.base.dtype
                inputs["attention_mask"] = tree_mask(torch.from_numpy(micro.ends_RN).to(d), attention, added)
        source, target, token = (
            torch.from_numpy(x).to(d) for x in (micro.slots.source_S, micro.slots.target_S, micro.slots.token_S)
        )
        score = ScoredPositions(
            source,
            target,
            None if work.inverse_temperature_T is None else work.inverse_temperature_T[token],
            places_P,
            old_PH,
            filter_S3=None if work.filter_T3 is None else work.filter_T3[token],
        )
        if lesson is not None and len(taught := lesson.of_these(token)):
            score.taught_W, score.teacher_WH = taught, lesson.hidden_WH[lesson.row_T[token[taught]].cpu()].to(d)
        if self.graphs:
            self.graphs.off = self.checkpointing.now > 0 or attention == "flex_attention"
        before = self.checkpointing.allocated()
        with self.accelerator.autocast():
            logps, entropy, *more = self.model(**inputs, score=score)
        score.to_teacher_W, score.from_teacher_W = more or (None, None)
        if logps.requires_grad and not (self.graphs and self.graphs.used):
            self.checkpointing.note(before, micro.computed)
        return logps, entropy, token, score

    def backward(
        self, micro: MicroBatch, logprobs_S: torch.Tensor, slope_S: torch.Tensor, words: torch.Tensor | None = None
    ) -> None:
        if words is None:
            torch.autograd.backward(logprobs_S, slope_S)
        else:
            torch.autograd.backward([logprobs_S, words], [slope_S, None])

    def gathered(self, plan: Plan, seconds: float) -> None:
        """Sum the gradients over processes."""
        if self.world > 1:
            grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.trained]
            flat = torch.cat([g.reshape(-1) for g in grads])
            torch.distributed.all_reduce(flat)
            for p, g in zip(self.trained, torch.split(flat, [g.numel() for g in grads]), strict=True):
                p.grad = g.view_as(p)
        if self.compiler:
            self.compiler.note(plan.micro, seconds)

    def makes_room(self) -> bool:
        if self.graphs:
            self.graphs.clear()
        return self.world == 1 and self.checkpointing.ran_out()

    def differs_without_gradients(self, plan: Plan) -> bool:
        """Compiled layers and other libraries do."""
        compiled = self.compiler is not None and any(m.ids_RN.shape[1] in self.compiler.ready for m in plan.micro)
        return self.device.type != "cpu" and (compiled or self.frugal or self.sharded)

    def zero_grads(self) -> None:
        """Gradients have memory of their own where graphs are: what a graph's backward pass returns is the graph's."""
        if self.graphs is None:
            self.model.zero_grad(set_to_none=True)
            return
        for p in self.trained:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        torch._foreach_zero_([p.grad for p in self.trained if p.grad is not None])

    def clip(self) -> float:
        return float(self.accelerator.clip_grad_norm_(self.trained, self.config.trainer.max_grad_norm))

    def step(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.zero_grads()

    # weights

    def save(self, *, keep: bool = False) -> Snapshot:
        return Snapshot.take(self.model, self.optimizer, "cpu" if keep else None)

    def restore(self, snapshot: Snapshot) -> None:
        snapshot.restore(self.model, self.optimizer)

    def resize(self, snapshot: Snapshot, factor: float) -> None:
        snapshot.resize(self.model, factor)

    def adopt(self, snapshot: Snapshot, scales: dict[str, float] | None, whose: str) -> bool:
        if not snapshot.weights:
            raise StartError(f"{whose} was made with another trainer.backend")
        now = self.scales()
        if snapshot.misfit(self.model) is None and (scales or now) == now:
            self.restore(snapshot)
            return False
        fit(self.model, halves_of(snapshot.weights), (scales or now).__getitem__, whose)
        self.optimizer.state.clear()
        return True

    def scales(self) -> dict[str, float]:
        return scales_of(self.model)

    def load(self, folder: Path) -> None:
        load_adapter(self.model, folder)
        self.optimizer.state.clear()

    def distance(self, folder: Path) -> float:
        return distance(self.model, folder)

    def adapter(self, folder: Path, snapshot: Snapshot | None = None) -> None:
        save_adapter(self.model, folder, snapshot.weights if snapshot else None)

    @property
    def changes_base(self) -> bool:
        return changes_base(self.model)

    # the policy that is held to

    @contextlib.contextmanager
    def reference(self) -> Iterator[None]:
        with kept_weights(self.model):
            put_weights(self.model, self.first)
            yield

    def hold(self, start: Snapshot, folder: Path | None) -> None:
        with kept_weights(self.model) as now:
            put_weights(self.model, {n: w.to(now[n]) for n, w in start.weights.items()})
            if folder is not None:
                load_adapter(self.model, folder)
            self.first = weights_of(self.model)
