"""Both stores have every method that the protocol names, with the same parameters."""

from __future__ import annotations

import inspect

import pytest

from slipstream_proxy.store import protocol

COMPONENTS = {
    "episodes": protocol.Episodes,
    "rewards": protocol.Rewards,
    "pins": protocol.Pins,
    "judging": protocol.Judging,
    "batches": protocol.Batches,
    "adapters": protocol.AdapterRows,
    "events": protocol.Events,
    "cache": protocol.Cache,
    "archive": protocol.Archive,
    "outcomes": protocol.Outcomes,
    "statistics": protocol.Statistics,
}


def methods(kind):
    return {n: f for n, f in vars(kind).items() if inspect.isfunction(f) and not n.startswith("_")}


def names(method):
    return [p for p in inspect.signature(method).parameters if p != "self"]


def test_every_component_of_the_protocol_is_compared_here():
    properties = {n for n, f in vars(protocol.Store).items() if isinstance(f, property)}
    one_class = {"reports", "audit"}  # the protocol names the classes themselves
    assert set(COMPONENTS) == properties - {"rebuilt", "shared"} - one_class


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_has_the_methods(store, component):
    for name, method in methods(COMPONENTS[component]).items():
        assert names(getattr(getattr(store, component), name)) == names(method), f"{component}.{name}"


def test_the_store_has_the_methods(store):
    for name, method in methods(protocol.Store).items():
        assert names(getattr(store, name)) == names(method), name


def test_every_method_is_described():
    bare = [f"{c}.{n}" for c, kind in COMPONENTS.items() for n, f in methods(kind).items() if not f.__doc__]
    assert set(bare) <= {"cache.get", "cache.put"}
