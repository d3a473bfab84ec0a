"""The order of an episode's calls over several proxies, whenever each call reaches the store."""

from __future__ import annotations

import dataclasses
import random
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.postgres import fresh_schema
from tests.support.records import NOW, call, reward, rules

from slipstream_proxy.log.spool import BOOT_ID
from slipstream_proxy.store import open_store
from slipstream_proxy.store.conversation import order
from slipstream_proxy.store.conversation.order import Stamp, StoreClock, place


def arrive(stamps: list[Stamp], linear: bool) -> list[str]:
    """Put calls in, in the order of the list. ``linear``: call ``n`` goes on with ``n - 1``."""
    found: list[Stamp] = []
    for stamp in stamps:
        here = sorted(int(s.call) for s in found)
        base = next((str(n) for n in reversed(here) if n < int(stamp.call)), None) if linear else None
        later = {str(n) for n in here if n > int(stamp.call)} if linear else set()
        found.insert(place(found, stamp, base, later.intersection), stamp)
    return [s.call for s in found]


counts = st.integers(1, 9)


@given(counts, st.randoms(use_true_random=False))
def test_one_machines_calls_stand_in_the_order_of_its_clock(count, rng):
    stamps = [Stamp(str(n), "m", 10.0 + n * 1e-6, rng.uniform(0, 1e9)) for n in range(count)]
    rng.shuffle(stamps)
    assert arrive(stamps, linear=False) == [str(n) for n in range(count)]


@given(counts, st.randoms(use_true_random=False))
def test_a_conversation_has_its_order_whatever_the_machines_clocks_say(count, rng):
    ticks, off = {m: rng.uniform(0, 1e6) for m in "abc"}, {m: rng.uniform(-1e6, 1e6) for m in "abc"}
    machines = [rng.choice("abc") for _ in range(count)]
    stamps = [Stamp(str(n), m, ticks[m] + n, NOW + n + off[m]) for n, m in enumerate(machines)]
    rng.shuffle(stamps)
    assert arrive(stamps, linear=True) == [str(n) for n in range(count)]


@given(counts, st.randoms(use_true_random=False))
def test_else_the_stores_clock_decides_as_far_as_it_is_exact(count, rng):
    ticks, off = {m: rng.uniform(0, 1e6) for m in "abc"}, {m: rng.uniform(-0.4, 0.4) for m in "abc"}
    machines = [rng.choice("abc") for _ in range(count)]
    stamps = [Stamp(str(n), m, ticks[m] + n, NOW + n + off[m]) for n, m in enumerate(machines)]
    rng.shuffle(stamps)
    assert arrive(stamps, linear=False) == [str(n) for n in range(count)]


@given(st.randoms(use_true_random=False), st.integers(2, 9), st.sampled_from([0.4, 1e6]))
def test_a_run_with_branches_has_its_order_while_the_clocks_are_right(rng, count, wrong):
    """Each proxy stores its own calls in order, at its own pace. With wrong clocks each machine's own order still holds."""
    machine, ticks = {n: rng.choice("ab") for n in range(count)}, {m: rng.uniform(0, 1e6) for m in "ab"}
    off = {m: rng.uniform(-wrong, wrong) for m in "ab"}
    before = {n: rng.choice([None, *range(n)]) for n in range(count)}

    def earlier(n: int) -> list[int]:
        base = before[n]
        return [] if base is None else [base, *earlier(base)]

    queues = {m: [n for n in range(count) if machine[n] == m] for m in "ab"}
    found: list[Stamp] = []
    while any(queues.values()):
        n = queues[rng.choice([m for m in "ab" if queues[m]])].pop(0)
        here = [int(s.call) for s in found]
        base = next((str(b) for b in earlier(n) if b in here), None)
        later = {str(h) for h in here if n in earlier(h)}
        stamp = Stamp(str(n), machine[n], ticks[machine[n]] + n, NOW + n + off[machine[n]])
        found.insert(place(found, stamp, base, later.intersection), stamp)
    order = [int(s.call) for s in found]
    assert wrong > 1 or order == sorted(order)
    for m in "ab":
        own = [n for n in order if machine[n] == m]
        assert own == sorted(own)


