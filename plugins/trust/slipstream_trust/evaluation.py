"""``slipstream judge eval FILE.jsonl``: how far a judge can be trusted, against episodes whose truth is known."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from slipstream.client import Client
from slipstream.config import Config
from slipstream.contract import Group
from slipstream.shared.clock import DAY_S
from slipstream.shared.log import brief
from slipstream.shared.printable import own
from slipstream_judge.compare.group import Judged
from slipstream_judge.compare.panel import Panel
from slipstream_judge.model.budget import OverBudget
from slipstream_judge.model.llm import JudgeFailed, Usage
from slipstream_judge.model.metrics import JudgeMetrics
from slipstream_judge.model.server import OwnProxy
from slipstream_judge.text.prompt import PROMPT_VERSION
from slipstream_judge.trust.stats import concordance, mean, slope, spearman
from slipstream_trust.cases import read_cases

log = logging.getLogger(__name__)


class Placed(NamedTuple):
    """One score of a run.

    ``place``: from 0 (first) to 1 (last); ``moved`` and ``gained``: place and score less the run's means.
    """

    place: float
    moved: float
    gained: float


@dataclass(slots=True)
class Measured:
    """One group, judged ``repeats`` times. ``scores_RE``: repeat → episode → score."""

    group: Group
    scores_RE: list[dict[str, float]] = field(default_factory=list)  # axes: repeat, episode
    places: list[Placed] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)


def _places(judged: list[Judged]) -> list[Placed]:
    """Where a run stood in each vote, and what that vote's score was, beside the run's means over all votes."""
    seen: dict[str, list[tuple[float, float]]] = {}
    for vote in (v for j in judged for v in j.votes if len(v.grades) > 1):
        for run, place in vote.places.items():
            seen.setdefault(run, []).append((place, vote.grades[run].score))
    found = []
    for pairs in seen.values():
        place_mean, score_mean = fmean(p for p, _ in pairs), fmean(s for _, s in pairs)
        found += [Placed(place, place - place_mean, score - score_mean) for place, score in pairs]
    return found


async def _measure(panel: Panel, group: Group, votes: int, repeats: int) -> Measured:
    measured = Measured(group)
    deadline = time.time() + DAY_S
    judged = []
    for repeat in range(repeats):
        if panel.model is not None:
            found = await panel.model.score(group, deadline, votes=range(repeat * votes, (repeat + 1) * votes))
            judged.append(found)
            measured.usage.add(found.usage)
            scores = found.scores
        else:
            assert panel.function is not None
            scores = await panel.function.score(group)
        measured.scores_RE.append({s.episode: s.value for s in scores})
    measured.places = _places(judged)
    return measured


def summary(done: list[Measured], truth: dict[str, float]) -> dict[str, float | int | None]:
    """The numbers; None where the file cannot tell (no group whose truth varies, one repeat, no order to speak of)."""
    correlations, won, pairs, spreads = [], 0.0, 0, []
    pooled: dict[str, float] = {}
    for m in done:
        means = {e: fmean(r[e] for r in m.scores_RE) for e in m.scores_RE[0]}
        pooled |= means
        ids = list(means)
        if len(ids) > 1:
            if len({truth[i] for i in ids}) > 1:
                # A judge that sees no difference where there is one has no rank correlation: that counts as none, 0.
                correlations.append(spearman([means[i] for i in ids], [truth[i] for i in ids]) or 0.0)
            w, p = concordance([means[i] for i in ids], [truth[i] for i in ids])
            won, pairs = won + w, pairs + p
        if len(m.scores_RE) > 1:
            spreads += [pstdev(r[e] for r in m.scores_RE) for e in ids]
    if not pairs:  # judged one by one: the scores are absolute, and may be compared with all others
        ids = list(pooled)
        won, pairs = concordance([pooled[i] for i in ids], [truth[i] for i in ids])
        alone = spearman([pooled[i] for i in ids], [truth[i] for i in ids])
        correlations = [alone] if alone is not None else []
    places = [p for m in done for p in m.places]
    n = len(done)
    costs = [m.usage.cost for m in done]
    return {
        "spearman": mean(correlations),
        "auc": won / pairs if pairs else None,
        "order_bias": slope([p.moved for p in places], [p.gained for p in places]),
        "retest_spread": mean(spreads),
        "cost_per_group": None if any(c is None for c in costs) else sum(c or 0.0 for c in costs) / n,
        "tokens_per_group": sum(m.usage.tokens for m in done) / n,
        "seconds_per_group": sum(m.usage.seconds for m in done) / n,
        "calls_per_group": sum(m.usage.calls for m in done) / n,
    }


def plot(path: str, done: list[Measured], truth: dict[str, float], numbers: dict[str, Any]) -> None:
    """Score against truth, first against second judging, and score against place."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4.2), constrained_layout=True)
    points = [(truth[e], s) for m in done for r in m.scores_RE for e, s in r.items()]
    left.scatter([x for x, _ in points], [y for _, y in points], s=14, alpha=0.4)
    title = f"Spearman {_show(numbers['spearman'])}, AUC {_show(numbers['auc'])}"
    left.set(xlabel="truth", ylabel="score", title=title)
    again = [(m.scores_RE[0][e], r[e]) for m in done for r in m.scores_RE[1:] for e in r]
    middle.plot([0, 1], [0, 1], lw=0.8, color="grey")
    middle.scatter([x for x, _ in again], [y for _, y in again], s=14, alpha=0.4)
    title = f"test-retest spread {_show(numbers['retest_spread'])}"
    middle.set(xlabel="first judging", ylabel="later judging", title=title)
    places = [p for m in done for p in m.places]
    right.axhline(0, lw=0.8, color="grey")
    right.scatter([p.place for p in places], [p.gained for p in places], s=14, alpha=0.4)
    where, title = "place in the prompt (0 first, 1 last)", f"order bias {_show(numbers['order_bias'])}"
    right.set(xlabel=where, ylabel="score − run's mean", title=title)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _show(x: float | None) -> str:
    return "–" if x is None else f"{x:.3f}"


