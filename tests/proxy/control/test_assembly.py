"""The control plane's objects share what must be one."""

from __future__ import annotations

import dataclasses

from slipstream.config import Config
from slipstream_proxy.control.deps import Deps
from slipstream_proxy.control.run.worker import assemble
from slipstream_proxy.log.spool import SpoolWriter


async def made(tmp_path) -> Deps:
    config = Config(data_dir=str(tmp_path))
    writer = SpoolWriter(config.spool_dir, "control", segment_bytes=1 << 20, durability="process")
    return assemble(config, writer)


async def test_nothing_runs_and_no_store_is_open(tmp_path):
    deps = await made(tmp_path)
    assert deps.stores.current is None
    assert deps.ingester is None
    assert not (tmp_path / "slipstream.duckdb").exists()
    assert not (tmp_path / "live.json").exists()


async def test_every_collaborator_of_one_kind_is_the_same_object(tmp_path):
    """Two registries, or two pools of engines, would each be right about half of the adapters."""
    deps = await made(tmp_path)
    owners = {field.name: getattr(deps, field.name) for field in dataclasses.fields(deps)} | vars(deps.rollout)
    by_kind = {type(part): part for part in owners.values()}
    compared = 0
    for owner, whole in owners.items():
        for name, part in getattr(whole, "__dict__", {}).items():
            if type(part) in by_kind and type(part).__module__.startswith("slipstream_proxy.control"):
                assert part is by_kind[type(part)], f"{owner}.{name}"
                compared += 1
    assert compared > 30
    await deps.mutations.writer.close()