def test_machines_that_do_not_say_which_they_are_are_told_apart_by_the_stores_clock():
    assert arrive([Stamp("1", "-", 5.0, 2.0), Stamp("0", "-", 9.0, 1.0)], linear=False) == ["0", "1"]


@given(
    st.lists(st.tuples(st.sampled_from(["", "-", "a", "b"]), st.floats(0, 9), st.floats(0, 9)), max_size=9), st.data()
)
def test_whatever_is_said_there_is_a_place(said, data):
    found: list[Stamp] = []
    for n, (boot, tick, at) in enumerate(said):
        base = data.draw(st.sampled_from([None, "x", *(s.call for s in found)]))
        later = data.draw(st.sets(st.sampled_from(["x", *(s.call for s in found)])))
        where = place(found, Stamp(str(n), boot, tick, at), base, later.intersection)
        assert 0 <= where <= len(found) and (boot or where == len(found))
        found.insert(where, Stamp(str(n), boot, tick, at))


def test_the_stores_clock_is_asked_seldom(monkeypatch):
    now = [100.0]
    asked: list[str] = []

    def all_rows(sql: str) -> list[tuple[float]]:
        asked.append(sql)
        return [(NOW + 5.0 + now[0],)]

    tx: Any = SimpleNamespace(all=all_rows)
    monkeypatch.setattr(order, "time", SimpleNamespace(monotonic=lambda: now[0]))
    clock = StoreClock()
    assert clock.stamp(tx, call(boot=BOOT_ID, tick=90.0).head).at == pytest.approx(NOW + 95.0)
    now[0] += 20.0
    assert clock.stamp(tx, call(boot=BOOT_ID, tick=119.0).head).at == pytest.approx(NOW + 124.0)
    assert len(asked) == 1
    now[0] += 20.0
    clock.stamp(tx, call(boot=BOOT_ID, tick=119.0).head)
    assert len(asked) == 2
    old = clock.stamp(tx, call(boot="before", tick=5.0, at=NOW, seconds=2.0).head)
    assert (old.boot, old.at) == ("before", NOW + 2.0)


@pytest.fixture
def proxies(postgres):
    """The stores of two proxies on one PostgreSQL."""
    with psycopg.connect(postgres, autocommit=True) as con:
        con.execute("DROP SCHEMA IF EXISTS ordered CASCADE; CREATE SCHEMA ordered")
    url = f"{postgres}&options=-csearch_path%3Dordered"
    made = [open_store(url, rules(), instance=name) for name in "ab"]
    yield made
    for one in made:
        one.close()


def conversation(name: str, turns: int, rng: random.Random, *, tokens: bool, machines: bool):
    """A run's calls, each of which goes on with the one before, and the proxy that each went through."""
    messages = [{"role": "user", "content": f"{name} begins"}]
    ids = [1, 2, 3]
    off = [rng.uniform(-1e5, 1e5) for _ in "ab"]
    found = []
    for n in range(turns):
        proxy = rng.randrange(2)
        sampled = [rng.randrange(1000) for _ in range(rng.choice([3, 80]))]
        reply = {"role": "assistant", "content": f"reply {n}"}
        boot, tick = (f"boot{proxy}", 5e5 * proxy + n) if machines else ("boot", n * 1e-3 + 1.0)
        found.append(
            (
                proxy,
                call(
                    name, at=NOW + (n + off[proxy] if machines else 0.0), seconds=0.0, messages=list(messages), boot=boot, tick=tick,
                    prompt=list(ids) if tokens else [], choices=[(reply, sampled, [-0.5] * len(sampled))],
                ),
            )
        )  # fmt: skip
        messages += [reply, {"role": "user", "content": f"result {n}"}]
        ids += [*sampled, 7]
    return found


