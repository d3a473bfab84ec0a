from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.sdk.server import Server

from slipstream.client import Client
from slipstream.config import Config, load_config
from slipstream.contract import Adapter
from slipstream.errors import SlipstreamError, StartError
from slipstream.push import card, push


def adapter(name: str = "inbox@3", **more: object) -> dict[str, object]:
    model, _, version = name.partition("@")
    return {
        "name": name,
        "model": model,
        "version": int(version),
        "state": "live",
        "created": 1.0,
        "path": name,
        **more,
    }


@pytest.fixture
def config(tmp_path: Path) -> Config:
    folder = tmp_path / "adapters" / "inbox@3"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    return load_config(env={}, flags=[f"adapters.dir={tmp_path}/adapters", "engine.model=Qwen/Qwen3-4B"])


def test_the_card_says_what_it_was_trained_on() -> None:
    text = card(
        Adapter(**adapter(step=7, parent="inbox@2", batches=["b1", "b2"], numbers={"p": 0.01})), "Qwen/Qwen3-4B"
    )
    assert text.startswith("---\nlibrary_name: peft\nbase_model: Qwen/Qwen3-4B\n---\n\n# inbox@3\n")
    for said in (
        "- step: 7",
        "- parent: inbox@2",
        "- batches: b1, b2",
        "- state when it was pushed: live",
        '{"p": 0.01}',
    ):
        assert said in text
    first = card(Adapter(**adapter("inbox@1")), "base")
    assert "- parent: base" in first
    assert "- batches: unknown" in first


@pytest.mark.parametrize("version", ["3", "inbox@3"])
def test_to_a_folder(server: Server, tmp_path: Path, config: Config, version: str) -> None:
    server.on("GET", "/adapters", {"adapters": [adapter("inbox@2"), adapter()], "live": {}})
    with Client(server.url) as client:
        where = Path(push(client, config, version, str(tmp_path / "out" / "deep")))
        assert where == tmp_path / "out/deep/inbox@3"
        assert (where / "adapter_model.safetensors").read_bytes() == b"weights"
        assert "# inbox@3" in (where / "README.md").read_text()
        assert not (config.adapters_dir / "inbox@3" / "README.md").exists()
        with pytest.raises(SlipstreamError, match="is there already; versions are immutable"):
            push(client, config, version, str(tmp_path / "out" / "deep"))


def test_what_cannot_be_pushed(server: Server, tmp_path: Path, config: Config) -> None:
    server.on("GET", "/adapters", {"adapters": [adapter("inbox@2"), adapter(), adapter("other@3")], "live": {}})
    with Client(server.url) as client:
        with pytest.raises(SlipstreamError, match="no adapter 9: `slipstream adapters` lists them"):
            push(client, config, "9", str(tmp_path))
        with pytest.raises(SlipstreamError, match=r"has no adapter: is adapters\.dir"):
            push(client, config, "2", str(tmp_path))
        with pytest.raises(SlipstreamError, match="3 is inbox@3 and other@3: give the full name"):
            push(client, config, "3", str(tmp_path))


def test_to_a_bucket(server: Server, tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    server.on("GET", "/adapters", {"adapters": [adapter()], "live": {}})
    tools = tmp_path / "bin"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    with Client(server.url) as client:
        with pytest.raises(StartError, match="the `aws` command is not installed"):
            push(client, config, "3", "s3://bucket/x")
        aws = tools / "aws"
        aws.write_text(
            f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n[ -e "$4/README.md" ] || exit 9\nexit ${{AWS_CODE:-0}}\n'
        )
        aws.chmod(0o755)
        assert push(client, config, "3", "s3://bucket/x") == "s3://bucket/x"
        asked = (tmp_path / "asked").read_text().split()
        assert (asked[:3], asked[-1]) == (["s3", "cp", "--recursive"], "s3://bucket/x")
        assert not os.path.exists(asked[3])
        monkeypatch.setenv("AWS_CODE", "1")
        with pytest.raises(SlipstreamError, match="ended with exit code 1"):
            push(client, config, "3", "s3://bucket/x")
