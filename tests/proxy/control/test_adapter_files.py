"""What vLLM would refuse, or worse take, is refused before."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from slipstream.shared.adapter_config import CONFIG_BYTES, WEIGHTS_FILE_NAME, BadAdapter
from slipstream_proxy.control.adapters import files
from slipstream_proxy.control.adapters.files import (
    base_shapes,
    check_folder,
    check_numbers,
    check_shapes,
    safetensors_header,
    split_name,
)

NAME = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"


def adapter(folder: Path, weights: dict[str, np.ndarray] | None = None, **config: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"r": 8, "bias": "none", **config}))
    a, b = np.ones((8, 32), np.float32), np.ones((64, 8), np.float32)
    save_file(weights or {NAME.format("A"): a, NAME.format("B"): b}, folder / "adapter_model.safetensors")
    return folder


def test_a_good_one_has_the_hash_of_its_weights(tmp_path: Path) -> None:
    assert len(check_folder(adapter(tmp_path / "m@1"), 16).sha256) == 64


@pytest.mark.parametrize(
    ("config", "same"),
    [
        ({"lora_alpha": 8}, True),  # PEFT's own value for what is left out
        (
            {"use_rslora": False, "target_modules": ["q_proj"], "lora_dropout": 0.1, "base_model_name_or_path": "x"},
            True,
        ),
        ({"lora_alpha": 16, "alpha_pattern": {"q_proj": 8}}, True),  # said otherwise
        ({"r": 16, "rank_pattern": {"q_proj": 8}}, True),
        ({"lora_alpha": 16}, False),
        ({"use_rslora": True}, False),
        ({"alpha_pattern": {"q_proj": 4}}, False),
        ({"alpha_pattern": {"v_proj": 4}}, True),  # which has no weights here
    ],
)
def test_the_same_weights_at_another_scale_are_another_policy(tmp_path: Path, config: dict, same: bool) -> None:
    one, other = check_folder(adapter(tmp_path / "m@1"), 16), check_folder(adapter(tmp_path / "m@2", **config), 16)
    assert one.sha256 == other.sha256
    assert (one.scales_sha256 == other.scales_sha256) is same


def test_an_expression_of_modules_as_other_trainers_write_it_is_taken(tmp_path: Path) -> None:
    vision = r"(?:.*?(?:text|language).*?(?:self_attn|mlp).*?(?:q_proj|v_proj).*?)"
    modules = rf"{vision}|(?:\bmodel\.layers\.[\d]{{1,}}\.(?:self_attn)\.(?:(?:q_proj)))"
    assert check_folder(adapter(tmp_path / "m@1", target_modules=modules), 16).sha256


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"r": 64}, "rank 64"),
        ({"rank_pattern": {"(q|k)*_proj": 8}}, "rank_pattern, .*in which a group repeats: write the ends"),
        ({"target_modules": "(q+)+_proj"}, "target_modules, .*in which a group repeats, .*: write the modules' names"),
        ({"exclude_modules": "(?:q|k){1,9}"}, "exclude_modules, .*in which a group repeats"),
        ({"alpha_pattern": {r".*\.x.*\.y.*": 8}}, "alpha_pattern, .*more than 2 parts that repeat"),
        ({"alpha_pattern": {"x?y?z?q_proj": 8}}, "more than 2 parts that repeat"),
        ({"alpha_pattern": {"(a|b)(c|d)(e|f)(g|h)(i|j)": 8}}, "or 4 that can be chosen"),
        ({"rank_pattern": {"(?=q)q_proj": 8}}, "looks around or back"),
        ({"rank_pattern": {r"(q)_\1": 8}}, "looks around or back"),
        ({"rank_pattern": {"q" * 257: 8}}, "257 characters"),
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias"),
        ({"r": "eight"}, "rank"),
        ({"lora_alpha": float("nan")}, "lora_alpha nan"),
        ({"lora_alpha": float("inf")}, "lora_alpha inf"),
        ({"lora_alpha": 1e30}, "lora_alpha 1e[+]30"),
        ({"lora_alpha": "16"}, "lora_alpha '16'"),
        ({"lora_alpha": 16, "alpha_pattern": {"q_proj": float("nan")}}, "lora_alpha nan"),
        ({"alpha_pattern": [1e30]}, "alpha_pattern .* is no table"),
    ],
)
def test_what_the_engine_does_not_take(tmp_path: Path, config: dict[str, object], says: str) -> None:
    with pytest.raises(BadAdapter, match=says):
        check_folder(adapter(tmp_path / "m@1", **config), 16)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [WEIGHTS_FILE_NAME, "tokenizer.json"])
def test_files_that_lie_elsewhere(tmp_path: Path, name: str) -> None:
    elsewhere, folder = adapter(tmp_path / "other"), adapter(tmp_path / "m@1")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(elsewhere / WEIGHTS_FILE_NAME)
    with pytest.raises(BadAdapter, match="link out of the folder"):
        check_folder(folder, 16)


def test_broken_files(tmp_path: Path) -> None:
    nan = adapter(tmp_path / "m@1", {NAME.format("A"): np.full((8, 32), np.nan, np.float32)})
    with pytest.raises(BadAdapter, match="NaN"):
        check_folder(nan, 16)
    cut = adapter(tmp_path / "m@2")
    deep = adapter(tmp_path / "m@3")
    (deep / "adapter_config.json").write_text("[" * 100_000)
    with pytest.raises(BadAdapter, match="cannot be read"):
        check_folder(deep, 16)
    file = cut / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(BadAdapter, match="cut off"):
        check_folder(cut, 16)
    file.write_bytes(b"\x00garbage" * 30)
    with pytest.raises(BadAdapter, match="header"):
        check_folder(cut, 16)
    file.unlink()
    with pytest.raises(BadAdapter, match="missing"):
        check_folder(cut, 16)


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        ((3, 32), (64, 5), "ranks differ"),
        ((8, 8, 8), (64, 8), "ranks differ"),
        ((8, 32), None, "has no lora_B"),
        (None, (64, 8), "has no lora_A"),
    ],
)
def test_halves_that_do_not_fit_each_other(tmp_path: Path, a: tuple[int], b: tuple[int], says: str) -> None:
    halves = {NAME.format(side): np.ones(shape, np.float32) for side, shape in (("A", a), ("B", b)) if shape}
    with pytest.raises(BadAdapter, match=says):
        check_folder(adapter(tmp_path / "m@1", halves), 16)


def test_shapes_of_another_model_are_refused(tmp_path: Path) -> None:
    base = {"model.layers.0.self_attn.q_proj": [64, 32]}
    check_shapes({NAME.format("A"): {"shape": [8, 32]}, NAME.format("B"): {"shape": [64, 8]}}, base)
    check_shapes({"base_model.model.other.lora_A.weight": {"shape": [8, 5]}}, base)
    for side, shape in (("A", [8, 31]), ("B", [63, 8]), ("A", [8])):
        with pytest.raises(BadAdapter, match="base model's layer has"):
            check_shapes({NAME.format(side): {"shape": shape}}, base)
    save_file({"model.layers.0.self_attn.q_proj.weight": np.ones((64, 32), np.float32)}, tmp_path / "model.safetensors")
    assert base_shapes(str(tmp_path)) == base
    assert base_shapes("owner/of-a-hub") == base_shapes(None) == {}


@pytest.mark.parametrize("name", ["m", "m@0", "m@01", "@1", "m@x", "../m@1"])
def test_names(name: str) -> None:
    with pytest.raises(BadAdapter):
        split_name(name)
    assert split_name("my-model@12") == ("my-model", 12)


def test_weights_are_looked_at_to_their_last_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces; and a file that somebody cuts off meanwhile is refused."""
    monkeypatch.setattr(files, "_PIECE", 64)
    path = tmp_path / WEIGHTS_FILE_NAME
    for wrong in (0, 31, 32, 999, None):
        values = np.ones(1000, np.float16)
        if wrong is not None:
            values[wrong] = np.inf
        save_file({"a": values, "b": np.ones(3, np.int32), "c": np.ones(0, np.float32)}, path)
        tensors = safetensors_header(path)
        if wrong is None:
            check_numbers(path, tensors)
            continue
        with pytest.raises(BadAdapter, match="infinity"):
            check_numbers(path, tensors)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 500)
    with pytest.raises(BadAdapter, match="cut off"):
        check_numbers(path, tensors)


