"""Many steps of one task, with plain HTTP agents: what can be known of it without an engine."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "curves"))

import real_long
import worlds
from real_agents import Tally


class Stack:
    """Tells of one step more each time that it is asked."""

    url = "http://nowhere"
    process = SimpleNamespace(poll=lambda: None)

    def __init__(self) -> None:
        self.steps = 0

    def events(self) -> list[dict[str, str]]:
        self.steps += 1
        return [{"kind": "step"}] * self.steps + [{"kind": "skipped"}]


class Agents:
    def begin(self, url: str) -> None:
        self.url = url

    def end(self) -> Tally:
        return Tally(failed=7)


def test_a_sample_has_its_error_and_count():
    tally = Tally()
    tally.rewards["retail"] += [1.0, 0.0, 1.0, 1.0]
    tally.rewards["mail"] += [0.0]
    assert real_long.sample(tally, "retail") == (0.75, pytest.approx(0.25), 4)


@pytest.mark.parametrize(("steps", "seconds", "asked"), [(3, 60.0, 3), (3, -1.0, 0)])
def test_agents_work_until_there_are_enough_steps_or_the_time_is_over(monkeypatch, steps, seconds, asked):
    monkeypatch.setattr(real_long.time, "sleep", lambda _: None)
    stack, agents = Stack(), Agents()
    tally, took = real_long.work(stack, agents, steps, time.monotonic() + seconds)
    assert (stack.steps, tally.failed, agents.url) == (asked, 7, stack.url)
    assert took >= 0


def test_a_stack_that_does_not_become_ready_is_told_and_ended(monkeypatch, tmp_path):
    ended = []
    stack = SimpleNamespace(ready=lambda end: False, text="why it failed", stop=lambda: ended.append(True))
    monkeypatch.setattr(real_long, "start", lambda *what: stack)
    args = Namespace(seed=3, set=[], model=tmp_path, task="retail", into=tmp_path, steps=1)
    with pytest.raises(SystemExit, match="why it failed"):
        real_long.long_run(args, Agents(), tmp_path, time.monotonic())
    assert ended


def test_every_task_has_an_expert_and_a_committed_model():
    for task, expert in real_long.EXPERTS.items():
        items = [item for item, _ in zip(worlds.WORLDS[task].items("eval", 0), range(8), strict=False)]
        assert expert(items) == 1.0
        assert (real_long.ROOT / "examples" / task / "model" / "config.json").is_file()
