"""TRL's GRPOTrainer, fed with captured tokens.

TRL keeps the loss, accelerate and the loggers; ours are where the log-probabilities come from (chains and trees,
scored positions only, each call's temperature) and the order of a step, because guards stand between its parts.
"""

from __future__ import annotations

import contextlib
import math
import time
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from peft import PeftModel
from transformers import PreTrainedTokenizerBase
from transformers.trainer_callback import PrinterCallback

from slipstream.config import Config
from slipstream_trainer.algorithm.losses import TrlLoss, find_loss, own_loss
from slipstream_trainer.algorithm.words import weights
from slipstream_trainer.batch.hints import Hints
from slipstream_trainer.batch.layout import MicroBatch, Plan
from slipstream_trainer.batch.rows import Sample
from slipstream_trainer.batch.work import Lesson, Work, places_of
from slipstream_trainer.model.compute import ScoredPositions
from slipstream_trainer.model.learner import Learner, Passed
from slipstream_trainer.model.shards import looked_at, scatter
from slipstream_trainer.model.torch_learner import TorchLearner
from slipstream_trainer.step.selfcheck import computes_alike
from slipstream_trainer.step.trl_seam import GRPOConfig, GRPOTrainer, grpo_config

CHECK_TOKENS = 2048
"""Computed tokens on which a step's KL and entropy are looked at again, at least a micro-batch of each process."""


def draw(plan: Plan) -> np.random.Generator:
    """Random numbers of a batch: the same ones in every process, and when the batch is computed again."""
    return np.random.default_rng(zlib.crc32(plan.scored.behavior_logprobs_T.tobytes()))


def _no_reward(**_: object) -> list[float | None]:
    """TRL wants one; rewards came with the episodes."""
    raise RuntimeError("captured episodes have their rewards")