def header(folder: Path, text: str) -> Path:
    """An adapter whose weights file begins with this header."""
    file = adapter(folder) / WEIGHTS_FILE_NAME
    raw = text.encode()
    file.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(16))
    return folder


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ([2] * 9, "9 axes"),
        ([2] * 5_000, "5000 axes"),
        ([10**18], "19 digits"),
        ([10**4_000] * 2_000, "4001 digits"),
        ([True, 4], "shape"),
        ([-2, -2], "shape"),
        ([2.0, 2], "shape"),
        (["2", 2], "shape"),
    ],
)
def test_numbers_of_a_header_are_bounded_before_they_are_multiplied(tmp_path: Path, shape: list, says: str) -> None:
    entry = {"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, 16]}}
    with pytest.raises(BadAdapter, match=says) as e:
        check_folder(header(tmp_path / "m@1", json.dumps(entry)), 16)
    assert len(str(e.value)) < 400


def test_a_long_header_and_a_long_configuration_are_not_read(tmp_path: Path) -> None:
    padded = '{"__metadata__": {"a": "' + "x" * files.HEADER_BYTES + '"}}'
    with pytest.raises(BadAdapter, match="header has .* bytes, at most"):
        check_folder(header(tmp_path / "m@1", padded), 16)
    folder = adapter(tmp_path / "m@2", padding="x" * CONFIG_BYTES)
    with pytest.raises(BadAdapter, match="adapter_config.json has .* bytes, at most"):
        check_folder(folder, 16)
    with pytest.raises(BadAdapter, match="4001 digits"):
        check_folder(adapter(tmp_path / "m@3", r=8, other=10**4_000), 16)


def test_expressions_that_adapters_have_are_read(tmp_path: Path) -> None:
    named = {
        r".*\.self_attn\..*": 8,
        r"layers\.(0|1|2)\.mlp\.(?:up|down)_proj": 4,
        r"experts\.\d+\.x[*+(]": 4,
        "^lm_head": 4,
    }
    assert check_folder(adapter(tmp_path / "m@1", rank_pattern=named), 16)


def test_matching_ends_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MATCHING_TIMEOUT_S", -1.0)
    with pytest.raises(BadAdapter, match="takes more than"):
        check_folder(adapter(tmp_path / "m@1"), 16)
