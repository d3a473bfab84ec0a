"""Adapters and their registry, without a control plane."""

from __future__ import annotations

from slipstream.config import Config
from slipstream.contract import Adapter
from slipstream_proxy.control.adapters.registry import AdapterRegistry


def registry(mode: str = "guard", **gate) -> AdapterRegistry:
    tree = {"data_dir": "/nowhere", "engine": {"name": "tiny"}, "gate": {"mode": mode, **gate}}
    return AdapterRegistry(Config.model_validate(tree))


def adapter(n: int, state: str = "live", **more) -> Adapter:
    return Adapter(name=f"tiny@{n}", model="tiny", version=n, state=state, created=1.0, path=f"tiny@{n}", **more)
