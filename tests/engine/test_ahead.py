"""Kernels are compiled ahead in forks that harm nothing, and only where there is something to gain."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from slipstream_vllm import ahead
from slipstream_vllm.versions import resolve

CONFIG = SimpleNamespace(lora_config=object(), compilation_config=SimpleNamespace(mode=0))


def finish(work, caplog: pytest.LogCaptureFixture) -> str:
    """What the log says of it in the end."""
    caplog.set_level("DEBUG", logger="vllm.slipstream")
    thread = ahead.start(work)
    thread.join(30)
    assert not thread.is_alive()
    return caplog.messages[-1]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What would be forked, on a machine with a GPU and cores."""
    works: list[object] = []
    monkeypatch.setattr(ahead, "_begun", [])
    monkeypatch.setattr(ahead, "start", works.append)
    monkeypatch.setattr(ahead, "cores", lambda: 16)
    monkeypatch.setattr(ahead, "capability", lambda: 90)
    return works


def test_a_fork_does_it_and_leaves_no_zombie(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def work() -> int:
        (tmp_path / "pid").write_text(str(os.getpid()))
        return 7

    assert "compiled 7 kernels ahead" in finish(work, caplog)
    child = int((tmp_path / "pid").read_text())
    assert child != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_fork_that_fails_or_hangs_ends_in_silence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails() -> int:
        os.write(2, b"noise")
        os.system("echo noise")  # noqa: S605, S607 - as the assembler would
        raise SystemExit("noise")

    def hangs() -> int:
        time.sleep(60)
        return 1

    monkeypatch.setattr(ahead, "FORK_TIMEOUT_S", 1)
    began = time.monotonic()
    for work in (fails, hangs):
        assert "compiled not all kernels ahead" in finish(work, caplog)
    assert time.monotonic() - began < 15
    assert capfd.readouterr() == ("", "")


def test_a_fork_keeps_no_socket_and_no_pipe(caplog: pytest.LogCaptureFixture) -> None:
    def kept() -> int:
        kinds = [os.stat(path).st_mode for path in Path("/proc/self/fd").iterdir() if path.exists()]
        return sum(stat.S_ISSOCK(kind) or stat.S_ISFIFO(kind) for kind in kinds)

    inward, outward = os.pipe()
    with socket.create_server(("127.0.0.1", 0)):
        assert kept() >= 3
        assert "compiled 0 kernels ahead" in finish(kept, caplog)
    os.close(inward)
    os.close(outward)


def test_a_fork_has_no_handlers_of_an_event_loop(caplog: pytest.LogCaptureFixture) -> None:
    def kept() -> int:
        return (signal.getsignal(signal.SIGCHLD) is not signal.SIG_DFL) + (signal.set_wakeup_fd(-1) != -1)

    inward, outward = os.pipe()
    os.set_blocking(outward, False)
    before, known = signal.signal(signal.SIGCHLD, lambda *_: None), signal.set_wakeup_fd(outward)
    try:
        assert "compiled 0 kernels ahead" in finish(kept, caplog)
    finally:
        signal.set_wakeup_fd(known)
        signal.signal(signal.SIGCHLD, before)
        os.close(inward)
        os.close(outward)


def test_each_kernel_has_a_fork_of_its_own_and_they_wait_for_a_core(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def kernel() -> int:
        (mine := tmp_path / str(os.getpid())).touch()
        if len(list(tmp_path.iterdir())) > 2:
            (tmp_path.parent / "crowd").touch()
        time.sleep(0.1)
        mine.unlink()
        return 0

    works = [kernel, lambda: 1 // 0, kernel, kernel, lambda: os.kill(os.getpid(), signal.SIGKILL) or 0]
    assert "compiled 3 kernels ahead" in finish(lambda: ahead.compile_all(works, 2), caplog)
    assert not (tmp_path.parent / "crowd").exists()


def test_once_for_a_start_with_adapters_and_cores(started: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    ahead.begin(SimpleNamespace(lora_config=None))
    monkeypatch.setattr(ahead, "cores", lambda: 2)
    ahead.begin(CONFIG)
    monkeypatch.setattr(ahead, "cores", lambda: 3)
    monkeypatch.setattr(ahead, "capability", lambda: None)
    ahead.begin(CONFIG)
    assert started == []
    monkeypatch.setattr(ahead, "capability", lambda: 90)
    ahead.begin(CONFIG)
    ahead.begin(CONFIG)
    assert len(started) == 1


def test_torch_does_not_move_the_cache_away(
    started: list[object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ahead, "resolve", lambda _: str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", "mine")
    compiled = SimpleNamespace(lora_config=object(), compilation_config=SimpleNamespace(mode=3))
    ahead.begin(compiled)
    assert os.environ["TRITON_CACHE_DIR"] == "mine"
    monkeypatch.delenv("TRITON_CACHE_DIR")
    for config, found in ((CONFIG, None), (compiled, str(tmp_path / "triton"))):
        ahead._begun.clear()
        ahead.begin(config)
        assert os.environ.get("TRITON_CACHE_DIR") == found


def test_only_on_a_gpu_that_this_process_has_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    platforms, torch = pytest.importorskip("vllm.platforms"), pytest.importorskip("torch")
    if platforms.current_platform.is_cpu():
        assert ahead.capability() is None
    found = SimpleNamespace(to_int=lambda: 90)
    gpu = SimpleNamespace(is_cuda=lambda: True, get_device_capability=lambda: found)
    monkeypatch.setattr(platforms, "current_platform", gpu)
    monkeypatch.setattr(ahead, "resolve", lambda _: SimpleNamespace)
    assert ahead.capability() == 90
    monkeypatch.setattr(ahead, "resolve", lambda _: str)  # a platform that would use CUDA to answer
    assert ahead.capability() is None
    monkeypatch.setattr(ahead, "resolve", lambda _: SimpleNamespace)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert ahead.capability() is None


def test_vllm_gets_its_configuration_whatever_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Arguments:
        def create_engine_config(self, usage: str, *, headless: bool) -> tuple[str, bool]:
            return usage, headless

    asked: list[object] = []

    def begin(config: object) -> None:
        asked.append(config)
        raise RuntimeError

    monkeypatch.setattr(ahead, "resolve", lambda _: Arguments)
    monkeypatch.setattr(ahead, "begin", begin)
    ahead.install()
    assert Arguments().create_engine_config("serve", headless=True) == ("serve", True)
    assert asked == [("serve", True)]


def test_a_recipe_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What runs in the fork, with nothing that it needs."""
    works: list = []
    monkeypatch.setattr(ahead, "_begun", [])
    monkeypatch.setattr(ahead, "cores", lambda: 4)
    monkeypatch.setattr(ahead, "capability", lambda: 90)
    monkeypatch.setattr(ahead, "start", works.append)
    monkeypatch.setattr(os, "nice", lambda _: None)
    monkeypatch.setattr(ahead, "resolve", lambda _: SimpleNamespace())
    monkeypatch.setattr(ahead, "of_adapters", lambda _: 1 / 0)
    monkeypatch.setattr(ahead, "of_sampler", lambda _: ["a recipe"])
    monkeypatch.setattr(ahead, "planned", lambda recipes, target: [recipes, target])
    monkeypatch.setattr(ahead, "compile_all", lambda works, at_once: (works, at_once))
    ahead.begin(CONFIG)
    assert works[0]() == ([["a recipe"], 90], 2)


class Small:
    """A model's configuration, as vLLM gives it."""

    hf_text_config = SimpleNamespace(intermediate_size=1536)
    is_moe = use_mla = use_fp64_gumbel = False
    logprobs_mode = "raw_logprobs"
    dtype: object = None
    get_hidden_size = staticmethod(lambda: 576)
    get_head_size = staticmethod(lambda: 64)
    get_num_attention_heads = staticmethod(lambda _: 9)
    get_num_kv_heads = staticmethod(lambda _: 3)
    get_vocab_size = staticmethod(lambda: 49152)


def test_top_k_is_left_to_a_vllm_that_compiles_it_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    Small.dtype = pytest.importorskip("torch").bfloat16
    config = SimpleNamespace(
        model_config=Small, scheduler_config=SimpleNamespace(max_num_seqs=256, max_num_batched_tokens=64)
    )
    shapes: list[object] = []
    cut = SimpleNamespace(apply_top_k_top_p_triton=lambda logits, *_: shapes.append(tuple(logits.shape)))
    monkeypatch.setitem(sys.modules, "vllm.v1.sample.ops.topk_topp_triton", cut)
    for found in (object(), None):
        monkeypatch.setattr(importlib.util, "find_spec", lambda _, found=found: found)
        ahead.of_sampler(config)[0]()
    assert shapes == [(32, 49152)]


def compile_and_launch(cache: Path) -> None:
    """Run in a process of its own. Its vLLM must take Triton without a GPU, which the CPU build does not."""
    import torch

    backends, function = resolve("triton.backends:backends"), resolve("triton.runtime.jit:JITFunction")
    backends["cpu"] = SimpleNamespace(driver=None)
    importlib.import_module("vllm.triton_utils")
    del backends["cpu"]
    operations = "vllm.lora.ops.triton_ops"
    shrink, expand, utils, gumbel = (
        importlib.import_module(name)
        for name in (
            f"{operations}.lora_shrink_op",
            f"{operations}.lora_expand_op",
            f"{operations}.utils",
            "vllm.v1.worker.gpu.sample.gumbel",
        )
    )
    for kernel in (shrink._lora_shrink_kernel, expand._lora_expand_kernel):
        for parameter in kernel.params:
            parameter.do_not_specialize |= parameter.name == "M"
    copied = utils.async_tensor_h2d
    Small.dtype = torch.bfloat16
    config = SimpleNamespace(
        model_config=Small,
        lora_config=SimpleNamespace(
            lora_dtype=torch.bfloat16,
            max_lora_rank=16,
            max_loras=4,
            fully_sharded_loras=False,
            specialize_active_lora=False,
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        scheduler_config=SimpleNamespace(max_num_seqs=256, max_num_batched_tokens=8192),
    )
    works = ahead.planned(ahead.of_adapters(config) + ahead.of_sampler(config), 90)
    count = len(works)
    assert count >= 14
    assert ahead.compile_all(works, 2) == count == len(list(cache.iterdir()))

    vars(utils)["async_tensor_h2d"] = copied
    run = function.run
    function.run = lambda self, *args, warmup, **named: run(self, *args, warmup=True, **named)

    def launch(tokens: int, rank: int, width: int, *outs: int) -> None:
        utils._LORA_A_PTR_DICT.clear()
        utils._LORA_B_PTR_DICT.clear()
        ints = [torch.zeros(size, dtype=torch.int32) for size in (tokens, tokens, 5, 6, 5)]
        flags = (torch.zeros(1, dtype=torch.bool), torch.tensor([3]))
        a = [torch.zeros(4, 1, rank, width, dtype=torch.bfloat16) for _ in outs]
        b = [torch.zeros(4, 1, out, rank, dtype=torch.bfloat16) for out in outs]
        middle = torch.zeros(len(outs), tokens, rank)
        x, y = (torch.zeros(tokens, size, dtype=torch.bfloat16) for size in (width, sum(outs)))
        if width == rank:
            middle = x.unsqueeze(0)
        else:
            shrink._lora_shrink(x, a, middle, *ints, *flags, 1.0)
        expand._lora_expand(middle, b, y, *ints, *flags, 0, True)

    layers = ((576, 576, 192, 192), (576, 576), (576, 1536, 1536), (1536, 576), (16, 576))
    for tokens in (8192, 130, 37, 2, 1):
        for layer in layers:
            launch(tokens, 16, *layer)
    launch(77, 16, 576, 49152)
    more = {"is_drafting": False} if "is_drafting" in inspect.signature(gumbel.gumbel_sample).parameters else {}
    ints, longs = torch.zeros(9, dtype=torch.int32), torch.zeros(9, dtype=torch.int64)
    gumbel.gumbel_sample(torch.zeros(9, 49152), ints, torch.zeros(9), longs, longs, False, **more)
    assert len(list(cache.iterdir())) == count, "the engine compiles again"
    launch(37, 8, 576, 576)
    assert len(list(cache.iterdir())) > count, "this test sees nothing"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton, though no GPU")
def test_the_engine_compiles_nothing_again(tmp_path: Path) -> None:
    """Launches with tensors that have memory, and with other numbers of tokens, find what was compiled ahead."""
    pytest.importorskip("vllm")
    paths = os.pathsep.join([str(Path(ahead.__file__).parents[1]), *filter(None, sys.path)])
    env = os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, __file__, tmp_path], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    compile_and_launch(Path(sys.argv[1]))
