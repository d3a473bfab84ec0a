from __future__ import annotations

import pytest

from slipstream_vllm import versions

vllm = pytest.importorskip("vllm")


@pytest.mark.parametrize("part", list(versions.EXPECTED_FUNCTIONS))
def test_the_installed_vllm_is_known(part: str) -> None:
    assert versions.unsupported(part) is None


@pytest.mark.parametrize(("text", "expected"), [("0.25.1", (0, 25)), ("0.32.0+cpu", (0, 32)), ("dev", None)])
def test_versions_are_read(text: str, expected: object) -> None:
    assert versions.minor(text) == expected


@pytest.mark.parametrize("version", ["0.24.9", "0.33.0", "1.0", "dev"])
def test_an_unknown_vllm_turns_it_off(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "__version__", version)
    why = versions.unsupported()
    assert why is not None
    assert version in why


@pytest.mark.parametrize("path", ["vllm.nothing:x", "vllm.outputs:Nothing"])
def test_a_function_that_is_gone_turns_it_off(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(versions.API_FUNCTIONS, path, ("self",))
    assert path in (versions.unsupported() or "")


def test_a_function_with_other_parameters_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "vllm.entrypoints.serve.lora.api_router:attach_router"
    monkeypatch.setitem(versions.API_FUNCTIONS, path, ("app", "engine"))
    assert "takes ('app',)" in (versions.unsupported() or "")
