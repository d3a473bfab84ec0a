"""Two processes, uneven work: the same gradients as one, and the whole worker on two ranks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from tests.support import free_port, process, slipstream, wait_for
from tests.support.control import FakeControl, serve
from tests.support.tiny import apart, conversation, gradients, make_config, make_trainer, table, with_words

from slipstream.config import CONFIG_ENV
from slipstream_trainer.algorithm.advantage import assign
from slipstream_trainer.algorithm.learning_rate import StepPace
from slipstream_trainer.batch.layout import make_plan
from slipstream_trainer.step.step import train

RANK = """
import json, sys, torch
from pathlib import Path
from tests.support.tiny import make_config, make_trainer, conversation, gradients, with_words
from slipstream_trainer.algorithm.advantage import assign
from slipstream_trainer.algorithm.learning_rate import StepPace
from slipstream_trainer.batch.layout import make_plan
from slipstream_trainer.run.gpu_lease import Parking
from slipstream_trainer.run.process import leave
from tests.support.tiny import adapter_state
from slipstream_trainer.versions.adapter_folder import write_adapter
from slipstream_trainer.step.selfcheck import check_packing
from slipstream_trainer.model.shards import even
from slipstream_trainer.step.step import follow, train
out = Path(sys.argv[2])
for sharding in ("ddp", "fsdp2"):
    trainer = make_trainer(make_config(Path(sys.argv[1]), out, beta=0.05, sharding=sharding, max_kl=1e6))
    assert trainer.world == 2
    for p in trainer.model.parameters():  # as after a move to a GPU: memory that can be given back
        if hasattr(p, "_local_tensor"):
            p._local_tensor = p._local_tensor.clone()
        p.data = p.data.clone()
    for loss in ("cispo", "gspo", "bnpo"):
        trainer.config.trainer.loss = loss
        trainer.loss_type = "grpo" if loss == "gspo" else loss
        trainer.importance_sampling_level = "sequence" if loss == "gspo" else "token"
        samples = conversation(3, groups=3, episodes=3)
        assign(samples, "std")
        plan = make_plan(samples, layout="merged", micro=60)
        assert len(plan.micro) % 2 == 1, len(plan.micro)
        work = trainer.start(even(plan, 2) if trainer.sharded else plan)
        if loss == "gspo":  # the base waits on the host between two turns
            parking = Parking(trainer.model)
            parking.leave()
            frozen = [p for p in trainer.model.parameters() if not p.requires_grad]
            assert not any((p.to_local() if trainer.sharded else p).untyped_storage().nbytes() for p in frozen)
            parking.enter()
        value = trainer.backward(work)
        torch.save((value, gradients(trainer), work.policy_logprobs_T), out / f"{sharding}-{loss}-{trainer.rank}.pt")
# the last one is sharded: half of the base here, the whole of LoRA
frozen = [p for p in trainer.model.parameters() if not p.requires_grad]
assert sum(p.to_local().numel() for p in frozen) < 0.6 * sum(p.numel() for p in frozen)
assert check_packing(trainer.learner)["tree"] < 1e-4
if trainer.rank:
    follow(trainer, StepPace(), 0)
else:
    samples = conversation(4)
    samples[0].logprobs_C = samples[0].logprobs_C - 40
    result = train(trainer, samples, StepPace(), 0)
    assert (result.outcome, result.figures["guarded"]) == ("step", 1), (result.reason, result.figures)
trainer.config.trainer.loss = "grpo"
if trainer.rank:
    follow(trainer, StepPace(), 0)
else:
    result = train(trainer, with_words(), StepPace(), 0)
    (out / "words.json").write_text(json.dumps([result.figures[name] for name in sys.argv[3:]]))
torch.save(adapter_state(trainer.model), out / f"stepped-{trainer.rank}.pt")
if trainer.rank == 0:
    write_adapter(trainer.learner.adapter, out / "adapter", 16)
