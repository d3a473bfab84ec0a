from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.support import MODEL, vllm
from tests.support.adapters import BROKEN, break_adapter, make_adapter, write_adapter
from tests.support.plane import register

from slipstream.config import Config
from slipstream.engines.engine import EngineSampling, reading
from slipstream.shared.adapter_config import BadAdapter
from slipstream_proxy.control.adapters.files import base_shapes, check_folder
from slipstream_proxy.control.engines.effect import TWIN_SCALE_FACTOR, apart, changes, shape_of, twin_of
from slipstream_proxy.control.engines.pool import EnginePool
from slipstream_proxy.control.engines.replica import EngineFailed, EngineRefused


def test_what_differs_no_more_than_the_base_from_itself_is_no_effect() -> None:
    base, again = [{"a": -1.0, "b": -2.0}], [{"a": -1.01, "b": -2.0}]
    assert not changes(base, base, base)
    assert changes(base, [{"a": -1.0, "b": -2.0001}], base), "a quiet engine: any difference counts"
    assert not changes(base, [{"a": -1.015, "b": -2.0}], again)
    assert changes(base, [{"a": -1.2, "b": -2.0}], again)
    assert apart([{"a": -1.0}], [{"b": -1.0}]) == float("inf")


@pytest.mark.parametrize("answer", [None, {}, {"choices": [{"index": 0, "logprobs": None}]}, {"choices": []}, "no"])
def test_an_engine_without_logprobs_shows_nothing(answer) -> None:
    assert reading(answer) is None


def test_the_twin_has_the_same_weights_and_a_larger_scale(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "tiny@1", lora_alpha=16, alpha_pattern={"q_proj": 4})
    with twin_of(folder, "tiny@1") as twin:
        assert twin is not None
        written = json.loads((twin / "adapter_config.json").read_text())
        assert (written["lora_alpha"], written["alpha_pattern"]) == (
            16 * TWIN_SCALE_FACTOR,
            {"q_proj": 4 * TWIN_SCALE_FACTOR},
        )
        weights = [f / "adapter_model.safetensors" for f in (folder, twin)]
        assert weights[0].read_bytes() == weights[1].read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["tiny@1"]


async def test_an_adapter_that_changes_nothing_is_refused_with_the_fix(plane) -> None:
    plane.engine.ignored.add("tiny@1")
    _, found = await register(plane, 1)
    assert found["state"] == "refused"
    assert "no effect" in found["reason"]
    assert "trainer.lora_targets" in found["reason"]
    assert plane.engine.adapters == {}, "neither it nor its twin stays"


async def test_a_small_first_step_is_taken_because_its_twin_changes_something(plane) -> None:
    plane.engine.faint.add("tiny@1")
    _, found = await register(plane, 1)
    assert found["state"] == "live"
    assert set(plane.engine.adapters) == {"tiny@1"}


async def test_an_adapter_that_is_no_version_can_be_tried(plane) -> None:
    async def trial(name: str) -> dict:
        write_adapter(plane.config.adapters_dir / name)
        status, body = await plane.ask("POST", "/adapters/try", {"path": name})
        assert status == 200
        return body

    assert await trial(".tmp-trainer-1-trial") == {"tried": True, "reason": None}
    plane.engine.ignored.add("2-trial")
    assert "no effect" in (await trial(".tmp-trainer-2-trial"))["reason"]
    plane.engine.refuse[".tmp-trainer-3-trial"] = 400
    assert "answered 400" in (await trial(".tmp-trainer-3-trial"))["reason"]
    assert plane.engine.adapters == {}
    assert (await plane.ask("GET", "/adapters"))[1]["adapters"] == []
    assert (await plane.ask("POST", "/adapters/try", {"path": "../x"}))[0] == 422


