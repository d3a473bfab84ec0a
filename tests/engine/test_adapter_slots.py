"""Turns at the slots for adapters: vLLM's own queue and rule of admission, in a simulation with a clock of its own."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.core.sched.request_queue import FCFSRequestQueue, PriorityRequestQueue

from slipstream_vllm import adapter_slots
from slipstream_vllm.adapter_slots import (
    LOADS_A_STEP,
    LONGEST_TURN_S,
    TURN_S,
    ScheduledTurns,
    SlotTurns,
    by_turns,
    counting,
    owner_of,
)

STEP_S = 0.02
SLOTS, MOST_RUNNING, LONGEST_STEPS = 8, 64, 40
ids = itertools.count()


@dataclass(eq=False)
class Call:
    """A request, as far as a scheduler looks at it."""

    lora_request: Any
    steps: int
    asked: float = 0.0
    begun: float | None = None
    num_preemptions: int = 0

    def __post_init__(self) -> None:
        self.request_id = self.req_id = str(next(ids))


class Simulation:
    """vLLM's admission: running calls first, then the queue in its order, with the adapters that have room."""

    def __init__(self) -> None:
        self.waiting, self.running, self.requests = FCFSRequestQueue(), list[Call](), dict[str, Call]()
        self.lora_config = SimpleNamespace(max_loras=SLOTS)
        self.now, self.numbers = 0.0, dict[str, int]()
        self.slipstream_turns = ScheduledTurns(SLOTS, lambda: self.now)
        self.served: list[Call] = []
        self.most_new = 0

    def ask(self, name: str, steps: int = 1) -> Call:
        number = self.numbers.setdefault(name, len(self.numbers) + 1)
        call = Call(SimpleNamespace(lora_int_id=number, lora_name=name), steps, self.now)
        self.requests[call.request_id] = call
        self.waiting.add_request(call)
        return call

    def schedule(self) -> Any:
        active = {call.lora_request.lora_int_id for call in self.running}
        before, new, passed = set(active), list[Call](), list[Any]()
        while self.waiting and len(self.running) < MOST_RUNNING:
            call: Any = self.waiting.pop_request()
            number = call.lora_request.lora_int_id
            if number not in active and len(active) == SLOTS:
                passed.insert(0, call)
                continue
            active.add(number)
            call.begun = self.now
            self.running.append(call)
            new.append(call)
        self.waiting.prepend_requests(passed)
        assert len(active) <= SLOTS
        if before:
            self.most_new = max(self.most_new, len(active - before))
        return SimpleNamespace(scheduled_new_reqs=new)

    def end_step(self) -> list[Call]:
        self.now += STEP_S
        for call in self.running:
            call.steps -= 1
        over = [call for call in self.running if not call.steps]
        self.running = [call for call in self.running if call.steps]
        for call in over:
            del self.requests[call.request_id]
        self.served += over
        return over

    def waited(self, call: Call) -> float:
        return (self.now if call.begun is None else call.begun) - call.asked

    def longest_waits(self) -> dict[str, float]:
        """Owner → seconds, of calls that were served or still wait."""
        found: dict[str, float] = {}
        for call in [*self.served, *self.requests.values()]:
            owner = owner_of(call.lora_request.lora_name)
            found[owner] = max(found.get(owner, 0.0), self.waited(call))
        return found


def busy(simulation: Simulation, schedule: Any, names: Iterator[str], agents: int, seconds: float) -> None:
    """So many agents ask again as soon as they are answered."""
    chance = random.Random(1)
    owners = [next(names) for _ in range(agents)]
    for name in owners:
        simulation.ask(name, chance.randint(1, LONGEST_STEPS))
    while simulation.now < seconds:
        schedule(simulation)
        for call in simulation.end_step():
            simulation.ask(call.lora_request.lora_name, chance.randint(1, LONGEST_STEPS))


def zipf(tenants: int) -> Iterator[str]:
    """Each tenant has an agent; the others are the first tenants', by Zipf's law."""
    yield from (f"inbox@t{n}.1" for n in range(tenants))
    chance = random.Random(2)
    while True:
        found = chance.choices(range(tenants), [1 / (n + 1) for n in range(tenants)])
        yield f"inbox@t{found[0]}.1"


turned = by_turns(Simulation.schedule)
AGENTS, LASTS_S = 128, 100.0


def a_round() -> float:
    """Seconds in which each tenant has had its turn: these, the longest calls that run on, and the steps in which
    adapters come in one by one.
    """
    agents = Counter(itertools.islice(zipf(64), AGENTS))
    turns = sum(min(TURN_S * n, LONGEST_TURN_S) + LONGEST_STEPS * STEP_S for n in agents.values())
    return turns / SLOTS + LONGEST_TURN_S + 64 * STEP_S


def test_no_tenant_of_64_waits_for_more_than_a_round_at_8_slots() -> None:
    with_turns, without = Simulation(), Simulation()
    busy(with_turns, turned, zipf(64), AGENTS, LASTS_S)
    busy(without, Simulation.schedule, zipf(64), AGENTS, LASTS_S)
    assert max(with_turns.longest_waits().values()) < a_round() < LASTS_S / 3
    assert max(without.longest_waits().values()) > 0.9 * LASTS_S, "in vLLM's own order some are never served"
    assert with_turns.most_new <= LOADS_A_STEP
    served = Counter(owner_of(call.lora_request.lora_name) for call in with_turns.served)
    assert len(served) == 64
    use = with_turns.slipstream_turns.use
    begun = Counter(owner_of(c.lora_request.lora_name) for c in [*with_turns.served, *with_turns.running])
    assert {owner: one.calls for owner, one in use.items()} == begun
    assert sum(one.waits for one in use.values()) > 0
    assert not set(with_turns.slipstream_turns.since) - with_turns.requests.keys()