leave()
"""


WORDS_FIGURES = ("loss", "words", "words_kl", "words_change", "kl", "entropy_after")


def two(script: Path, *args: str) -> list[str]:
    return [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}", str(script), *args,
    ]  # fmt: skip


ENV = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path]), "GLOO_SOCKET_IFNAME": "lo"}


@pytest.mark.slow
def test_two_ranks_have_the_gradients_of_one_with_the_base_whole_or_sharded(tiny, tmp_path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    with process(two(tmp_path / "rank.py", str(tiny), str(tmp_path), *WORDS_FIGURES), tmp_path / "log", ENV) as p:
        wait_for(lambda: p.poll() is not None, 240, said="both ranks have ended")
    assert p.returncode == 0, (tmp_path / "log").read_text()[-3000:]
    trainer = make_trainer(make_config(tiny, tmp_path / "one", beta=0.05))
    for loss in ("cispo", "gspo", "bnpo"):
        trainer.config.trainer.loss = loss
        trainer.loss_type = "grpo" if loss == "gspo" else loss
        trainer.importance_sampling_level = "sequence" if loss == "gspo" else "token"
        samples = conversation(3, groups=3, episodes=3)
        assign(samples, "std")
        work = trainer.start(make_plan(samples, layout="merged"))
        value = trainer.backward(work)
        for name in (f"{sharding}-{loss}-{rank}.pt" for sharding in ("ddp", "fsdp2") for rank in range(2)):
            other, grads, now = torch.load(tmp_path / name)
            assert other == pytest.approx(value, rel=2e-6, abs=1e-6)
            assert apart(grads, gradients(trainer)) < 1e-5
            assert torch.allclose(now, work.policy_logprobs_T, atol=1e-5)
    alone = make_trainer(make_config(tiny, tmp_path / "words", beta=0.05, max_kl=1e6, loss="grpo"))
    samples = conversation(4)
    samples[0].logprobs_C = samples[0].logprobs_C - 40
    alone.config.trainer.loss, alone.loss_type = "bnpo", "bnpo"
    train(alone, samples, StepPace(), 0)
    alone.config.trainer.loss = "grpo"
    figures = train(alone, with_words(), StepPace(), 0).figures
    assert json.loads((tmp_path / "words.json").read_text()) == pytest.approx(
        [figures[n] for n in WORDS_FIGURES], rel=1e-3
    )
    one, other = (torch.load(tmp_path / f"stepped-{rank}.pt") for rank in range(2))
    assert all(torch.equal(one[n], other[n]) for n in one), "both processes have the same adapter after a step"
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()


@pytest.mark.slow
def test_the_command_on_two_ranks(tiny, tmp_path) -> None:
    """`slipstream trainer --processes 2`, sharded, by turns with the engine, from the lease to the ack."""
    config = make_config(tiny, tmp_path / "d", min_groups=1, max_steps=2, max_kl=1e6, sharding="fsdp2")
    config.engine.share = True
    with serve(FakeControl()) as control:
        for i in range(2):
            control.add(f"b{i}", table(conversation(i)))
        argv = slipstream("trainer", "--processes", "2", "--url", control.url)
        with process(argv, tmp_path / "log", ENV | {CONFIG_ENV: config.model_dump_json()}) as p:
            wait_for(lambda: p.poll() is not None, 240, said="the trainer has ended")
        assert p.returncode == 0, (tmp_path / "log").read_text()[-3000:]
        assert control.done == {"b0": "trained", "b1": "trained"}
        assert [d["step"] for d in control.of_kind("step")] == [1, 2]
        assert sorted(control.adapters) == ["tiny@1", "tiny@2"]
        turns = [x for x, before in zip(control.holds, ["", *control.holds], strict=False) if x != before]
        assert turns == ["hold", "release"] * 3, "to load, and for each step"
        assert all(d["hold_seconds"] > d["seconds"] for d in control.of_kind("step"))
