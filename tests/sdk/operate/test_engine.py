"""vLLM's command line: what is asked of it, and what it refuses before anything is started."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest
from tests.support import MODEL

from slipstream.config import Config, load_config
from slipstream.engines.vllm.command import engine_command
from slipstream.errors import StartError
from slipstream.shared.hub import model_config
from slipstream.shared.machine import free_port, has_gpu


@pytest.fixture(autouse=True)
def _online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def config(*flags: str) -> Config:
    return load_config(env={}, flags=flags)


def after(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def folder(tmp_path: Path, name: str, described: object, template: str = "") -> Path:
    path = tmp_path / name
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(described))
    if template:
        (path / "chat_template.jinja").write_text(template)
    return path


def test_on_the_cpu() -> None:
    command = engine_command(
        config(f"engine.model={MODEL}", "engine.name=inbox", "engine.port=1234", "engine.max_model_len=512", 'engine.args=["--x"]'), gpu=False
    )  # fmt: skip
    argv = command.argv
    assert argv[:3] == [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    assert after(argv, "--model") == str(MODEL)
    assert after(argv, "--served-model-name") == "inbox"
    assert (after(argv, "--host"), after(argv, "--port")) == ("127.0.0.1", "1234")
    assert after(argv, "--max-model-len") == "512"
    assert after(argv, "--max-lora-rank") == "16"
    assert after(argv, "--generation-config") == "vllm"
    assert after(argv, "--logprobs-mode") == "processed_logprobs"
    assert {"--enable-lora", "--enforce-eager", "--enable-auto-tool-choice"} <= set(argv)
    assert argv[-1] == "--x"
    assert "--gpu-memory-utilization" not in argv
    assert command.url == "http://127.0.0.1:1234"
    assert command.env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    assert command.env["HF_HUB_OFFLINE"] == "1"
    assert "VLLM_CPU_KVCACHE_SPACE" in command.env
    assert command.says == ["tool parser: hermes", "reasoning parser: none", "no GPU: vLLM on the CPU"]


def test_host_memory_has_room_for_the_versions_of_all_tenants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = "\n".join(f"[tenants.t{n}]" for n in range(2)), "\n".join(f"[tenants.t{n}]" for n in range(64))

    def started(tenants: str, gigabytes: float, *flags: str) -> tuple[str, str]:
        monkeypatch.setattr("slipstream.engines.vllm.command.physical_memory", lambda: int(gigabytes * 2**30))
        (path := tmp_path / "slipstream.toml").write_text(f"data_dir = '{tmp_path}'\n{tenants}")
        found = engine_command(load_config(path, env={}, flags=(f"engine.model={model}", *flags)), gpu=False)
        return after(found.argv, "--max-cpu-loras"), next((s for s in found.says if "adapters in memory" in s), "")

    described = model_config(str(MODEL)) | {"num_hidden_layers": 28, "hidden_size": 3584, "intermediate_size": 18944}
    model = folder(tmp_path, "7b", described)
    assert started("", 64) == ("32", ""), "four for each slot, as before"
    assert started(few, 64) == ("32", ""), "never fewer"
    assert started(many, 1024) == ("195", ""), "three for each tenant, and for the proxy's own"
    kept, said = started(many, 64)
    assert kept == "49", "of 172 MB each, in an eighth of the memory"
    assert said.startswith("vLLM keeps 49 adapters in memory, and tenants may use 195"), said
    kept, said = started(many, 4, "engine.max_loras=4")
    assert (kept, "keeps 16 adapters" in said) == ("16", True), "vLLM needs as many as slots at least"
    (tmp_path / "tenants.json").write_text(json.dumps({f"k{n}": "" for n in range(20)}))
    assert started("", 1024)[0] == "63", "those that have a key and no table"


@pytest.mark.parametrize(
    ("flags", "gpu", "dtype"),
    [
        ((), False, "float32"),
        (("trainer.dtype=bfloat16",), False, "bfloat16"),
        (("engine.dtype=bfloat16",), False, "bfloat16"),
        (("trainer.enabled=false",), False, "auto"),
        ((), True, "auto"),
    ],
)
def test_engine_and_trainer_have_one_number_format_on_a_cpu(flags: tuple[str, ...], gpu: bool, dtype: str) -> None:
    assert after(engine_command(config(f"engine.model={MODEL}", *flags), gpu=gpu).argv, "--dtype") == dtype


def test_linear_attention_gets_bf16_on_a_cpu(tmp_path: Path) -> None:
    """In fp32 vLLM's CPU build ends at the first call."""
    for described in ({"linear_num_value_heads": 2}, {"text_config": {"linear_num_value_heads": 2}}):
        (tmp_path / "config.json").write_text(json.dumps(described))
        command = engine_command(config(f"engine.model={tmp_path}"), gpu=False)
        assert after(command.argv, "--dtype") == "bfloat16"
        assert command.says[-1].startswith("its linear attention computes in bfloat16 alone")
        alone = engine_command(config(f"engine.model={tmp_path}", "trainer.enabled=false"), gpu=False)
        assert after(alone.argv, "--dtype") == "bfloat16"
        chosen = engine_command(config(f"engine.model={tmp_path}", "engine.dtype=float32"), gpu=False)
        assert after(chosen.argv, "--dtype") == "float32" and "linear attention" not in chosen.says[-1]
        assert after(engine_command(config(f"engine.model={tmp_path}"), gpu=True).argv, "--dtype") == "auto"


