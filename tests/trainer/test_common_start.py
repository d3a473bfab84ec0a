"""Tenants that share begin from the mean of what the others have accepted, and are offered how it changes."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support import wait_for
from tests.support.control import FakeControl
from tests.support.tenant_trainers import TenantWorld
from tests.support.tiny import conversation, make_config, make_trainer, table

from slipstream.settings import TenantConfig
from slipstream_trainer.model.adapter import read_adapter
from slipstream_trainer.model.combine import combine
from slipstream_trainer.versions import common_start


def change_of(folder: Path) -> dict[str, torch.Tensor]:
    """Module → what the adapter changes."""
    halves, config = read_adapter(folder)
    return {name: config.scale_of(name) * ab["B"].double() @ ab["A"].double() for name, ab in halves.items()}


def adapter_of(config, folder: Path, seed: int) -> Path:
    trainer = make_trainer(config)
    generator = torch.Generator().manual_seed(seed)
    for name, p in trainer.model.named_parameters():
        if "lora_" in name:
            p.data.copy_(torch.randn(p.shape, generator=generator) * 0.1)
    trainer.learner.adapter(folder)
    return folder


def test_a_sum_is_exact_where_there_is_room_and_the_nearest_where_there_is_not(tiny, tmp_path) -> None:
    config = make_config(tiny, tmp_path, lora_rank=4)
    one, two = (adapter_of(config, tmp_path / f"a{n}", n) for n in (1, 2))
    first, second = change_of(one), change_of(two)
    assert combine([(one, 0.5), (two, -2.0)], 8, tmp_path / "whole") == pytest.approx(1.0)
    for name, change in change_of(tmp_path / "whole").items():
        assert torch.allclose(change, 0.5 * first[name] - 2.0 * second[name], atol=1e-5)
    room = combine([(one, 0.5), (two, -2.0)], 4, tmp_path / "less")
    whole = kept = apart = 0.0
    for name, change in change_of(tmp_path / "less").items():
        wanted = 0.5 * first[name] - 2.0 * second[name]
        values = torch.linalg.svdvals(wanted)
        assert torch.linalg.matrix_rank(change, rtol=1e-5) == 4
        apart += float((change - wanted).square().sum()) - float(values[4:].square().sum())
        whole, kept = whole + float(values.square().sum()), kept + float(values[:4].square().sum())
    assert apart == pytest.approx(0.0, abs=1e-4), "no change of this rank is nearer"
    assert room == pytest.approx(kept / whole, rel=1e-4) and room < 0.99


def test_what_is_left_of_the_rank_can_learn(tiny, tmp_path) -> None:
    one = adapter_of(make_config(tiny, tmp_path, lora_rank=2), tmp_path / "one", 1)
    combine([(one, 1.0)], 8, tmp_path / "sum")
    trainer = make_trainer(make_config(tiny, tmp_path, lora_rank=8))
    trainer.learner.load(tmp_path / "sum")
    rows = [p.norm(dim=1) for n, p in trainer.model.named_parameters() if "lora_A" in n]
    assert min(float(r.min()) for r in rows) > 0.1, "an A of zeros and a B of zeros would stay so"
    trainer.learner.adapter(tmp_path / "again")
    before = change_of(one)
    assert all(torch.allclose(c, before[n], atol=1e-5) for n, c in change_of(tmp_path / "again").items())


@pytest.fixture
def stack():
    with ExitStack() as found:
        yield found


def sharing(tiny: Path, folder: Path, monkeypatch, stack: ExitStack, names: list[str]) -> TenantWorld:
    """All share but `alone`."""
    monkeypatch.setattr(common_start, "OFFER_LOOK_S", 0.1)
    tenants = {name: TenantConfig(share=name != "alone") for name in [*names, "late"]}
    return TenantWorld(tiny, folder, monkeypatch, stack, names, tenants)


def begun(world: TenantWorld) -> tuple[FakeControl, FakeControl]:
    """Acme learns, then beta, which begins from it."""
    acme, beta = world.controls["acme"], world.controls["beta"]
    for n, control in enumerate((acme, beta)):
        control.add("b0", table(conversation(n)))
        wait_for(lambda control=control: control.done, 60)  # type: ignore[misc]
    return acme, beta


def test_a_new_tenant_begins_from_the_mean_of_the_others_that_share(tiny, tmp_path, monkeypatch, stack) -> None:
    world = sharing(tiny, tmp_path, monkeypatch, stack, ["acme", "beta", "alone"])
    with world:
        for n, name in enumerate(("acme", "beta", "alone")):
            world.controls[name].add("b0", table(conversation(n)))
        wait_for(lambda: all(world.controls[n].done for n in ("acme", "beta", "alone")), 60)
        world.controls["late"].add("b0", table(conversation(3)))
        world.tell("late")
        wait_for(lambda: world.controls["late"].done, 60)
    late = world.controls["late"]
    assert late.adapters["tiny@1"]["meta"] == {"common_start": 2} and late.adapters["tiny@2"]["parent"] == "tiny@1"
    assert late.of_kind("common_start")[0]["tenants"] == 2
    acme, beta, start = (change_of(world.adapter(name, "tiny@1")) for name in ("acme", "beta", "late"))
    mean = {name: (change + beta[name]) / 2 for name, change in acme.items()}
    size = sum(float(m.square().sum()) for m in mean.values())
    apart = sum(float((start[n] - m).square().sum()) for n, m in mean.items())
    assert size > 0 and apart < 0.5 * size, "as near as its rank lets it come"
    assert not any(a["meta"] for a in world.controls["alone"].adapters.values())


def test_the_others_progress_is_offered_and_one_that_was_taken_back_waits(tiny, tmp_path, monkeypatch, stack) -> None:
    monkeypatch.setattr(common_start, "OFFER_STEPS", 1)
    world = sharing(tiny, tmp_path, monkeypatch, stack, ["acme", "beta"])
    with world:
        acme, beta = begun(world)
        record = world.checkpoint_folder("beta") / "common" / common_start.RECORD_FILE
        assert json.loads(record.read_text())["steps"] == {common_start.mark_of("acme"): 1}
        acme.add("b1", table(conversation(2)))
        wait_for(lambda: len(beta.of_kind("common_start")) == 2, 60)
        offered = beta.of_kind("common_start")[1]["adapter"]
        assert (offered, beta.adapters[offered]["parent"]) == ("tiny@3", "tiny@2")
        assert beta.adapters[offered]["meta"] == {"common_start": 1}
        beta.roll_back(offered, "tiny@1")
        wait_for(lambda: beta.of_kind("restored"), 60)
        wait_for(lambda: json.loads(record.read_text())["wait"] == 2, 60)
        assert len(beta.of_kind("common_start")) == 2, "acme has made no step since"


def test_an_offer_is_what_the_mean_has_gained_on_top_of_ones_own(tiny, tmp_path) -> None:
    config = make_config(tiny, tmp_path, lora_rank=2)
    own, before, now = (adapter_of(config, tmp_path / f"a{n}", n) for n in (1, 2, 3))
    combine([(own, 1.0), (now, 1.0), (before, -1.0)], 6, tmp_path / "offer")
    changes = [change_of(folder) for folder in (own, before, now)]
    for name, change in change_of(tmp_path / "offer").items():
        assert torch.allclose(change, changes[0][name] + changes[2][name] - changes[1][name], atol=1e-4)


def test_a_tenant_that_ceases_to_share_gives_nothing_more(tiny, tmp_path, monkeypatch, stack) -> None:
    world = sharing(tiny, tmp_path, monkeypatch, stack, ["acme"])
    with world:
        world.controls["acme"].add("b0", table(conversation(0)))
        wait_for(lambda: world.controls["acme"].done, 60)
        world.declare({"acme": TenantConfig(share=False), "late": TenantConfig(share=True)})
        world.controls["late"].add("b0", table(conversation(1)))
        world.tell("late")
        wait_for(lambda: world.controls["late"].done, 60)
    assert list(world.controls["late"].adapters) == ["tiny@1"] and not world.controls["late"].of_kind("common_start")


def test_what_cannot_be_read_or_summed_keeps_nobody_from_learning(tiny, tmp_path, monkeypatch, stack) -> None:
    world = sharing(tiny, tmp_path, monkeypatch, stack, ["acme", "beta", "huge"])
    with world:
        for n, name in enumerate(("acme", "beta", "huge")):
            world.controls[name].add("b0", table(conversation(n)))
            wait_for(lambda name=name: world.controls[name].done, 60)  # type: ignore[misc]
        config = world.adapter("acme", "tiny@1") / "adapter_config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"use_dora": True}))  # somebody's own
        newest = max(world.controls["huge"].adapters)
        weights = world.adapter("huge", newest) / "adapter_model.safetensors"
        large = {name: w * 1e20 for name, w in load_file(weights).items()}
        weights.unlink()  # the checkpoint's is the same file
        save_file(large, weights)
        world.controls["late"].add("b0", table(conversation(3)))
        world.tell("late")
        wait_for(lambda: world.controls["late"].done, 60)
    late = world.controls["late"]
    assert late.done == {"b0": "trained"}
    assert [e["tenants"] for e in late.of_kind("common_start")] == [1], "that of beta alone"


def test_an_offer_that_fails_is_made_again(tiny, tmp_path, monkeypatch, stack) -> None:
    monkeypatch.setattr(common_start, "OFFER_STEPS", 1)
    world = sharing(tiny, tmp_path, monkeypatch, stack, ["acme", "beta"])
    with world:
        acme, beta = begun(world)
        tried: list[object] = []

        def fails(*wanted: Any) -> float:
            tried.append(wanted)
            if len(tried) < 3:
                raise OSError("no space left on device")
            return combine(*wanted)

        monkeypatch.setattr("slipstream_trainer.versions.common_start.combine", fails)
        acme.add("b1", table(conversation(2)))
        wait_for(lambda: len(beta.of_kind("common_start")) == 2, 60)
    record = (world.checkpoint_folder("beta") / "common" / common_start.RECORD_FILE).read_text()
    assert "acme" not in record, "a tenant's own backup has this file"
    assert not beta.of_kind("failed")
