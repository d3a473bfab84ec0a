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
    high: float = 0.2, length: int = 512,
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


class FlatTraffic:
    """What runs of a kind got so far, one by one: (reward, key, kind, distance from the level of then), by batch."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[str, str, float, float]]] = []

    def fading(self, pick: Any) -> tuple[float, float, float]:
        """(Weight, sum, number) of what ``pick`` takes of each value; None: not of this kind."""
        weight = total = number = 0.0
        for batch in self.batches:
            values = [x for x in map(pick, batch) if x is not None]
            weight, total = (x * 0.5 ** (len(values) / 64) for x in (weight, total))
            weight, total, number = weight + len(values), total + sum(values), number + len(values)
        return weight, total, number

    def offset(self, key: str, tags: str) -> float:
        found = 0.0
        for wide in (True, False):
            weight, total, seen = self.fading(
                lambda v, wide=wide: v[2] if v[0] == key and (wide or v[1] == tags) else None
            )
            found = ((seen * total / weight if weight else 0.0) + 8 * found) / (seen + 8)
        return found

    def even(self, values: list[tuple[str, str, float]]) -> list[float]:
        """``values``: (key, tags, reward) of each."""
        if not values:
            return []
        offsets = [self.offset(key, tags) for key, tags, _ in values]
        self.batches.append([(k, t, 0.0, r - o) for (k, t, r), o in zip(values, offsets)])
        weight, total, _ = self.fading(lambda v: v[3])
        self.batches[-1] = [(k, t, r - total / weight, left) for (k, t, r), (*_, left) in zip(values, self.batches[-1])]
        middle = sum(offsets) / len(offsets)
        even = [r - (o - middle) for (*_, r), o in zip(values, offsets)]
        given = [r for *_, r in values]
        return given if flat_spread(even) > 0.99 * flat_spread(given) else even


def flat_spread(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))


def flat_differ(values: list[float]) -> bool:
    return len(values) > 1 and max(values) - min(values) >= 1e-8


def flat_centered(values: list[float], kind: str) -> list[float]:
    n = len(values)
    if not flat_differ(values):
        return [0.0] * n
    mean = sum(values) / n
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    scale = {"mean": 1.0, "std": 1 / (deviation + 1e-4), "leave_one_out": n / (n - 1)}[kind]
    return [(v - mean) * scale for v in values]


def flat_advantages(
    calls: list[tuple[str, int, float, float | None, str, str]], kind: str, discount: float | None, memory: tuple[FlatTraffic, FlatTraffic] | None
) -> list[float] | None:  # fmt: skip
    """``calls``: (run, turn, the run's reward, the call's own or None, key, tags) of one group. None: nothing differs."""
    runs = {run: (key, tags, reward) for run, _, reward, _, key, tags in calls}
    graded = [c for c in calls if c[3] is not None and (discount is None or c[3] != 0)]
    of_runs, of_grades = [r for *_, r in runs.values()], [float(c[3] or 0) for c in graded]
    by_grade = bool(graded) if discount is not None else flat_differ(of_grades)
    by_run = flat_differ(of_runs)
    if memory is not None:
        of_runs = memory[0].even(list(runs.values()))
        of_grades = memory[1].even([(c[4], c[5], float(c[3] or 0)) for c in graded])
    if not by_run and not by_grade:
        return None
    own, grade = dict(zip(runs, of_runs)), {c[:2]: g for c, g in zip(graded, of_grades)}
    if discount is None:
        run_advantage = dict(zip(runs, flat_centered(of_runs, kind)))
        call_advantage = dict(zip(grade, flat_centered(of_grades, kind))) if by_grade else {}
        return [call_advantage.get(c[:2], run_advantage[c[0]]) for c in calls]
    value = {}
    for run, turn, *_ in calls:
        later = sorted(t for r, t, *_ in calls if r == run and t >= turn)
        total = sum(discount**i * grade.get((run, t), 0.0) for i, t in enumerate(later))
        value[run, turn] = total + discount ** (len(later) - 1) * own[run]
    everywhere = dict(zip(value, flat_centered(list(value.values()), kind)))
    found = []
    for run, turn, *_ in calls:
        same = [at for at in value if at[1] == turn]
        beside = dict(zip(same, flat_centered([value[at] for at in same], kind))) if len(same) > 1 else everywhere
        found.append(beside[run, turn])
    return found