def test_a_judge_on_the_same_engine_waits_for_the_agents() -> None:
    model = f"engine.model={MODEL}"
    assert after(engine_command(config(model, "judge.model=self"), gpu=False).argv, "--scheduling-policy") == "priority"
    assert "--scheduling-policy" not in engine_command(config(model, "judge.model=ollama/x"), gpu=False).argv


def test_on_a_gpu_the_memory_is_split_with_the_trainer() -> None:
    beside = engine_command(config("engine.model=Qwen/Qwen3-4B"), gpu=True)
    assert after(beside.argv, "--gpu-memory-utilization") == "0.45"
    assert beside.says[-1] == "GPU memory for vLLM: 45%, the rest for the trainer"
    assert "--enforce-eager" not in beside.argv
    assert "VLLM_CPU_KVCACHE_SPACE" not in beside.env
    assert "HF_HUB_OFFLINE" not in beside.env
    alone = engine_command(config("engine.model=Qwen/Qwen3-4B", "trainer.enabled=false"), gpu=True)
    assert after(alone.argv, "--gpu-memory-utilization") == "0.9"
    assert alone.says[-1] == "GPU memory for vLLM: 90%"
    chosen = engine_command(config("engine.model=Qwen/Qwen3-4B", "engine.gpu_memory=0.3"), gpu=True)
    assert after(chosen.argv, "--gpu-memory-utilization") == "0.3"


def test_one_gpu_for_both_takes_turns() -> None:
    shared = ("engine.model=Qwen/Qwen3-4B", "engine.share=true")
    for more in ((), ("trainer.enabled=false",)):  # the trainer is started beside it, as several processes are
        command = engine_command(config(*shared, *more), gpu=True)
        assert "--enable-sleep-mode" in command.argv
        assert command.env["VLLM_SERVER_DEV_MODE"] == "1"
        assert after(command.argv, "--gpu-memory-utilization") == "0.85"


def test_the_key_is_not_on_the_command_line() -> None:
    command = engine_command(config("engine.model=Qwen/Qwen3-4B", "engine.api_key=sk-1"), gpu=False)
    assert "sk-1" not in " ".join(command.argv)
    assert command.env["VLLM_API_KEY"] == "sk-1"


@pytest.mark.parametrize("name", ["/no/such/folder", "./none", "~/none-such-model", "none", "a/b/c"])
def test_no_such_model(name: str) -> None:
    with pytest.raises(StartError) as e:
        engine_command(config(f"engine.model={name}"), gpu=False)
    assert str(e.value) == f"--model {name}: no such folder; give a folder or a hub name like Qwen/Qwen3-4B"


