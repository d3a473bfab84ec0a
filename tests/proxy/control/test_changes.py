"""What is said of an action by hand is what happens: over random states and all actions."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.adapters import write_adapter

from slipstream.config import Config
from slipstream.contract import Adapter, AdapterState
from slipstream_proxy.control.adapters.lifecycle import AdapterLifecycle
from slipstream_proxy.control.adapters.preview import effect_of
from slipstream_proxy.control.adapters.registry import AdapterRegistry
from slipstream_proxy.control.adapters.transitions import unexpected
from slipstream_proxy.control.shared.problem import Problem

S = AdapterState
GROUP = "tag.customer=acme"
ALL: list[tuple[str, str | None]] = [(action, None) for action in ("promote", "demote", "freeze", "unfreeze")]
ACTIONS = [*ALL, ("promote", GROUP), ("demote", GROUP), ("freeze", GROUP)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("adapters")
    for version in range(1, 6):
        write_adapter(root / "adapters" / f"tiny@{version}")
    return root


def registry_of(folder: Path, coin: random.Random, mode: str) -> AdapterRegistry:
    """Five versions in states that can be together. Files of some are gone: their folder has another name."""
    config = Config.model_validate({"data_dir": str(folder), "engine": {"name": "tiny"}, "gate": {"mode": mode}})
    registry, live, tried = AdapterRegistry(config), coin.randrange(7), coin.randrange(7)
    for v in range(1, 6):
        state = S.LIVE if v == live else S.CANDIDATE if v == tried else None
        state = state or coin.choice([S.RETIRED, S.RETIRED, S.ROLLED_BACK, S.REFUSED, S.LOADING])
        there = state in (S.LIVE, S.CANDIDATE, S.LOADING) or coin.random() < 0.7
        served = state in (S.LIVE, S.CANDIDATE)
        registry.put([
            Adapter(
                name=f"tiny@{v}", model="tiny", version=v, state=state, created=v, decided=v, reason="its rank is 99",
                path=f"tiny@{v}" if there else f"gone@{v}",
                parent=coin.choice([None, f"tiny@{v - 1}"]) if v > 1 else None,
                accepted=state == S.LIVE or (state == S.RETIRED and coin.random() < 0.7),
                best=state in (S.LIVE, S.RETIRED) and coin.random() < 0.3,
                forced=state == S.LOADING and coin.random() < 0.3,
                frozen=coin.choice([None, True, False]) if served else None,
                kept_from={GROUP: coin.choice(["tiny", "tiny@1"])} if served and coin.random() < 0.5 else {},
            )
        ])  # fmt: skip
    return registry


async def done(registry: AdapterRegistry, which: str, action: str, group: str | None) -> None:
    """The action as it runs, but for the store, and until what it waits for is loaded."""

    async def change(changed, *_) -> None:
        assert not unexpected(registry.items, changed), "the docs print all that follow a state"
        registry.put(changed)

    async def agree(decide):
        return await decide()

    journal, fleet = SimpleNamespace(change=change), SimpleNamespace(agree=agree)
    lifecycle = AdapterLifecycle(registry, journal, fleet, SimpleNamespace(current=None), lambda _: None)  # type: ignore[arg-type]
    adapter = await lifecycle.by_hand(which, action, None, group)  # type: ignore[arg-type]
    if action == "promote" and adapter.state == S.LOADING:
        await lifecycle.activate(adapter)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), mode=st.sampled_from(["guard", "guard", "canary", "manual"]))
async def test_what_is_said_of_an_action_is_what_happens(folder, seed, mode):
    for v, (action, group) in itertools.product(range(1, 6), ACTIONS):
        registry, name = registry_of(folder, random.Random(seed), mode), f"tiny@{v}"
        before = dict(registry.items)
        said: list[str] | str
        try:
            said = effect_of(registry, before[name], action, group)  # type: ignore[arg-type]
        except Problem as e:
            said = str(e)
        assert registry.items == before, "to ask changes nothing"
        try:
            await done(registry, name, action, group)
        except Problem as e:
            assert said == str(e)
            continue
        assert isinstance(said, list)
        check(registry, before, name, action, group, said)


def check(registry, before, name: str, action: str, group: str | None, said: list[str]) -> None:
    now, text = registry.items, " ".join(said)
    if group is not None:
        gets = registry.kept_from("tiny").get(group, registry.live("tiny"))
        assert f"New runs of {group} get {gets}." in said
        return
    if (got := re.search(r"New runs get ([^ ,]+?)[,.]", text)) is not None:
        assert got[1] == registry.live("tiny")
    elif action in ("promote", "demote"):
        was = AdapterRegistry(registry.config)
        was.put(before.values())
        assert registry.live("tiny") == (name if action == "promote" else was.live("tiny"))
    for other, a in now.items():
        told = [line for line in said if other in line and other != name]
        if a.state in (S.ROLLED_BACK, S.RETIRED) and before[other].state != a.state and other != name:
            words = {S.LIVE: "retired", S.LOADING: "dropped"}.get(before[other].state)
            words = words or (r"taken back|dropped" if a.state == S.ROLLED_BACK else "retired")
            assert any(re.search(words, line) for line in told), (other, said)
        elif other != name and before[other].state == a.state:
            assert not any(re.search(r"taken back|dropped|retired", line) for line in told), (other, said)
    if (was := before[name]).state != now[name].state and now[name].state == S.ROLLED_BACK:
        assert "is taken back" in said[0] and ("Running episodes" in text) == (was.state != S.LOADING)
    tried = registry.of("tiny", S.CANDIDATE)
    if action in ("freeze", "unfreeze") and tried is not None:
        assert (f"{tried.name} is not accepted" in text or "stays frozen" in text) == bool(registry.frozen("tiny"))
    waits = [a.version for a in now.values() if a.state == S.LOADING and not a.forced]
    assert action == "freeze" or (f"tiny@{max(waits)} waits, and" in text if waits else "can be tried" not in text)
