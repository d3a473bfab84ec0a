"""TRL's GRPOTrainer, fed with captured tokens.

TRL keeps the loss, accelerate and the loggers; ours are where the log-probabilities come from (chains and trees,
scored positions only, each call's temperature) and the order of a step, because guards stand between its parts.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.trainer_callback import PrinterCallback

from slipstream.config import Config
from slipstream_trainer.attention import tree_mask
from slipstream_trainer.guards import put_weights, weights_of
from slipstream_trainer.head import ScoredPositions, add_scored_head
from slipstream_trainer.layers import compile_layers
from slipstream_trainer.losses import SEQUENCE, part_factor
from slipstream_trainer.memory import Checkpointing, decoder_layers
from slipstream_trainer.plan import MicroBatch, Plan
from slipstream_trainer.policy import is_frugal, takes_trees
from slipstream_trainer.shards import looked_at
from slipstream_trainer.trl_seam import GRPOConfig, GRPOTrainer, grpo_config
from slipstream_trainer.work import Work

log = logging.getLogger(__name__)

CPU_MICRO = 2048
"""Tokens of a micro-batch on a CPU: what stays in its caches, and the activations of one at a time."""


def _no_reward(**_: object) -> list[float | None]:
    """TRL wants one; rewards came with the episodes."""
    raise RuntimeError("captured episodes have their rewards")


class CapturedGRPOTrainer(GRPOTrainer):
    """``backward`` a plan, then ``optimize``. Several processes share the micro-batches and sum their gradients."""

    model: PeftModel
    optimizer: torch.optim.Optimizer
    args: GRPOConfig

    def __init__(self, model: PeftModel, tokenizer: PreTrainedTokenizerBase, config: Config, output: Path) -> None:
        empty = Dataset.from_dict({"prompt": [""]})
        super().__init__(
            model=model,
            reward_funcs=_no_reward,
            args=grpo_config(config, output),
            train_dataset=empty,
            processing_class=tokenizer,
        )
        self.config = config
        self.beta = config.trainer.beta  # not in the arguments: TRL would compute with a second adapter in memory
        self.use_vllm = True  # the log-probabilities are an engine's: TRL's loss takes the importance weights
        self.vllm_importance_sampling_correction = True
        self.current_gradient_accumulation_steps = 1
        self.args.steps_per_generation = 1
        self.base = base = cast("PreTrainedModel", self.model.get_base_model())
        add_scored_head(base)
        self.hidden = int(base.config.get_text_config().hidden_size)
        self.vocab = int(cast("torch.nn.Embedding", base.get_input_embeddings()).weight.shape[0])
        self.device = self.accelerator.device
        self.attention = str(base.config._attn_implementation)
        self.frugal = is_frugal(base)
        self.sharded = config.trainer.sharding == "fsdp2"
        self.trees = not self.frugal and takes_trees(base.config)
        self.forests = self.frugal or self.attention == "flex_attention"
        layers = [] if self.frugal else decoder_layers(base)  # Unsloth does its own
        self.checkpointing = Checkpointing(base, layers, self.device, config.trainer.checkpointing)
        self.compiled = self.attention == "flex_attention" and config.trainer.compile
        if self.compiled:
            compile_layers(layers)
        self.remove_callback(PrinterCallback)  # steps are logged
        self.create_optimizer()
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.first = weights_of(self.model) if self.beta and not self.sft else {}
        """Weights of the adapter that training started from, where β needs them. A new adapter's are the base model:
        it changes nothing. A model whose adapter is switched off would be compiled once more.
        """
        self._given: tuple[torch.Tensor, torch.Tensor] | None = None
        self.model.train()

    @property
    def mode(self) -> str:
        """``tree``, ``merged`` or ``frugal``: as it was asked for, or chosen by itself."""
        asked = self.config.trainer.mode
        return "frugal" if self.frugal else "merged" if asked == "merged" or not self.trees else "tree"

    @property
    def sft(self) -> bool:
        """Imitate: mean negative log-likelihood of the trained tokens."""
        return self.config.trainer.algorithm == "sft"

    @property
    def world(self) -> int:
        return int(self.accelerator.num_processes)

    @property
    def rank(self) -> int:
        return int(self.accelerator.process_index)

    # what TRL asks for

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Our batches are ready: no generation."""
        return generation_batch

    def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> Any:
        """What ``_loss`` has just computed, in the loss's shape."""
        if self._given is None:
            raise RuntimeError("log-probabilities are asked for outside of a loss")
        return *self._given, None

    # a batch

    def start(self, plan: Plan) -> Work:
        """A batch's work, with the reference's log-probabilities where β asks for them."""
        work = Work.of(plan, self.device)
        if self.first:
            self._refer(work)
        return work

    def mine(self, plan: Plan) -> list[MicroBatch]:
        return plan.micro[self.rank :: self.world]

    def forward(self, micro: MicroBatch, work: Work) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """→ log-probabilities (with gradient), entropies, and which tokens of the batch they are, all (S)."""
        d = self.device
        inputs: dict[str, Any] = {"input_ids": torch.from_numpy(micro.ids_RN).to(d)}
        if micro.ends_RN is not None and micro.positions_RN is not None:
            inputs["position_ids"] = torch.from_numpy(micro.positions_RN).to(d)
            if not self.frugal:  # Unsloth reads from the positions where a sequence begins
                inputs["attention_mask"] = tree_mask(torch.from_numpy(micro.ends_RN).to(d), self.attention)
        source, target, token = (
            torch.from_numpy(x).to(d) for x in (micro.slots.source_S, micro.slots.target_S, micro.slots.token_S)
        )
        score = ScoredPositions(
            source, target, None if work.inverse_temperature_T is None else work.inverse_temperature_T[token]
        )
        before = self.checkpointing.allocated()
        with self.accelerator.autocast():
            logps, entropy = self.model(**inputs, score=score)
        if logps.requires_grad:
            self.checkpointing.note(before, micro.computed)
        return logps, entropy, token

    def _note(self, work: Work, logps: torch.Tensor, entropy: torch.Tensor, token: torch.Tensor) -> None:
        now = logps.detach()
        work.policy_logprobs_T[token], work.entropy_T[token] = now, entropy
        if work.fresh:
            work.trainer_logprobs_T[token] = now
            log_ratio = now - work.behavior_logprobs_T[token]
            said = work.sample_T[token]  # one call's tokens are never apart
            sums = torch.zeros(int(work.sample_T.max()) + 1, device=self.device)
            mean = sums.index_add(0, said, log_ratio) / sums.index_add(0, said, torch.ones_like(log_ratio)).clamp(min=1)
            off = mean.abs() > math.log(self.config.trainer.max_ratio)
            work.guarded += int(off.sum())
            work.importance_ratio_T[token] = (
                log_ratio.exp().clamp(max=self.config.trainer.is_max).masked_fill(off[said], 0.0)
            )

    @contextlib.contextmanager
    def as_reference(self) -> Iterator[None]:
        """The model computes as the policy that training started from."""
        now = weights_of(self.model)
        put_weights(self.model, self.first)
        try:
            yield
        finally:
            put_weights(self.model, now)

    def _refer(self, work: Work) -> None:
        work.reference_logprobs_T = torch.zeros_like(work.behavior_logprobs_T)
        with torch.no_grad(), self.as_reference():
            for micro in self.mine(work.plan):
                logps, _, token = self.forward(micro, work)
                work.reference_logprobs_T[token] = logps
        self._sum(work.reference_logprobs_T)

    def _sum(self, *tensors: torch.Tensor) -> None:
        """Over processes, in place."""
        if self.world > 1:
            for t in tensors:
                torch.distributed.all_reduce(t)

    def _loss(self, work: Work, logps: torch.Tensor, entropy: torch.Tensor, token: torch.Tensor | None) -> torch.Tensor:
        """TRL's loss of some tokens as one row (``token``), or of all, a row an episode (None; all is (T) then)."""
        scored = work.plan.scored
        if self.sft:
            return -logps.sum() / scored.tokens
        if token is None:
            shape = (scored.units, int(work.column_T.max()) + 1)
            place = (work.unit_T, work.column_T)

            def view(x: torch.Tensor) -> torch.Tensor:
                return x.new_zeros(shape).index_put(place, x)

            token = torch.arange(scored.tokens, device=self.device)
        else:

            def view(x: torch.Tensor) -> torch.Tensor:
                return x[None]

        # a token that weighs nothing is a constant: neither its sequence's ratio (gspo) nor the KL term pulls at it
        guarded = work.importance_ratio_T[token] == 0
        fixed = logps.detach()
        logps = torch.where(guarded, fixed, logps)
        mask = view(torch.ones(len(token), device=self.device))
        ids = torch.zeros(mask.shape, dtype=torch.long, device=self.device)
        inputs = {
            "prompt_ids": ids[:, :0],
            "prompt_mask": mask[:, :0],
            "completion_ids": ids,
            "completion_mask": mask,
            "advantages": view(work.advantage_T[token]),
            "old_per_token_logps": view(torch.where(guarded, fixed, work.trainer_logprobs_T[token])),
            "importance_sampling_ratio": view(work.importance_ratio_T[token]),
            "num_items_in_batch": torch.tensor(float(scored.tokens * self.world), device=self.device),
        }
        if work.reference_logprobs_T is not None:
            inputs["ref_per_token_logps"] = view(torch.where(guarded, fixed, work.reference_logprobs_T[token]))
        self._given = view(logps), view(entropy)
        try:
            loss: torch.Tensor = self.compute_loss(self.model, inputs)
            return loss
        finally:
            self._given = None

    def backward(self, work: Work) -> float:
        """Sum gradients of the batch, over micro-batches and processes, into ``.grad``. → The loss. Does not step."""
        parts = self._by_sequence if self.config.trainer.loss in SEQUENCE and not self.sft else self._by_token
        while True:
            self.model.zero_grad(set_to_none=True)
            work.guarded = 0
            try:
                loss = parts(work)
                break
            except torch.OutOfMemoryError:
                if self.world > 1 or not self.checkpointing.ran_out():
                    raise
        if self.world > 1:
            grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.trained]
            flat = torch.cat([g.reshape(-1) for g in grads])
            self._sum(flat)
            for p, g in zip(self.trained, torch.split(flat, [g.numel() for g in grads]), strict=True):
                p.grad = g.view_as(p)
        work.fresh = False
        return loss

    def _by_token(self, work: Work) -> float:
        scored, kind = work.plan.scored, "sft" if self.sft else self.config.trainer.loss
        total = torch.zeros((), device=self.device)
        own = self.mine(work.plan)
        for micro in own:
            logps, entropy, token = self.forward(micro, work)
            self._note(work, logps, entropy, token)
            loss = self._loss(work, logps, entropy, token) * part_factor(kind, len(token), scored.tokens, scored.units)
            torch.autograd.backward(loss)
            total += loss.detach()
        for _ in range(
            -(-len(work.plan.micro) // self.world) - len(own)
        ):  # TRL's loss talks to the other processes: as often on each
            nothing = torch.zeros(1, device=self.device)
            self._loss(work, nothing, nothing, torch.zeros(1, dtype=torch.long, device=self.device))
        self._share(work, total)
        return float(total)

    def _share(self, work: Work, *more: torch.Tensor) -> None:
        """Each process has written its own tokens; zeros are elsewhere."""
        if self.world == 1:
            return
        own = torch.zeros_like(work.behavior_logprobs_T)
        for micro in self.mine(work.plan):
            own[torch.from_numpy(micro.slots.token_S).to(self.device)] = 1.0
        for t in (
            work.policy_logprobs_T,
            work.entropy_T,
            *((work.trainer_logprobs_T, work.importance_ratio_T) if work.fresh else ()),
        ):
            t.mul_(own)
            self._sum(t)
        self._sum(*more)

    def _by_sequence(self, work: Work) -> float:
        """The loss once, over all tokens. Its gradient of each log-probability goes back through the micro-batches."""
        if self.world == 1 and len(work.plan.micro) == 1:
            logps, entropy, token = self.forward(work.plan.micro[0], work)
            self._note(work, logps, entropy, token)
            back = torch.argsort(token)
            loss = self._loss(work, logps[back], entropy[back], None)
            torch.autograd.backward(loss)
            return float(loss.detach())
        with torch.no_grad():
            for micro in self.mine(work.plan):
                self._note(work, *self.forward(micro, work))
        self._share(work)
        leaf = work.policy_logprobs_T.clone().requires_grad_()
        loss = self._loss(work, leaf, work.entropy_T, None)
        (slope_T,) = torch.autograd.grad(loss, leaf)
        for micro in self.mine(work.plan):
            logps, _, token = self.forward(micro, work)
            torch.autograd.backward(logps, slope_T[token])
        return float(loss.detach())

    def clip(self) -> float:
        """Clip the gradients. → Their norm before."""
        return float(self.accelerator.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm))

    def optimize(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.model.zero_grad(set_to_none=True)

    def again(self, work: Work, most: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """After a step: (old, new log-probabilities, entropies) of this process, up to ``most`` tokens."""
        found: list[tuple[torch.Tensor, ...]] = []
        count = looked_at(work.plan.micro, self.world, most)
        with torch.no_grad():
            for micro in self.mine(work.plan)[:count]:
                logps, entropy, token = self.forward(micro, work)
                found.append((work.trainer_logprobs_T[token], logps, entropy))
        if not found:
            empty = torch.zeros(0, device=self.device)
            return empty, empty, empty
        old, new, entropy = (torch.cat(x) for x in zip(*found, strict=True))
        return old, new, entropy
