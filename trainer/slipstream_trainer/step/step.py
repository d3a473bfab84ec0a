"""One batch, from samples to a stepped (or refused, or undone) policy, with the figures of its event."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from pydantic import JsonValue

from slipstream.settings import TrainerConfig
from slipstream_trainer.algorithm.advantage import Advantages, assign, odd_scale
from slipstream_trainer.algorithm.effects import without_effect
from slipstream_trainer.algorithm.guards import after_step, before_step, engine_kl, k3, mean_ratio
from slipstream_trainer.algorithm.learning_rate import Reach, StepPace, evidence, steers
from slipstream_trainer.algorithm.losses import epsilon_high
from slipstream_trainer.algorithm.traffic import Traffic
from slipstream_trainer.algorithm.words import MAX_PASSES, further, means
from slipstream_trainer.batch.dataset import choose
from slipstream_trainer.batch.layout import Plan
from slipstream_trainer.batch.minibatches import minibatches
from slipstream_trainer.batch.rows import Sample, exact_continuations, untrainable
from slipstream_trainer.batch.work import Work, places_of
from slipstream_trainer.model.shards import reshard
from slipstream_trainer.model.weights import Snapshot
from slipstream_trainer.step.gaps import engine_gap, gaps_of
from slipstream_trainer.step.result import Result, merged
from slipstream_trainer.step.trainer import CapturedGRPOTrainer
from slipstream_trainer.timing import add, timed

MOST_CHANGES = 3
"""Times that one step's length is changed and looked at again."""
REFUSED_WORDS_TEXT = (
    "with what users said the model would hardly have replied at all as it did: these are orders that replace a reply, "
    "or words that this model cannot follow (trainer.words_kl)"
)


def train(
    trainer: CapturedGRPOTrainer,
    samples: Sequence[Sample],
    pace: StepPace,
    applied: int,
    traffic: Traffic | None = None,
) -> Result:
    """A GRPO step on leased samples: an optimiser step (``inner_steps`` of them) for each minibatch. ``applied``: steps
    taken so far, for the warm-up. In the first process; the others ``follow``.
    """
    t, began = trainer.config.trainer, time.perf_counter()
    for s in samples:
        if s.trainable and (why := trainer.learner.fault(s)):
            s.trainable, s.reason = False, why
    advantages = (
        Advantages(groups=len({s.group for s in samples}))
        if trainer.sft
        else assign(samples, t.advantage, trainer.config.reward.discount, traffic)
    )
    if trainer.sft:
        choose(samples)
    else:
        trainer.hints.put(samples, t.token_budget)
    exact, later = exact_continuations(samples)
    before = time.perf_counter() - began
    parts: list[Result] = []
    for part in [samples] if trainer.sft else minibatches(samples, t.min_groups):
        parts.append(_minibatch(trainer, part, pace, applied, own=all(p.outcome != "step" for p in parts)))
    result = merged(parts)
    add(result.figures, "layout", before)
    if result.outcome == "skipped" and result.reason is None:
        result.reason = _nothing(advantages)
    if not trainer.sft:
        _blame_scale(result, odd_scale(samples, t.advantage))
    trainer.lay_out(None)
    if trainer.sharded:
        reshard(trainer.model)
    figures: dict[str, JsonValue] = {
        "groups": advantages.groups,
        "groups_dropped": advantages.dropped,
        "baselines": dict(advantages.baselines),
        "episodes": len({s.run for s in samples}),
        "calls": len({(s.run, s.call) for s in samples if s.call}),
        "continuations": exact / later if later else 1.0,
        "untrainable": dict(untrainable(samples)),
    }
    if advantages.reward_mean is not None:
        figures |= {"reward": advantages.reward_mean, "reward_std": advantages.reward_std}
    if silent := without_effect(t):
        figures["without_effect"] = dict(silent)
    seconds, computed = time.perf_counter() - began, result.figures.get("tokens_computed", 0)
    figures |= {
        "seconds": seconds,
        "gpus": trainer.world,
        "tokens_per_second": (computed if isinstance(computed, int) else 0) / seconds,
        "memory_mib": memory_mib(trainer.device),
    }
    result.figures |= figures
    result.advantages = advantages.episodes
    return result


def follow(trainer: CapturedGRPOTrainer, pace: StepPace, applied: int) -> None:
    """The other processes' part of ``train``."""
    while (plan := trainer.lay_out(())) is not None:
        if plan.scored.tokens:
            trainer.learner.prepare(plan)
            _steps(trainer, plan, pace, applied, Result("skipped"), ())
    if trainer.sharded:
        reshard(trainer.model)