def test_no_hub_is_asked_when_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert model_config("Qwen/Qwen3-4B") == {}
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(StartError, match="HF_HUB_OFFLINE=1, so no hub is asked"):
        model_config("Qwen/Qwen3-4B")


def test_folders_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"the folder has no config\.json, so it is no model"):
        engine_command(config(f"engine.model={tmp_path}"), gpu=False)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(StartError, match=r"its config\.json can't be read"):
        engine_command(config(f"engine.model={tmp_path}"), gpu=False)
    with pytest.raises(StartError, match="no model: give --model"):
        engine_command(config(), gpu=False)


def test_a_folder_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = folder(tmp_path, "mine", {"model_type": "qwen3"})
    command = engine_command(config("engine.model=~/mine"), gpu=False)
    assert after(command.argv, "--model") == str(path)
    assert after(command.argv, "--served-model-name") == "mine"
    assert command.env["HF_HUB_OFFLINE"] == "1"


def test_free_port_can_be_bound() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", free_port()))


def test_an_empty_list_of_devices_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not has_gpu()


@pytest.mark.parametrize(
    ("flags", "gpu", "cores", "expected"),
    [
        ((), True, 16, 4),
        ((), True, 8, 2),
        ((), True, 2, 1),
        ((), True, 128, 4),
        ((), False, 64, 1),
        (("engine.share=true",), True, 64, 1),
        (("engine.api_servers=3",), False, 2, 3),
    ],
)
def test_how_many_api_servers(
    flags: tuple[str, ...], gpu: bool, cores: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    command = engine_command(config(f"engine.model={MODEL}", *flags), gpu=gpu)
    several = expected > 1
    assert ("slipstream_vllm.serve" in command.argv) is several
    assert ("VLLM_ALLOW_RUNTIME_LORA_UPDATING" in command.env) is not several
    assert command.env.get("SLIPSTREAM_ENGINE_ADAPTERS") == ("1" if several else None)
    assert (after(command.argv, "--api-server-count") if several else "1") == str(expected)


SMALL = {"hidden_size": 576, "architectures": ["LlamaForCausalLM"]}
HYBRID = {"hidden_size": 1024, "architectures": ["FalconH1ForCausalLM"]}
WHOLE, PARTS = "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"


@pytest.mark.parametrize(
    ("described", "flags", "graphs"),
    [
        (SMALL, (), PARTS),
        ({"text_config": {"hidden_size": 1024}, "architectures": ["LlavaForConditionalGeneration"]}, (), WHOLE),
        (HYBRID, (), WHOLE),
        ({"hidden_size": 576}, (), WHOLE),
        (SMALL | {"hidden_size": 2048}, (), None),
        ({}, (), None),
        (SMALL, ('engine.args=["-O2"]',), None),
        (SMALL, ('engine.args=["--optimization-level", "2"]',), None),
        (SMALL, ('engine.args=["--compilation_config", "{}"]',), None),
        (SMALL, ('engine.args=["--max-cudagraph-capture-size", "8"]',), None),
    ],
)
def test_a_small_model_starts_without_vllms_compiler(
    tmp_path: Path, described: dict[str, object], flags: tuple[str, ...], graphs: str | None
) -> None:
    """Its steps are recorded whole where they only decode, and in parts where its class was tried."""
    model = folder(tmp_path, "m", described | {"model_type": "llama"})
    command = engine_command(config(f"engine.model={model}", *flags), gpu=True)
    assert ("--compilation-config" in command.argv) == (graphs is not None)
    assert (command.env.get("VLLM_USE_BREAKABLE_CUDAGRAPH") == "1") == (graphs == PARTS)
    if graphs:
        assert json.loads(after(command.argv, "--compilation-config"))["cudagraph_mode"] == graphs