class CapturedGRPOTrainer(GRPOTrainer):
    """``backward`` a plan, then let the learner step. Several processes share the micro-batches."""

    model: PeftModel
    optimizer: torch.optim.Optimizer
    args: GRPOConfig

    def __init__(
        self,
        model: PeftModel,
        tokenizer: PreTrainedTokenizerBase,
        config: Config,
        output: Path,
        learner: Learner | None = None,
    ) -> None:
        """``learner``: whoever computes; None: ``model``, in this process."""
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
        self.remove_callback(PrinterCallback)  # steps are logged
        self.create_optimizer()
        self.learner: Learner = learner or self._here(output)
        self.device = self.learner.device
        self.sharded = config.trainer.sharding == "fsdp2"
        self.interrupt: Callable[[], None] = lambda: None
        """Called before each pass. What it raises ends the batch."""
        self.hints = Hints(tokenizer)
        self._given: tuple[torch.Tensor, torch.Tensor] | None = None
        self.model.train()

    def _here(self, output: Path) -> TorchLearner:
        made = TorchLearner(
            self.model, self.optimizer, self.accelerator, self.config, output, bf16=bool(self.args.bf16)
        )
        if made.compiler:
            made.compiler.check = partial(computes_alike, made)
        return made

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

    def lay_out(self, samples: Sequence[Sample] | None) -> Plan | None:
        """The first process's samples for all, each with its own rows alone. None: it has no further ones."""
        plan = self.learner.plan(samples) if samples is not None and self.rank == 0 else None
        return plan if self.world == 1 else scatter(plan, self.rank, self.world)

    def start(self, plan: Plan) -> Work:
        """A batch's work, with the reference's log-probabilities where β asks for them."""
        work = Work.of(plan, self.device)
        if self.config.trainer.beta and not self.sft:
            self._refer(work)
        if not self.sft:
            work.looked = {id(m) for m in self.own_looked_at(work)}
        return work

    def teach(self, work: Work, plan: Plan, token_W: torch.Tensor) -> None:
        """What the first policy thinks of the replies with a user's words in the prompts. ``plan``: these prompts with
        the replies. ``token_W``: which token of the batch each of its tokens is.
        """
        teacher = Work.of(plan, self.device)
        hidden_WH = torch.zeros(len(token_W), self.learner.hidden, dtype=self.learner.dtype, device=self.device)
        with torch.no_grad(), self.learner.reference():
            for micro in self.mine(plan):
                everywhere = torch.arange(len(micro.slots.source_S), device=self.device)
                logps, _, token, score = self.compared(micro, teacher, everywhere)
                teacher.policy_logprobs_T[token] = logps
                if score.hidden_PH is not None:
                    hidden_WH[token] = score.hidden_PH.to(hidden_WH)
        self._sum(teacher.policy_logprobs_T, hidden_WH)
        work.lesson = Lesson.of(token_W, hidden_WH, teacher.policy_logprobs_T, work.plan.scored.tokens)

    def mine(self, plan: Plan) -> list[MicroBatch]:
        return plan.micro[self.rank :: self.world]

    def forward(self, micro: MicroBatch, work: Work) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """→ log-probabilities (with gradient), entropies, and which tokens of the batch they are, all (S)."""
        return self.taught(micro, work)[:3]

    def taught(self, micro: MicroBatch, work: Work) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, ScoredPositions]:
        """The same, and how far those about which a user said something are from the teacher."""
        noted = work.fresh and id(micro) in work.looked
        places_P = places_of(micro, self.device) if noted else None
        logps, entropy, token, score = self.compared(micro, work, places_P, lesson=work.lesson)
        if score.hidden_PH is not None:
            work.hidden[id(micro)] = score.hidden_PH
        return logps, entropy, token, score

    def compared(
        self,
        micro: MicroBatch,
        work: Work,
        places_P: torch.Tensor | None = None,
        old_PH: torch.Tensor | None = None,
        lesson: Lesson | None = None,
    ) -> Passed:
        """The same, and what was remembered or compared at some places."""
        self.interrupt()
        return self.learner.logprobs(micro, work, places_P, old_PH, lesson)

    def own_looked_at(self, work: Work) -> list[MicroBatch]:
        """Micro-batches of this process that are looked at again after a step."""
        return self.mine(work.plan)[: looked_at(work.plan.micro, self.world, CHECK_TOKENS)]

    def _note(
        self,
        work: Work,
        logps: torch.Tensor,
        entropy: torch.Tensor,
        token: torch.Tensor,
        score: ScoredPositions,
    ) -> None:
        now = logps.detach()
        work.policy_logprobs_T[token], work.entropy_T[token] = now, entropy
        if work.lesson is not None and score.to_teacher_W is not None:
            work.lesson.apart_T[token[score.taught_W]] = score.to_teacher_W.detach()
        if work.fresh:
            work.trainer_logprobs_T[token] = now
            log_ratio = now - work.behavior_logprobs_T[token]
            said = work.sample_T[token]  # one call's tokens are never apart
            sums = torch.zeros(int(work.sample_T.max()) + 1, device=self.device)
            mean = sums.index_add(0, said, log_ratio) / sums.index_add(0, said, torch.ones_like(log_ratio)).clamp(min=1)
            off = mean.abs() > math.log(self.config.trainer.max_ratio)
            work.importance_ratio_T[token] = (
                log_ratio.exp().clamp(max=self.config.trainer.is_max).masked_fill(off[said], 0.0)
            )
            if work.lesson is not None and score.from_teacher_W is not None:
                about = token[score.taught_W]
                work.lesson.kl_T[about] = far_W = score.from_teacher_W
                weight_W, refused_W = weights(far_W, work.sample_T[about], self.config.trainer)
                work.lesson.weight_T[about], work.lesson.refused_T[about] = weight_W, refused_W.float()

    def _refer(self, work: Work) -> None:
        """Compute the reference at a share of the micro-batches. Their KL term counts for all: its gradient is right on
        average over the draws.
        """
        t = self.config.trainer
        drawn = draw(work.plan)
        # of a sharded base every process gathers as often as the others: a turn is a micro-batch of each
        each = self.world if self.sharded else 1
        turns = -(-len(work.plan.micro) // each)
        wanted = t.beta_share * turns
        count = int(wanted) + int(drawn.random() < wanted % 1)
        drawn_turns = {*drawn.permutation(turns)[:count].tolist()}
        chosen = {id(micro) for i, micro in enumerate(work.plan.micro) if i // each in drawn_turns}
        self.beta, work.reference_weight = (t.beta / t.beta_share, 1 / t.beta_share) if chosen else (0.0, 0.0)
        if not chosen:
            return
        work.reference_logprobs_T = torch.zeros_like(work.behavior_logprobs_T)
        referred_T = torch.zeros_like(work.behavior_logprobs_T)
        with torch.no_grad(), self.learner.reference():
            for micro in self.mine(work.plan):
                if id(micro) in chosen:
                    logps, _, token = self.forward(micro, work)
                    work.reference_logprobs_T[token], referred_T[token] = logps, 1.0
        self._sum(work.reference_logprobs_T, referred_T)
        work.referred_T = referred_T > 0

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
        loss_of = find_loss(self.config.trainer)
        if not isinstance(loss_of, TrlLoss):
            return own_loss(loss_of, self.config.trainer, work, logps, entropy)
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
        guarded = work.guarded[token]
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
            none = work.without_reference()[token]
            inputs["ref_per_token_logps"] = view(torch.where(none, fixed, work.reference_logprobs_T[token]))
        self._given = view(logps), view(entropy)
        try:
            loss: torch.Tensor = self.compute_loss(self.model, inputs)
            return loss
        finally:
            self._given = None

    def _words(self, work: Work, token: torch.Tensor, score: ScoredPositions) -> torch.Tensor | None:
        """What users' words add to the loss at these tokens. None: nothing."""
        if work.lesson is None or score.to_teacher_W is None:
            return None
        about = token[score.taught_W]
        counts_W = work.lesson.weight_T[about] * work.importance_ratio_T[about]
        return (counts_W * score.to_teacher_W).sum() / work.plan.scored.tokens

    def backward(self, work: Work) -> float:
        """Sum gradients of the batch, over micro-batches and processes, into ``.grad``. → The loss. Does not step."""
        began = time.perf_counter()
        loss_of = find_loss(self.config.trainer)
        by_token = self.sft or (isinstance(loss_of, TrlLoss) and not loss_of.whole)
        parts = self._by_token if by_token else self._by_sequence
        while True:
            self.learner.zero_grads()
            try:
                loss = parts(work)
                break
            except torch.OutOfMemoryError:
                if not self.learner.makes_room():
                    raise
        self.learner.gathered(work.plan, time.perf_counter() - began)
        work.fresh = False
        return loss

    def _by_token(self, work: Work) -> float:
        scored, loss_of = work.plan.scored, find_loss(self.config.trainer)
        total = torch.zeros((), device=self.device)
        own = self.mine(work.plan)
        for micro in own:
            logps, entropy, token, score = self.taught(micro, work)
            self._note(work, logps, entropy, token, score)
            leaf = logps.detach().requires_grad_()
            loss = self._loss(work, leaf, entropy, token)
            if not self.sft and isinstance(loss_of, TrlLoss):
                loss = loss * loss_of.part_factor(len(token), scored.tokens, scored.units)
            (slope_S,) = torch.autograd.grad(loss, leaf)
            words = self._words(work, token, score)
            self.learner.backward(micro, logps, slope_S, words)
            total += loss.detach() if words is None else loss.detach() + words.detach()
        # TRL's loss talks to the other processes: as often on each
        for _ in range(-(-len(work.plan.micro) // self.world) - len(own)):
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
            *((work.lesson.apart_T,) if work.lesson else ()),
            *((work.lesson.kl_T, work.lesson.weight_T, work.lesson.refused_T) if work.fresh and work.lesson else ()),
        ):
            t.mul_(own)
            self._sum(t)
        self._sum(*more)

    def _by_sequence(self, work: Work) -> float:
        """The loss once, over all tokens. Its gradient of each log-probability goes back through the micro-batches."""
        own = self.mine(work.plan)
        kept: list[Passed] = []
        with contextlib.nullcontext() if (alone := self.world == len(work.plan.micro) == 1) else torch.no_grad():
            for micro in own:
                passed = self.taught(micro, work)
                self._note(work, *passed)
                if alone:
                    kept.append(passed)
        self._share(work)
        leaf = work.policy_logprobs_T.clone().requires_grad_()
        loss = self._loss(work, leaf, work.entropy_T, None)
        (slope_T,) = torch.autograd.grad(loss, leaf)
        total = loss.detach() / self.world  # each process has all of it
        for micro in own:
            logps, _, token, score = kept.pop() if kept else self.taught(micro, work)
            words = self._words(work, token, score)
            self.learner.backward(micro, logps, slope_T[token], words)
            if words is not None:
                total += words.detach()
        self._sum(total)
        return float(total)