def _nothing(advantages: Advantages) -> str:
    """Why no token of a batch can be trained on."""
    if not 0 < advantages.dropped == advantages.groups:
        return "no call can be trained on"
    why = "no group has episodes of different reward"
    if advantages.nearest:
        near = f"they are at most {advantages.nearest:.1e} apart, which counts as equal"
        why += f": {near}; scale the rewards to about 0 to 1"
    return why


def _minibatch(
    trainer: CapturedGRPOTrainer, samples: Sequence[Sample], pace: StepPace, applied: int, *, own: bool
) -> Result:
    """``own``: no step of this batch was taken yet, so the weights are those that may have sampled it."""
    result = Result("skipped")
    with timed(result.figures, "layout"):
        plan = trainer.lay_out(samples)
    if plan is None or not plan.scored.tokens:
        return result
    result.figures |= _layout(plan, samples)
    result.figures["layers_recomputed"] = trainer.learner.prepare(plan)
    work = _steps(trainer, plan, pace, applied, result, samples)
    _words(work, samples, result)
    unknown = [k for k, v in result.figures.items() if v is None or (isinstance(v, float) and not np.isfinite(v))]
    for name in unknown:
        del result.figures[name]
    if not trainer.sft:  # what is imitated may have no log-probabilities of an engine
        gap_T = (work.trainer_logprobs_T - work.behavior_logprobs_T).cpu().numpy()
        result.gaps = gaps_of(samples, plan.scored, gap_T)
        if own and (gap := engine_gap(samples, plan.scored, gap_T)) is not None:
            result.figures["engine_gap"] = gap
    return result


def _blame_scale(result: Result, odd: tuple[bool, str] | None) -> None:
    """Say where the rewards' scale is why a step was refused, or taught next to nothing."""
    if odd is None:
        return
    large, why = odd
    if large and result.reason:
        result.reason = f"{result.reason}; {why}"
    elif not large and result.outcome == "step":
        result.figures["cause"] = why


def _teach(trainer: CapturedGRPOTrainer, work: Work, samples: Sequence[Sample]) -> None:
    """Where users said something: what the policy thinks of its replies with that in its prompt. ``samples``: of the
    first process.
    """
    scored = work.plan.scored
    if scored.hinted_T is None:
        return
    hinted = [s for s in samples if s.trainable and s.hinted_P is not None]
    lesson = [replace(s, prompt_P=s.hinted_P, hinted_P=None) for s in hinted if s.hinted_P is not None]
    # both stand sample by sample, so the tokens do in the same order
    token_W = torch.from_numpy(np.flatnonzero(scored.hinted_T)).to(trainer.device)
    if (plan := trainer.lay_out(lesson)) is not None:
        trainer.teach(work, plan, token_W)


def _words(work: Work, samples: Sequence[Sample], result: Result) -> None:
    """What the words changed, for the event and for people."""
    lesson = work.lesson
    if lesson is None:
        return
    said = lesson.row_T >= 0
    changed = (lesson.logprobs_T - work.trainer_logprobs_T)[said]
    of_sample = means(changed, work.sample_T[said])
    for i in sorted({*work.sample_T[said].tolist()}):
        result.words.setdefault(samples[i].group, {})[samples[i].call] = float(of_sample[i])
    refused = {*work.sample_T[lesson.refused_T > 0].tolist()}
    result.figures |= {
        "words": len({samples[i].group for i in work.sample_T[said].tolist()}),
        "words_change": float(changed.abs().mean()),
        "words_kl": float(lesson.kl_T[said].mean()),
        "words_refused": len(refused),
    }


def _steps(
    trainer: CapturedGRPOTrainer, plan: Plan, pace: StepPace, applied: int, result: Result, samples: Sequence[Sample]
) -> Work:
    t, learner = trainer.config.trainer, trainer.learner
    before = learner.save()
    with timed(result.figures, "reference"):
        work = trainer.start(plan)
        _teach(trainer, work, samples)
    reach = pace.reach(t, learner.hidden, plan.scored, applied)
    rewards_T, apart, stepped = work.advantage_T, math.inf, None
    for inner in range(t.inner_steps + MAX_PASSES - 1):
        with timed(result.figures, "gradient"):
            loss = _gradient(trainer, work, first=inner == 0)
        if work.lesson is not None:
            reach = reach if inner else further(t, reach, plan.scored, work.lesson.weight_T, work.lesson.apart)
            if inner >= t.inner_steps and work.lesson.apart >= apart:
                learner.zero_grads()
                break
            apart = work.lesson.apart
        norm = learner.clip()
        ratio, far, guarded = _from_engine(trainer, work)
        why = before_step(t, loss=loss, ratio=ratio, grad_norm=norm, kl=far, guarded=guarded)
        if why := why or (REFUSED_WORDS_TEXT if _idle(work) else None):
            learner.zero_grads()
            result.outcome, result.reason = ("undone" if inner else "skipped"), why
            break
        if inner == 0:
            result.figures |= {"loss": loss, "grad_norm": norm, "ratio": ratio, "kl_engine": far}
            _remember_again(trainer, work, result)
        with timed(result.figures, "optimize"):
            stepped = learner.step(reach.rate)
        result.outcome = "step"
        if work.lesson is not None:
            result.figures["words_passes"] = inner + 1
        if inner + 1 >= t.inner_steps:
            if not _goes_on(trainer, work, reach):
                break
            work.advantage_T = torch.zeros_like(rewards_T)  # rewards have had their step
    work.advantage_T = rewards_T
    result.figures |= _policy(t, work) | {"learning_rate": reach.rate}
    kl = 0.0
    if result.outcome == "step":
        with timed(result.figures, "check"):
            kl, after, entropy = _bounded(trainer, work, before, pace, reach, result.figures)
        result.figures |= {"kl": after, "entropy_after": entropy} | ({} if stepped is None else {"grad_norm": stepped})
        if why := after_step(t, kl=after, entropy=entropy, grad_norm=stepped):
            result.outcome, result.reason = "undone", why
    if result.outcome == "undone":
        learner.restore(before)
    if result.outcome != "skipped":
        pace.note(t, reach, kl, undone=result.outcome == "undone")
        result.figures |= _pace(trainer, pace, reach, kl)
    return work


