"""One trainer for several learners: what each learns is what it would have learned alone, and nobody waits for long."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest
import torch
from tests.support.control import FakeControl, serve
from tests.support.tiny import conversation, make_config, make_trainer, table

from slipstream.client import Client
from slipstream_trainer.algorithm.learning_rate import StepPace
from slipstream_trainer.algorithm.traffic import Traffic
from slipstream_trainer.run.worker import Worker
from slipstream_trainer.step.step import train
from slipstream_trainer.versions.turns import Seat, TrainerTurns

STEPS = 3
SHARED = {"beta": 0.05, "weight_decay": 0.1}
LEARNERS: list[dict[str, object]] = [
    {},
    {"learning_rate": "auto"},
    {"learning_rate": 3e-3, "min_groups": 1},
    {"learning_rate": "auto", "target_kl": 0.1, "warmup_steps": 2},
]


def batch(learner: int, n: int):
    found = conversation(100 * learner + n)
    for s in found:
        s.kind, s.tags = ("like", s.group) if learner == 0 else (s.kind, s.tags)  # the levels of traffic
    return found


def run(seat: Seat, n: int, learner: int, pace: StepPace, traffic: Traffic) -> None:
    with seat.turn() as trainer:
        assert train(trainer, batch(learner, n), pace, n, traffic).outcome == "step"
        seat.trained(10)


def state(seat: Seat) -> dict[str, torch.Tensor]:
    found = seat.snapshot()[0]
    moments = found.optimizer["state"]
    assert isinstance(moments, dict)
    return found.weights | {f"{i}.{n}": t for i, parts in moments.items() for n, t in parts.items()}


def generator(seat: Seat) -> torch.Tensor:
    found = seat.snapshot()[1]["torch"]
    assert isinstance(found, torch.Tensor)
    return found


@pytest.mark.parametrize("host_bytes", [float("inf"), 0])
def test_learners_by_turns_learn_bit_by_bit_what_each_learns_alone(tiny, tmp_path, host_bytes: float) -> None:
    configs = [make_config(tiny, tmp_path / str(i), **SHARED, **own) for i, own in enumerate(LEARNERS)]
    alone = []
    for i, config in enumerate(configs):
        seat, pace, traffic = TrainerTurns(make_trainer(config, warm=False)).seat(config), StepPace(), Traffic()
        for n in range(STEPS):
            run(seat, n, i, pace, traffic)
        alone.append((state(seat), pace, traffic, generator(seat)))
    root = make_config(tiny, tmp_path / "root", **SHARED)  # the trainer is ready for one who never learns
    turns = TrainerTurns(make_trainer(root, warm=False), host_bytes)
    turns.seat(root)
    seats = [turns.seat(config) for config in configs]
    paces, traffics, taken = [StepPace() for _ in seats], [Traffic() for _ in seats], [0] * len(seats)
    order = [i for i in range(len(seats)) for _ in range(STEPS)]
    random.Random(3).shuffle(order)
    for i in order:
        run(seats[i], taken[i], i, paces[i], traffics[i])
        taken[i] += 1
    for seat, pace, traffic, (weights, own_pace, own_traffic, own_generator) in zip(
        seats, paces, traffics, alone, strict=True
    ):
        now = state(seat)
        assert now.keys() == weights.keys() and all(torch.equal(now[n], weights[n]) for n in now)
        assert (pace, traffic) == (own_pace, own_traffic)
        assert torch.equal(generator(seat), own_generator)
    waiting = [seat for seat in turns.seats if seat is not turns.has]
    assert all((seat.kept is None) == (host_bytes == 0) for seat in waiting)


def adapters(folder: Path) -> list[bytes]:
    return [p.read_bytes() for p in sorted(folder.glob("adapters/tiny@*/adapter_model.safetensors"))]


def test_workers_side_by_side_publish_what_each_would_alone(tiny, tmp_path) -> None:
    """In threads, with a failure, a rollback and a proxy that is away on the way, each of one learner."""

    def control_of(i: int, steps: int = STEPS) -> FakeControl:
        made = FakeControl()
        for n in range(steps):
            made.add(f"b{n}", table(batch(i, n)))
        return made

    own = [{**SHARED, **settings, "max_steps": STEPS} for settings in LEARNERS]
    for i, settings in enumerate(own):
        config = make_config(tiny, tmp_path / f"alone{i}", **settings)
        with serve(control_of(i)) as control:
            assert Worker(config, Client(control.url), make_trainer(config, warm=False)).run() == 0
    root = make_config(tiny, tmp_path / "root", **SHARED, max_steps=1)
    controls = [serve(control_of(i)) for i in range(len(own))]
    urls = [c.__enter__() for c in controls]
    try:
        with serve(control_of(9, 1)) as first:
            lead = Worker(root, Client(first.url), make_trainer(root, warm=False))
            workers = [
                Worker(make_config(tiny, tmp_path / f"turns{i}", **settings), Client(c.url), lead.trainer, lead.gpu_lease, lead.seat.turns)
                for i, (settings, c) in enumerate(zip(own, urls, strict=True))
            ]  # fmt: skip
            urls[1].broken = 3
            threads = [threading.Thread(target=w.run) for w in (lead, *workers)]
            for t in threads:
                t.start()
            for t in threads:
                t.join(120)
    finally:
        for c in controls:
            c.__exit__(None, None, None)
    assert first.done == {"b0": "trained"}
    for i, control in enumerate(urls):
        assert control.done == {f"b{n}": "trained" for n in range(STEPS)}
        made = adapters(tmp_path / f"turns{i}")
        assert len(made) == STEPS and made == adapters(tmp_path / f"alone{i}"), i


def test_who_comes_after_one_that_left_has_the_start_and_nothing_of_it(tiny, tmp_path) -> None:
    config = make_config(tiny, tmp_path)
    turns = TrainerTurns(make_trainer(config, warm=False))
    turns.seat(config)
    gone = turns.seat(make_config(tiny, tmp_path / "gone"))
    run(gone, 0, 1, StepPace(), Traffic())
    turns.leave(gone)
    new = turns.seat(make_config(tiny, tmp_path / "new"))
    with new.turn():
        assert all(torch.equal(w, turns.start.weights[n]) for n, w in state(new).items())


class Steps:
    """Learners whose steps take as long as they are told, and who got turns in which order."""

    def __init__(self, tiny: Path, folder: Path, seats: int) -> None:
        self.turns = TrainerTurns(make_trainer(make_config(tiny, folder), warm=False))
        self.seats = [self.turns.seat(make_config(tiny, folder / str(i))) for i in range(seats)]
        self.order: list[int] = []

    def step(self, i: int, tokens: int, seconds: float = 0.02) -> int:
        """→ Steps of others between the wish and the turn, but for the one that was on."""
        asked = len(self.order)
        with self.turns.held(self.seats[i], tokens):  # weights do not matter here
            waited = len(self.order) - asked
            self.order.append(i)
            time.sleep(seconds)
            self.seats[i].served += tokens
        return waited


def test_one_with_few_batches_waits_for_one_step_at_most_beside_floods(tiny, tmp_path) -> None:
    steps, end = Steps(tiny, tmp_path, 4), threading.Event()

    def flood(i: int) -> None:
        while not end.is_set():
            steps.step(i, 1000 * (i + 1))

    floods = [threading.Thread(target=flood, args=(i,)) for i in range(3)]
    for t in floods:
        t.start()
    waited = []
    for _ in range(12):
        time.sleep(0.05)
        waited.append(steps.step(3, 10))
    end.set()
    for t in floods:
        t.join()
    assert max(waited) <= 1, waited  # the one that is on when it asks may end in between


def test_those_that_always_wait_train_on_equally_many_tokens(tiny, tmp_path) -> None:
    steps, sizes, end = Steps(tiny, tmp_path, 3), [300, 700, 2000], threading.Event()

    def flood(i: int) -> None:
        while not end.is_set():
            steps.step(i, sizes[i], 0.005)

    threads = [threading.Thread(target=flood, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    time.sleep(2.0)
    end.set()
    for t in threads:
        t.join()
    tokens = [size * steps.order.count(i) for i, size in enumerate(sizes)]
    assert max(tokens) - min(tokens) <= 2 * max(sizes), tokens


def test_a_pause_is_no_claim_to_more_than_a_share_after_it(tiny, tmp_path) -> None:
    steps = Steps(tiny, tmp_path, 2)
    for _ in range(50):
        steps.step(0, 100, 0.0)
    steps.step(1, 100, 0.0)
    assert steps.seats[1].served >= steps.seats[0].served - 100
