"""The losses in closed form on flat tokens, and log-probabilities by one plain forward a call: nothing shared with the trainer's code."""

from __future__ import annotations

import math
from typing import Any

import torch

from slipstream_trainer.batch.rows import Sample


def plain_logprobs(model: Any, samples: list[Sample]) -> torch.Tensor:
    """Of every trainable sample's completion, concatenated in their order: one unpadded sequence at a time, full logits."""
    said = torch.tensor([token for s in samples if s.trainable for token in s.completion_C.tolist()])
    return torch.log_softmax(plain_logits(model, samples), -1).gather(1, said[:, None])[:, 0]


def plain_logits(model: Any, samples: list[Sample]) -> torch.Tensor:
    """The same of the whole vocabulary, by each one's temperature, not normalised."""
    out = []
    for s in samples:
        if s.trainable:
            ids = torch.tensor([s.prompt_P.tolist() + s.completion_C.tolist()])
            out.append(model(input_ids=ids).logits[0, -len(s.completion_C) - 1 : -1].float() / s.temperature)
    return torch.cat(out)


def flat_loss(
    kind: str, lp: Any, old: Any, weight: Any, advantage: Any, unit: Any, *, ref: Any = None, beta: float = 0.0, low: float = 0.2,
    high: float = 0.2, length: int = 256,
) -> torch.Tensor:  # fmt: skip
    """``unit``: which episode a token is of. See the formulas in ``slipstream_trainer.algorithm.losses``."""
    count = torch.bincount(unit).to(lp.dtype)

    def mean_of_unit(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(count).index_add(0, unit, x) / count

    log_ratio = torch.where(weight > 0, lp - old, 0.0)
    r = (mean_of_unit(log_ratio)[unit] if kind == "gspo" else log_ratio).exp()
    if kind == "cispo":
        term = -r.clamp(max=1 + high).detach() * advantage * lp
    elif kind == "sapo":
        tau = torch.where(advantage > 0, 1.0, 1.05)
        term = -torch.sigmoid(tau * (r - 1)) * 4 / tau * advantage
    elif kind not in ("grpo", "bnpo", "dr_grpo", "dapo", "gspo"):
        raise NotImplementedError(f"the formula of {kind}")
    else:
        term = -torch.minimum(r * advantage, r.clamp(1 - low, 1 + high) * advantage)
    term = term * weight
    if beta:
        d = ref - lp
        term = term + torch.where(weight > 0, beta * (d.exp() - d - 1) * r, 0.0)
    if kind in ("grpo", "gspo", "sapo"):
        return mean_of_unit(term).mean()
    return term.sum() / (len(count) * length if kind == "dr_grpo" else len(lp))


def words_loss(
    teacher: Any, student: Any, reply: Any, weight: Any, counts: float, most: float
) -> tuple[torch.Tensor, int]:
    """(Sum over tokens about which a user said something of what that adds, replies that do not count). ``teacher`` and
    ``student``: logits in fp64. ``reply``: which reply each is of. ``most``: nats a token.
    """
    wanted, says = torch.softmax(teacher, -1), torch.softmax(student, -1)
    half = (wanted + says) / 2
    apart = ((says * (says / half).log()).sum(-1) + (wanted * (wanted / half).log()).sum(-1)) / 2
    away = (wanted * (wanted / says).log()).sum(-1)
    total, refused = torch.zeros((), dtype=torch.float64), 0
    for one in dict.fromkeys(reply):
        own = [i for i, r in enumerate(reply) if r == one]
        far = float(away[own].mean()) > most
        refused += far
        total = total + (0.0 if far else counts) * (weight[own] * apart[own]).sum()
    return total, refused


def filtered_logprob(logits_V: list[float], target: int, min_p: float, top_k: int, top_p: float) -> float:
    """A sampled token's log-probability among those that vLLM leaves: min_p, then top_k, then top_p. In fp64, one by
    one.
    """
    weights = {v: math.exp(x - max(logits_V)) for v, x in enumerate(logits_V)}
    left = {v: w for v, w in weights.items() if w >= min_p * max(weights.values())}
    if top_k:
        least = sorted(left.values(), reverse=True)[:top_k][-1]
        left = {v: w for v, w in left.items() if w >= least}
    total, above, chosen = sum(left.values()), 0.0, {}
    for v, w in sorted(left.items(), key=lambda item: -item[1]):
        if above / total < top_p or not chosen:
            chosen[v] = w
        above += w
    chosen[target] = weights[target]  # it was drawn
    return math.log(weights[target] / sum(chosen.values()))
