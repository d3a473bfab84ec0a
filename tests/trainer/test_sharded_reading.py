"""Each process of a sharded trainer reads its own rows: the loss is one process's, and none holds the base."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from tests.support import free_port, process, wait_for
from tests.support.families import make_family
from tests.support.tiny import apart, conversation, gradients, make_config, make_model, make_trainer
from torch import load as loaded

from slipstream_trainer.algorithm.advantage import assign
from slipstream_trainer.batch.layout import make_plan
from slipstream_trainer.model.policy import skeleton
from slipstream_trainer.model.shards import _mixed_rows

FAMILIES = {"tied": {}, "untied": {"tie_word_embeddings": False, "vocab_size": 67}}
"""Of Qwen3; 67 rows are no multiple of 2 or 4."""
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2}
"""Over four processes one would have none, so that each reads the whole."""
BIG = {
    "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64,
    "vocab_size": 8192, "tie_word_embeddings": False,
}  # fmt: skip

RANK = """
import json, sys, threading, torch
from pathlib import Path
from tests.support.tiny import conversation, gradients, make_config, make_trainer
from slipstream_trainer.algorithm.advantage import assign
from slipstream_trainer.batch.layout import make_plan
from slipstream_trainer.model.policy import load_policy
from slipstream_trainer.model.shards import even, is_sharded
from slipstream_trainer.run.process import leave

out, world = Path(sys.argv[1]), int(sys.argv[2])
for folder in sorted((out / "models").iterdir()):
    trainer = make_trainer(make_config(folder, out / "d", beta=0.05, sharding="fsdp2"))
    samples = conversation(3, groups=3, episodes=3)
    assign(samples, "std")
    work = trainer.start(even(make_plan(samples, layout="merged", micro=60), world))
    value = trainer.backward(work)
    torch.save((value, gradients(trainer)), out / f"{folder.name}-{trainer.rank}.pt")

# the reference is drawn for some micro-batches: every process computes as often as the others
trainer.config.trainer.beta_share = 0.15
passes, forward = [], trainer.forward
trainer.forward = lambda *given: (passes.append(seed), forward(*given))[1]
for seed in range(16):
    samples = conversation(seed, groups=3, episodes=3)
    assign(samples, "std")
    trainer.start(even(make_plan(samples, layout="merged", micro=60), world))
(out / f"passes-{trainer.rank}.json").write_text(json.dumps([passes.count(n) for n in range(16)]))


def taken():
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024  # pages of a file that lie in the machine's cache are nobody's


def look():
    while not done.wait(0.002):
        most.append(taken())


config = make_config(out / "big", out / "d", sharding="fsdp2")
most, done = [taken()], threading.Event()
looking = threading.Thread(target=look)
looking.start()
model, _ = load_policy(config)
assert is_sharded(model)
# as to a GPU: on a CPU the weights are the file itself
parts = [(p.data.to_local() if hasattr(p, "to_local") else p.data).clone() for p in model.parameters()]
done.set()
looking.join()
(out / f"memory-{trainer.rank}.json").write_text(json.dumps(max(most) - most[0]))
leave()
"""
ENV = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path]), "GLOO_SOCKET_IFNAME": "lo"}


def test_rows_that_are_made_of_others_are_not_read_in_shares(tiny, tmp_path, monkeypatch) -> None:
    from transformers import conversion_mapping, core_model_loading

    assert _mixed_rows(skeleton(str(tiny)), 4) is None
    experts = skeleton(str(make_family("qwen3_moe", tmp_path / "m", **EXPERTS)))
    assert [processes for processes in range(2, 9) if _mixed_rows(experts, processes)] == [4, 5, 7, 8]
    for mixing in (core_model_loading.Chunk(dim=0), core_model_loading.Concatenate(dim=0)):
        made = core_model_loading.WeightConverter(["qkv"], ["q", "k"], operations=[mixing])
        monkeypatch.setattr(conversion_mapping, "get_model_conversion_mapping", lambda _, made=made: [made])
        assert "keep rows otherwise" in str(_mixed_rows(skeleton(str(tiny)), 2))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("world", [2])
def test_the_loss_is_one_processs_and_none_reads_the_whole(world, tmp_path) -> None:
    for name, changes in FAMILIES.items():
        make_model(tmp_path / "models" / name, **changes)
    make_family("qwen3_moe", tmp_path / "models" / "experts", **EXPERTS)
    make_model(tmp_path / "big", **BIG)
    (tmp_path / "rank.py").write_text(RANK)
    argv = [
        sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={world}", "--master-addr=127.0.0.1", f"--master-port={free_port()}",
        str(tmp_path / "rank.py"), str(tmp_path), str(world),
    ]  # fmt: skip
    with process(argv, tmp_path / "log", ENV) as p:
        wait_for(lambda: p.poll() is not None, 800, said="all ranks have ended")
    assert p.returncode == 0, (tmp_path / "log").read_text()[-3000:]
    for folder in sorted((tmp_path / "models").iterdir()):
        trainer = make_trainer(make_config(folder, tmp_path / "one", beta=0.05))
        samples = conversation(3, groups=3, episodes=3)
        assign(samples, "std")
        value = trainer.backward(trainer.start(make_plan(samples, layout="merged", micro=60)))
        for rank in range(world):
            other, theirs = loaded(tmp_path / f"{folder.name}-{rank}.pt")
            assert other == pytest.approx(value, rel=1e-5, abs=1e-5)
            assert apart(theirs, gradients(trainer)) < 1e-5
    one, *others = ((tmp_path / f"passes-{rank}.json").read_text() for rank in range(world))
    assert all(one == other for other in others) and any(json.loads(one)) and not all(json.loads(one))
    base = sum(path.stat().st_size for path in (tmp_path / "big").glob("*.safetensors"))
    for rank in range(world):
        grown = json.loads((tmp_path / f"memory-{rank}.json").read_text())
        assert 0.9 * base / world <= grown <= base / world + 0.2 * base