def lora(folder: Path, a: int, b: int, module: str = "q_proj", **config: object) -> Path:
    """An adapter of one module under PEFT's names, with these bytes as its weights."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"r": 2, "peft_type": "LORA", **config}))
    name, data = f"base_model.model.model.layers.0.{module}.lora_", bytes([a] * 32 + [b] * 32)
    halves = {"A": ([2, 4], [0, 32]), "B": ([4, 2], [32, 64])}
    header = {f"{name}{s}.weight": {"dtype": "F32", "shape": x, "data_offsets": y} for s, (x, y) in halves.items()}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    (folder / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return folder


def test_adapters_are_alike_in_names_shapes_and_scales(tmp_path: Path) -> None:
    first = shape_of(lora(tmp_path / "1", 1, 2))
    assert first is not None
    assert shape_of(lora(tmp_path / "2", 3, 4)) == first, "the values say nothing"
    others = [lora(tmp_path / "3", 1, 2, module="k_proj"), lora(tmp_path / "4", 1, 2, lora_alpha=4)]
    assert len({first, *map(shape_of, others)}) == 3
    nothing = [lora(tmp_path / "5", 0, 2), lora(tmp_path / "6", 1, 0), write_adapter(tmp_path / "7"), tmp_path / "8"]
    assert [shape_of(folder) for folder in nothing] == [None] * 4, "the engine is asked about each of these"


async def test_an_engine_is_asked_about_the_first_adapter_of_a_shape_until_it_starts_again(plane, tmp_path) -> None:
    """A trainer's versions are alike: a version a second is not to wait for three questions, and for its twin."""

    async def ignores(n: int, a: int, b: int, module: str = "q_proj") -> bool:
        name = f"tiny@{n}"
        folder = lora(tmp_path / name, a, b, module)
        plane.engine.ignored.add(name)
        errors = await pool.load_all(name, str(folder), folder)
        await pool.unload(name)
        return any("no effect" in str(e) for e in errors)

    pool = EnginePool(Config(engine={"urls": [plane.engine.url]}))
    await pool.start()
    await pool.check_all()
    used = lora(tmp_path / "tiny@1", 1, 2)
    assert await pool.load_all("tiny@1", str(used), used) == []
    assert not await ignores(2, 3, 4)
    assert await ignores(3, 1, 0), "zeros change nothing, whatever their names"
    assert await ignores(4, 1, 2, module="k_proj")
    pool.engines[0].healthy = False  # as after a start
    await pool.check_all()
    assert await ignores(5, 1, 2)
    await pool.stop()


@pytest.mark.engine
async def test_real_vllm_serves_no_adapter_without_effect(tmp_path: Path) -> None:
    """Without the plugin. Only another model's sizes are known by the base model's files. A step of 1e-6 is served."""
    from safetensors.torch import load_file, save_file

    good = make_adapter(tmp_path / "inbox@1", 1)
    faint = break_adapter(good, tmp_path / "inbox@2", "prefix")
    weights = load_file(good / "adapter_model.safetensors")
    small = {n: w * 1e-6 if ".lora_B." in n else w for n, w in weights.items()}
    save_file(small, faint / "adapter_model.safetensors")
    broken = [break_adapter(good, tmp_path / f"inbox@{n}", kind) for n, kind in enumerate(BROKEN, 3)]
    accepted, shapes = {}, base_shapes(str(MODEL))
    own = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05}  # as Qwen ships
    with vllm(tmp_path / "engine.log", "--override-generation-config", json.dumps(own), plugin=False) as url:
        engines = EnginePool(Config(engine={"urls": [url], "health_interval": 1.0}))
        await engines.start()
        async with asyncio.timeout(120):
            while not engines.engines[0].ok:  # its first answers take longer than a round of looks waits
                await engines.check_all()
        assert engines.engines[0].sampling == EngineSampling({"temperature": 0.7, "top_p": 0.8}, known=False)
        for kind, folder in zip(("good", "faint", *BROKEN), (good, faint, *broken), strict=True):
            try:
                check_folder(folder, 16, shapes if kind == "other model's" else None)
                errors = await engines.load_all(folder.name, str(folder), folder)
            except BadAdapter as e:
                errors = [e]
            print(f"{kind}: {errors}")
            accepted[kind] = not errors
            assert all(isinstance(e, BadAdapter | EngineRefused | EngineFailed) for e in errors)
        await engines.stop()
    assert accepted == {"good": True, "faint": True, **dict.fromkeys(BROKEN, False)}


@pytest.mark.parametrize("kind", ["transposed", "swapped", "empty", "other model's", "zero"])
def test_what_the_files_show_is_refused_before_the_engine_is_asked(tmp_path: Path, kind: str) -> None:
    good = make_adapter(tmp_path / "inbox@1", 1)
    base = base_shapes(str(MODEL))
    check_folder(good, 16, base)
    with pytest.raises(BadAdapter):
        check_folder(break_adapter(good, tmp_path / "inbox@2", kind), 16, base)