async def evaluate(
    config: Config, file: str | Path, repeats: int = 2, plot_to: str | None = None, proxy: OwnProxy | None = None
) -> dict[str, Any]:
    """Judge every group ``repeats`` times, in other orders each time, and compare with the truth.

    Raises ``ConfigError``.
    """
    groups, truth = read_cases(file)
    panel = Panel(config, JudgeMetrics(), proxy=proxy)
    slots = asyncio.Semaphore(config.judge.concurrency)
    done: list[Measured] = []
    failures: list[str] = []

    async def one(group: Group) -> None:
        async with slots:
            try:
                done.append(await _measure(panel, group, config.judge.votes, max(1, repeats)))
            except (JudgeFailed, OverBudget) as e:
                failures.append(str(e))
                log.warning("group %s could not be judged: %s", group.id, brief(e))
        if sys.stderr.isatty():
            print(f"\r{len(done) + len(failures)}/{len(groups)} groups", end="", file=own(sys.stderr), flush=True)

    await asyncio.gather(*(one(g) for g in groups))
    if sys.stderr.isatty():
        print(file=sys.stderr)
    done.sort(key=lambda m: m.group.id)
    head = {"groups": len(groups), "episodes": len(truth), "failed": len(failures)}
    head |= {"repeats": repeats, "votes": config.judge.votes}
    if not done:
        return {**head, "error": failures[0] if failures else "nothing was judged"}
    numbers: dict[str, Any] = {k: round(v, 6) if isinstance(v, float) else v for k, v in summary(done, truth).items()}
    if plot_to:
        plot(plot_to, done, truth, numbers)
    asked = panel.model.ruler.llm.model if panel.model else config.judge.function
    who = {"model": asked, "prompt": PROMPT_VERSION}
    return {**numbers, **head, **who}


def main(
    config: Config,
    file: str,
    plot: str | None = None,
    repeats: int = 2,
    *,
    url: str | None = None,
    key: str | None = None,
) -> int:
    """The command. The last line on stdout is the JSON. Exit code 1 when no group could be judged."""
    with Client(url, key) as client:
        proxy = OwnProxy.of(config, client.url, client.http.headers.get("authorization"))
    result = asyncio.run(evaluate(config, file, repeats, plot, proxy))
    for name in ("spearman", "auc", "order_bias", "retest_spread", "cost_per_group"):
        if name in result:
            print(f"{name.replace('_', ' '):16} {_show(result[name])}")
    if result["failed"]:
        print(f"{result['failed']} of {result['groups']} groups could not be judged", file=sys.stderr)
    print(json.dumps(result))
    return 1 if "error" in result else 0