def _gradient(trainer: CapturedGRPOTrainer, work: Work, *, first: bool) -> float:
    """→ The loss. Again without the words, where most of them are refused."""
    loss = trainer.backward(work)
    if first and _mostly_refused(work):
        trainer.learner.zero_grads()
        loss = trainer.backward(work)
    return loss


def _remember_again(trainer: CapturedGRPOTrainer, work: Work, result: Result) -> None:
    """Where a small step might be less than what two ways to compute the policy are apart."""
    if work.looked and trainer.learner.differs_without_gradients(work.plan) and evidence(work.plan.scored) < 1:
        with timed(result.figures, "check"):
            remember(trainer, work)


def _from_engine(trainer: CapturedGRPOTrainer, work: Work) -> tuple[float, float, float]:
    """(Mean π_old / π_engine, KL, share of guarded tokens). A guarded call pulls at nothing, so it has no say in the
    first two.
    """
    if trainer.sft:
        return 1.0, 0.0, 0.0
    log_ratio_T = (work.trainer_logprobs_T - work.behavior_logprobs_T)[~work.guarded]
    return mean_ratio(log_ratio_T), engine_kl(log_ratio_T), float(work.guarded.float().mean())


def _mostly_refused(work: Work) -> bool:
    """Words replace most replies that they are about. Then none count: the rest of an attack passed by chance."""
    lesson = work.lesson
    if lesson is None or not lesson.weight_T.any():
        return False
    said_T = lesson.row_T >= 0
    refused = len(work.sample_T[lesson.refused_T > 0].unique())
    if 2 * refused <= len(work.sample_T[said_T].unique()):
        return False
    lesson.weight_T.zero_()
    lesson.refused_T[said_T] = 1.0
    return True


def _idle(work: Work) -> bool:
    """Only words were to be learned from, and none of them count."""
    return work.lesson is not None and not work.lesson.weight_T.any() and not work.advantage_T.any()


def _goes_on(trainer: CapturedGRPOTrainer, work: Work, reach: Reach) -> bool:
    """Is there more to learn from the same words?"""
    taught = work.lesson is not None and steers(trainer.config.trainer) and bool(work.lesson.weight_T.any())
    return taught and _look_again(trainer, work)[0] < reach.target_kl


def _bounded(
    trainer: CapturedGRPOTrainer,
    work: Work,
    before: Snapshot,
    pace: StepPace,
    reach: Reach,
    figures: dict[str, JsonValue],
) -> tuple[float, float, float]:
    """(KL of the step as the optimiser made it, KL after shortening, entropy after). Adam's steps follow gradients
    of the past, so one batch can move the policy many times as far as was meant. Such a step keeps its direction and
    loses length. One that lost too much of it gets some back.
    """
    full, entropy = _look_again(trainer, work)
    kl, share = full, 1.0
    for left in reversed(range(MOST_CHANGES)):
        factor = pace.resize(trainer.config.trainer, reach, kl, share, full)
        if factor == 1 or (factor > 1 and not left):  # what becomes longer is looked at once more
            break
        trainer.learner.resize(before, factor)
        share *= factor
        kl, entropy = _look_again(trainer, work)
    if share < 1:
        figures |= {"shortened": share, "kl_full": full}
    return full, kl, entropy


