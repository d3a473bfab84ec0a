"""Steps wait for as many groups as keep runs fresh: simulated agents, the shipped rule."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from tests.support.tiny import sample

from slipstream.settings import TrainerConfig
from slipstream_trainer.algorithm.cadence import Cadence

T = TrainerConfig()
GROUP = 8


def behind(*staleness: int) -> list:
    return [sample(f"e{i}", [3], [4], staleness=s) for i, s in enumerate(staleness)]


def test_it_waits_for_more_while_runs_come_late_and_for_fewer_once_they_do_not() -> None:
    cadence = Cadence()
    assert cadence.wanted(T) == (4, 30.0)
    cadence.note(T, behind(*[3] * 8))
    assert cadence.wanted(T) == (8, 60.0)
    for _ in range(5):
        cadence.note(T, behind(*[3] * 8))
    assert cadence.wanted(T) == (16, 120.0)
    cadence.note(T, behind(*[2] * 6, 3, 3))
    assert cadence.wanted(T)[0] == 16, "neither late nor early"
    cadence.note(T, behind(*[2] * 8))
    groups, seconds = cadence.wanted(T)
    assert groups == 13
    assert seconds == pytest.approx(96.0)
    for _ in range(7):
        cadence.note(T, behind(*[2] * 8))
    assert cadence.wanted(T) == (4, 30.0)


def test_a_control_arm_is_no_reason_to_wait() -> None:
    cadence = Cadence()
    runs = behind(*[0] * 8, *[4] * 8)
    for run in runs[8:]:
        run.adapter = "inbox@3"
    cadence.note(T, runs, control="inbox@3")
    assert cadence.factor == 1
    cadence.note(T, runs)
    assert cadence.factor == 2


def test_what_is_trained_on_however_old_it_is_says_nothing_of_the_pace() -> None:
    cadence = Cadence()
    control = behind(*[40] * 8)
    cadence.note(T, control)
    assert cadence.factor == 1
    for s in control:
        s.trainable, s.reason = False, "stale"
    cadence.note(T, control)
    assert cadence.factor == 2


def simulate(
    concurrency: int, seconds: float, step: float, *, adapts: bool, episodes: int = 12_000
) -> tuple[float, float, float]:
    """Agents of ``concurrency`` runs at once, each of about ``seconds``; steps that take ``step`` seconds. → (share of runs lost, first step's time, groups of a step)."""
    random = np.random.default_rng(0)
    cadence, version, busy_until, first = Cadence(), 0, 0.0, 0.0
    running = [(seconds * random.lognormal(0, 0.3), 0) for _ in range(concurrency)]  # (ends, version it began with)
    heapq.heapify(running)
    open_group: list[int] = []
    ready: list[tuple[float, list[int]]] = []
    lost = trained = steps = groups = 0
    swap: tuple[float, int] | None = None
    for _ in range(episodes):
        now, began = heapq.heappop(running)
        if swap and now >= swap[0]:
            version, swap = swap[1], None
        heapq.heappush(running, (now + seconds * random.lognormal(0, 0.3), version))
        open_group.append(began)
        if len(open_group) == GROUP:
            ready.append((now, open_group))
            open_group = []
        least, wait = cadence.wanted(T)
        if now >= busy_until and ready and (len(ready) >= least or ready[0][0] <= now - wait):
            batch, ready = ready[: T.max_groups], ready[T.max_groups :]
            stale = [max(0, version - b) for _, g in batch for b in g]
            if version > 5:  # the first steps find out
                lost += sum(s > T.max_staleness for s in stale)
                trained += len(stale)
                steps, groups = steps + 1, groups + len(batch)
            if adapts:
                cadence.note(T, behind(*stale))
            busy_until = now + step
            first = first or busy_until
            swap = (busy_until, version + 1)
    return lost / max(1, trained), first, groups / max(1, steps)


@pytest.mark.parametrize(
    ("concurrency", "seconds", "step"),
    [(8, 3.0, 1.0), (32, 2.0, 1.0), (32, 120.0, 20.0), (128, 60.0, 5.0), (256, 120.0, 10.0)],
)
def test_runs_stay_fresh_at_the_defaults(concurrency: int, seconds: float, step: float) -> None:
    lost, first, _ = simulate(concurrency, seconds, step, adapts=True)
    assert lost <= 0.05
    assert first <= seconds * 2 + 120


def test_runs_that_are_as_fresh_as_they_can_be_hardly_make_a_step_wait() -> None:
    lost, _, groups = simulate(64, 1.0, 1.0, adapts=True, episodes=4000)
    assert groups <= 1.3 * 64 / GROUP, "what comes while a step computes"
    assert lost <= 0.05


def test_without_it_a_busy_agent_loses_its_runs() -> None:
    assert simulate(256, 120.0, 10.0, adapts=False)[0] > 0.3
