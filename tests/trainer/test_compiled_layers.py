"""What the compiler makes of a layer is for a GPU; here: when it is asked, and what is computed meanwhile."""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.support.tiny import make_config, make_trainer

from slipstream_trainer.model.compute import (
    COMPILE_AFTER_S,
    COMPILED_LIST_FILE,
    LONG_ROW_TOKENS,
    MAX_COMPILED_VARIANTS,
    MOST_LENGTHS,
    PAYS_HERE,
    UNCOMPILED_ATTENTION,
    LayerCompiler,
    compile_layers,
)
from slipstream_trainer.model.memory import decoder_layers


class Layer(torch.nn.Module):
    """Says how it was compiled, without a compiler."""

    def compile(self, **how) -> None:
        self.how = how


class Compiler(LayerCompiler):
    """Another process than ours: it keeps its order, and ends with ``code``."""

    code = 0

    def command(self):
        write = f"open({str(self.folder / 'order.json')!r}, 'w').write(sys.stdin.read())"
        return [sys.executable, "-c", f"import sys; {write}; sys.exit({self.code})"]


@pytest.fixture
def make(tiny, tmp_path):
    config = make_config(tiny, tmp_path)
    base = make_trainer(config).learner.base
    base.set_attn_implementation("eager")

    def made() -> Compiler:
        return Compiler(base, decoder_layers(base), config, tmp_path / "trainer", beside=True)

    return made


def batch(*lengths: int, tokens: int | None = None) -> list[SimpleNamespace]:
    """``tokens``: of each but padding."""
    return [SimpleNamespace(computed=n, tokens=tokens or n, ids_RN=np.zeros((1, n))) for n in lengths]


def wait(compiler: LayerCompiler) -> None:
    end = time.monotonic() + 60
    while compiler.process is not None and time.monotonic() < end:
        time.sleep(0.02)
        compiler.look()


def test_each_layer_is_compiled_for_its_length() -> None:
    layers = [Layer(), Layer()]
    compile_layers(layers)
    assert [layer.how for layer in layers] == [{"dynamic": False}] * 2
    assert torch._dynamo.config.recompile_limit >= MAX_COMPILED_VARIANTS


def test_a_length_is_computed_uncompiled_until_another_process_has_compiled_it(make, tmp_path) -> None:
    compiler = make()
    assert compiler.switch(1, 1024) == UNCOMPILED_ATTENTION == compiler.base.config._attn_implementation
    assert all(layer._compiled_call_impl is None for layer in compiler.layers)
    compiler.note(batch(1024, 2048), COMPILE_AFTER_S)  # a third of it for the short one
    assert compiler.process is None
    compiler.note(batch(1024, 2048), COMPILE_AFTER_S)
    assert compiler.width == 2048
    assert compiler.switch(1, 2048) == UNCOMPILED_ATTENTION
    wait(compiler)
    order = json.loads((compiler.folder / "order.json").read_text())
    assert order["width"] == 2048
    assert order["config"]["engine"]["model"] == compiler.config.engine.model
    assert compiler.switch(1, 2048) == "eager" == compiler.base.config._attn_implementation
    assert all(layer._compiled_call_impl is not None for layer in compiler.layers)
    assert compiler.switch(1, 1024) == compiler.switch(2, 2048) == UNCOMPILED_ATTENTION

    again = make()  # the next start begins with it, before a step has come
    again.look()
    assert again.width == 2048
    wait(again)
    assert again.ready == {2048}


@pytest.mark.parametrize("how", ["exit code", "check"])
def test_what_cannot_be_compiled_stays_uncompiled(make, caplog, how: str) -> None:
    compiler = make()
    if how == "check":
        compiler.check = lambda width: width != 1024
    else:
        compiler.code = 3
    compiler.note(batch(1024), COMPILE_AFTER_S)
    wait(compiler)
    assert compiler.switch(1, 1024) == UNCOMPILED_ATTENTION
    assert (compiler.failed, compiler.ready) == ({1024}, set())
    assert how == "check" or "exit code 3" in caplog.text
    compiler.note(batch(1024), COMPILE_AFTER_S)
    assert compiler.process is None
    assert not (compiler.folder / COMPILED_LIST_FILE).exists()