@pytest.mark.parametrize("machines", [False, True])
@pytest.mark.parametrize("tokens", [False, True])
def test_a_run_over_two_proxies_is_stored_as_it_was(proxies, tokens, machines):
    rng = random.Random(f"{tokens} {machines}")
    for example in range(12):
        name = f"run{example}"
        calls = conversation(name, rng.randrange(1, 9), rng, tokens=tokens, machines=machines)
        queues = [[c for p, c in calls if p == proxy] for proxy in (0, 1)]
        while any(queues):  # each proxy reads its own spool in order, at its own pace
            proxy = rng.choice([p for p in (0, 1) if queues[p]])
            batch = [queues[proxy].pop(0) for _ in range(rng.randint(1, len(queues[proxy])))]
            proxies[proxy].ingest(batch, {})
        found = proxies[0].episodes.get("-", name, tokens=True).call_list
        assert [c.id for c in found] == [c.head.id for _, c in calls]
        assert [c.number for c in found] == list(range(len(calls)))
        assert [c.extends for c in found] == [None, *(c.head.id for _, c in calls[:-1])]
        for made, (_, sent) in zip(found, calls, strict=True):
            assert made.messages == sent.parsed.messages and made.prompt_ids == sent.parsed.prompt_ids
            assert made.completion_ids == [sent.parsed.choices[0].completion_ids]


def test_calls_without_a_conversation_stand_as_they_were_acknowledged(proxies):
    a, b = proxies
    one = [
        call("plain", messages=[{"role": "user", "content": str(n)}], prompt=[n], boot=BOOT_ID, tick=1.0 + n)
        for n in range(6)
    ]
    b.ingest([one[5]], {})
    a.ingest([one[0], one[3]], {})
    b.ingest([one[4]], {})
    a.ingest([one[1], one[2]], {})
    found = b.episodes.get("-", "plain").call_list
    assert [c.id for c in found] == [c.head.id for c in one] and [c.number for c in found] == list(range(6))


def test_a_branch_keeps_what_it_goes_on_with(proxies):
    """The root comes last: both of its continuations find it, and theirs do not."""
    a, b = proxies
    ask = [{"role": "user", "content": "root"}]
    root = call(
        "tree",
        messages=ask,
        prompt=[1],
        boot=BOOT_ID,
        tick=1.0,
        choices=[({"role": "assistant", "content": "r"}, [2], [-1.0])],
    )
    said = [*ask, {"role": "assistant", "content": "r"}]
    left = call("tree", messages=[*said, {"role": "user", "content": "l"}], prompt=[1, 2, 3], boot=BOOT_ID, tick=2.0)
    right = call("tree", messages=[*said, {"role": "user", "content": "r"}], prompt=[1, 2, 4], boot=BOOT_ID, tick=3.0)
    more = call(
        "tree", messages=[*said, {"role": "user", "content": "l"}, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "m"}],
        prompt=[1, 2, 3, 7, 8, 9, 5], boot=BOOT_ID, tick=4.0,
    )  # fmt: skip
    other = call("tree", messages=[{"role": "user", "content": "sub-agent"}], prompt=[6], boot=BOOT_ID, tick=5.0)
    b.ingest([left, right, more, other], {})
    a.ingest([root], {})
    found = {c.id: (c.number, c.extends) for c in a.episodes.get("-", "tree").call_list}
    assert [found[c.head.id] for c in (root, left, right, more, other)] == [
        (0, None), (1, root.head.id), (2, root.head.id), (3, left.head.id), (4, None),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_an_older_reward_does_not_win_whichever_proxy_comes_late(postgres, seed):
    """Each proxy brings what it kept while the store was away, in parts, in any turn."""
    rng = random.Random(seed)
    url = fresh_schema(postgres)
    stores = {name: open_store(url, rules(), instance=name) for name in "ab"}
    values = [float(n) for n in range(12)]
    kept = {"a": [], "b": []}
    for n, value in enumerate(values):
        item = dataclasses.replace(reward("e", value), boot=BOOT_ID, tick=100.0 + 0.01 * n)
        kept[rng.choice("ab")].append(item)
    try:
        stores["a"].ingest([call("e")], {})
        while any(kept.values()):
            name = rng.choice([name for name, some in kept.items() if some])
            some, kept[name] = kept[name][:3], kept[name][3:]
            stores[name].ingest(some, {})
        found = stores["b"].episodes.get("-", "e")
        assert [r.value for r in found.rewards] == values
        assert found.reward == values[-1]
    finally:
        for store in stores.values():
            store.close()