def _pace(trainer: CapturedGRPOTrainer, pace: StepPace, reach: Reach, kl: float) -> dict[str, JsonValue]:
    t = trainer.config.trainer
    found: dict[str, JsonValue] = {"learning_rate_scale": pace.scale}
    if not trainer.sft:
        found["kl_target"] = reach.target_kl
        if why := pace.cause(t, trainer.learner.hidden, reach, kl):
            found["cause"] = why
    return found


def remember(trainer: CapturedGRPOTrainer, work: Work) -> None:
    """The policy before a step, computed once more, without gradients as ``again`` does. In bf16 two ways to compute
    the same policy may differ by more than a small step moves it.
    """
    with torch.no_grad():
        for micro in trainer.own_looked_at(work):
            *_, score = trainer.compared(micro, work, places_of(micro, trainer.device))
            if score.hidden_PH is not None:
                work.hidden[id(micro)] = score.hidden_PH


def again(trainer: CapturedGRPOTrainer, work: Work) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """After a step, on up to ``CHECK_TOKENS`` tokens of this process: (old, new log-probabilities, entropies) of
    the tokens, and KL(before ‖ after) at places that were remembered.
    """
    found: list[tuple[torch.Tensor, ...]] = []
    kls = [torch.zeros(0, device=trainer.device)]
    with torch.no_grad():
        for micro in trainer.own_looked_at(work):
            old_PH = work.hidden.get(id(micro))
            places_P = places_of(micro, trainer.device) if old_PH is not None else None
            logps, entropy, token, score = trainer.compared(micro, work, places_P, old_PH)
            found.append((work.trainer_logprobs_T[token], logps, entropy))
            if score.kl_P is not None:
                kls.append(score.kl_P)
    if not found:
        empty = torch.zeros(0, device=trainer.device)
        return empty, empty, empty, empty
    old, new, entropy = (torch.cat(x) for x in zip(*found, strict=True))
    return old, new, entropy, torch.cat(kls)


def _look_again(trainer: CapturedGRPOTrainer, work: Work) -> tuple[float, float]:
    """(KL(before ‖ after) a token, mean entropy after). For imitated tokens: what each lost on average.

    The KL is over the whole vocabulary. On the sampled tokens alone, which the step has just fitted, an estimate read
    1.9 to 11 times as much.
    """
    old, new, entropy, kl = again(trainer, work)
    whole = trainer.learner.capabilities.vocabulary
    moved = (old - new).double() if trainer.sft else kl.double() if whole else k3(old, new)
    sums = torch.stack([moved.sum(), moved.new_tensor(len(moved)), entropy.double().sum(), moved.new_tensor(len(old))])
    trainer._sum(sums)
    return float(sums[0] / sums[1].clamp(min=1)), float(sums[2] / sums[3].clamp(min=1))


def _layout(plan: Plan, samples: Sequence[Sample]) -> dict[str, JsonValue]:
    used = [s for s in samples if s.trainable]
    return {
        "tokens": plan.scored.tokens,
        "tokens_computed": plan.tokens,
        "padding": plan.padding,
        "micro_batches": len(plan.micro),
        "layout": "tree" if any(m.ends_RN is not None for m in plan.micro) else "merged",
        "saving": 1 - plan.tokens / max(1, plan.tokens_per_call),
        "saving_merged": 1 - plan.tokens_merged / max(1, plan.tokens_per_call),
        "staleness": float(np.mean([s.staleness for s in used])),
        "advantage_std": float(plan.scored.advantage_T.std()),
    }


def _policy(t: TrainerConfig, work: Work) -> dict[str, JsonValue]:
    """What the tokens say about policy and engine."""
    gap = (work.trainer_logprobs_T - work.behavior_logprobs_T).abs()
    ratio = (work.policy_logprobs_T - work.trainer_logprobs_T).exp()
    up = work.advantage_T > 0
    if t.loss == "cispo":
        clipped = ratio > 1 + epsilon_high(t)
    else:
        clipped = ((ratio > 1 + epsilon_high(t)) & up) | ((ratio < 1 - t.epsilon) & ~up)
    found: dict[str, JsonValue] = {
        "logprob_gap": float(gap.mean()),
        "logprob_gap_max": float(gap.max()),
        "entropy": float(work.entropy_T.mean()),
        "clipped": float(clipped.float().mean()),
        "truncated": float((work.trainer_logprobs_T - work.behavior_logprobs_T).exp().gt(t.is_max).float().mean()),
        "guarded": work.guarded_calls,
    }
    if work.reference_logprobs_T is not None:
        away = k3(work.policy_logprobs_T, work.reference_logprobs_T)
        found["kl_base"] = float((away if work.referred_T is None else away[work.referred_T]).mean())
    return found


def memory_mib(device: torch.device | str) -> float:
    """Peak memory: the GPU's, or the process's."""
    if torch.device(device).type == "cuda":
        return float(torch.cuda.max_memory_allocated(device)) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