def test_a_flood_of_one_tenants_versions_keeps_nobody_waiting() -> None:
    simulation = Simulation()
    chance = random.Random(3)
    small: list[Call] = []
    for _ in range(200):
        simulation.ask(f"inbox@flood.{chance.randint(1, 100)}", LONGEST_STEPS)
    while simulation.now < 60.0:
        if not small or (small[-1].begun is not None and simulation.now > small[-1].begun + 1.0):
            small.append(simulation.ask("inbox@small.1", 2))
        turned(simulation)
        for call in simulation.end_step():
            if owner_of(call.lora_request.lora_name) == "flood":
                simulation.ask(f"inbox@flood.{chance.randint(1, 100)}", LONGEST_STEPS)
    assert len(small) > 20
    assert max(map(simulation.waited, small)) <= LONGEST_TURN_S + (LONGEST_STEPS + 2) * STEP_S


def test_as_many_slots_as_adapters_leave_vllm_alone() -> None:
    simulation, plain = Simulation(), Simulation()
    names = [f"inbox@t{n}.1" for n in range(SLOTS)]
    busy(simulation, turned, iter(names * 8), 64, 30.0)
    busy(plain, Simulation.schedule, iter(names * 8), 64, 30.0)
    assert [c.begun for c in simulation.served] == [c.begun for c in plain.served]
    assert not any(use.waits for use in simulation.slipstream_turns.use.values())


adapters = st.integers(1, 24)


@given(
    st.lists(st.tuples(st.sets(adapters, max_size=4), st.lists(adapters, max_size=30)), min_size=1, max_size=30),
    st.integers(1, 6),
)
def test_what_is_open_has_room_and_somebody_always_begins(steps: list[tuple[set[int], list[int]]], owners: int) -> None:
    now = 0.0
    turns = SlotTurns(4, {n: str(n % owners) for n in range(1, 25)}, lambda: now)
    for running, waiting in steps:
        now += 0.3
        may = turns.open_to(dict.fromkeys(running, 1), waiting)
        if may is None:
            assert len(running | set(waiting)) <= 4
            continue
        assert len(may | running) <= 4, "with those that run on"
        assert may <= running | set(waiting)
        assert may & set(waiting) or running, "an idle engine begins something"


@pytest.mark.parametrize("queue", [FCFSRequestQueue, PriorityRequestQueue])
def test_the_queue_keeps_its_order_and_loses_nobody(queue: Any) -> None:
    simulation = Simulation()
    simulation.waiting = queue()
    Call.__lt__ = lambda self, other: int(self.request_id) < int(other.request_id)
    try:
        for n in range(3 * SLOTS):
            simulation.ask(f"inbox@t{n % 12}.1", 1000)
        asked = list(simulation.waiting)
        turned(simulation)
        assert [call for call in asked if call not in simulation.running] == list(simulation.waiting)
        assert len({c.lora_request.lora_int_id for c in simulation.running}) == SLOTS
    finally:
        del Call.__lt__


def test_an_interrupted_call_goes_on_though_its_adapter_is_closed() -> None:
    simulation = Simulation()
    for n in range(2 * SLOTS):
        simulation.ask(f"inbox@t{n}.1", 1000)
    for _ in range(40):
        turned(simulation)
        simulation.end_step()
    first = simulation.running[0]
    again = simulation.ask(first.lora_request.lora_name, 1000)
    again.num_preemptions = 1
    fresh = simulation.ask(first.lora_request.lora_name, 1000)
    turned(simulation)
    assert again.begun is not None and fresh.begun is None


def test_calls_without_an_adapter_never_wait_for_one() -> None:
    simulation = Simulation()
    for n in range(3 * SLOTS):
        simulation.ask(f"inbox@t{n}.1", 1000)
    base = simulation.ask("inbox", 1)
    base.lora_request = None
    assert base not in simulation.slipstream_turns.hold_back(simulation)


class Models:
    def __init__(self) -> None:
        self._active_adapters, self._registered_adapters = dict[int, None](), dict[int, None]()


def test_loads_and_reads_are_counted_and_hits_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    use = adapter_slots.UseCounts()
    monkeypatch.setattr(adapter_slots, "WORKER_USE", use)
    manager = SimpleNamespace(_adapter_manager=Models())

    def add(self: Any, asked: Any) -> bool:
        self._adapter_manager._registered_adapters[asked.lora_int_id] = None
        self._adapter_manager._active_adapters[asked.lora_int_id] = None
        return True

    asked = SimpleNamespace(lora_int_id=1, lora_name="inbox@acme.7", load_inplace=False)
    load = counting(add)
    for _ in range(3):
        load(manager, asked)
    manager._adapter_manager._active_adapters.clear()
    load(manager, asked)
    assert (use["acme"].loads, use["acme"].reads) == (2, 1)
    assert [owner_of(name) for name in ("inbox@acme.7", "inbox@7", "inbox", "a@b.c@umbrella.1")] == [
        "acme",
        "",
        "",
        "umbrella",
    ]