def test_a_process_that_does_not_end_is_ended(make, monkeypatch) -> None:
    compiler = make()
    monkeypatch.setattr(compiler, "command", lambda: [sys.executable, "-c", "import time; time.sleep(600)"])
    monkeypatch.setattr("slipstream_trainer.model.compute.COMPILE_TIMEOUT_S", 0.0)
    compiler.note(batch(1024), COMPILE_AFTER_S)
    wait(compiler)
    assert (compiler.failed, compiler.process) == ({1024}, None)


def test_a_shorter_length_is_compiled_once_what_it_saves_has_paid(make) -> None:
    compiler = make()
    compiler.ready = {4096}
    compiler.note(batch(4096, tokens=3000), 3 * COMPILE_AFTER_S)
    assert compiler.process is None, "a quarter of it was padding"
    compiler.note(batch(4096, tokens=3900), 100 * COMPILE_AFTER_S)
    assert compiler.process is None, "no shorter one holds it"
    compiler.note(batch(4096, tokens=3500), 4 * COMPILE_AFTER_S)
    assert compiler.process is None, "an eighth"
    compiler.note(batch(4096, tokens=3000), 3 * COMPILE_AFTER_S)
    assert compiler.width == 3072
    wait(compiler)
    assert compiler.ready == {3072, 4096}
    assert set(compiler.filling) == {(3584, 4096)}
    compiler.note(batch(4096, tokens=3300), 100 * COMPILE_AFTER_S)
    assert compiler.width == 3584


def test_rows_of_several_lengths_share_the_one_that_saves_most(make) -> None:
    compiler = make()
    compiler.ready = {4096}
    for tokens in (2500, 2600, 2700):
        compiler.note(batch(4096, tokens=tokens), COMPILE_AFTER_S)
    assert compiler.process is None
    for tokens in (2500, 2600, 2700):
        compiler.note(batch(4096, tokens=tokens), COMPILE_AFTER_S / 2)
    assert compiler.width == 3072, "for all three, though 2560 would save more of one"


def test_a_long_row_is_compiled_at_once_for_its_mask_alone_would_fill_the_memory(make) -> None:
    compiler = make()
    assert compiler.switch(1, LONG_ROW_TOKENS) == UNCOMPILED_ATTENTION
    assert compiler.switch(1, 131_072) == "eager" == compiler.base.config._attn_implementation
    compiler.note(batch(131_072, tokens=120_000), 100 * COMPILE_AFTER_S)
    assert compiler.process is None
    compiler.note(batch(4096), COMPILE_AFTER_S)
    wait(compiler)
    assert json.loads((compiler.folder / COMPILED_LIST_FILE).read_text()) == [4096]
    (compiler.folder / COMPILED_LIST_FILE).write_text("[1024, 65536]")
    assert make()._known() == [1024]


def test_lengths_are_not_compiled_without_end(make) -> None:
    compiler = make()
    compiler.ready = set(range(4096, 4096 + MOST_LENGTHS * 512, 512))
    compiler.note(batch(4096, tokens=1100), 100 * COMPILE_AFTER_S)
    assert compiler.process is None


def test_several_processes_compile_what_pays_themselves(make) -> None:
    compiler = make()
    compiler.beside = False
    compiler.note(batch(1024, 3072), PAYS_HERE)
    assert compiler.switch(1, 3072) == UNCOMPILED_ATTENTION, "three quarters of it"
    compiler.note(batch(1024, 3072), PAYS_HERE)
    assert compiler.switch(1, 3072) == "eager" == compiler.base.config._attn_implementation
    assert compiler.switch(1, 1024) == UNCOMPILED_ATTENTION
    assert compiler.process is None


def test_where_one_attention_is_taken_every_length_that_comes_up_is_compiled(make) -> None:
    compiler = make()
    compiler.late = False
    assert compiler.switch(3, 77) == "eager"
    compiler.note(batch(1024), 10 * COMPILE_AFTER_S)
    assert compiler.process is None
