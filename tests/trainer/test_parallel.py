"""Two processes, uneven work: the same gradients as one, and the whole worker on two ranks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from tests.support import free_port, process, wait_for
from tests.trainer.control import Control, serve
from tests.trainer.tiny import apart, conversation, gradients, make_config, make_trainer, table

from slipstream_trainer.advantage import assign
from slipstream_trainer.plan import make_plan

RANK = """
import sys, torch
from pathlib import Path
from tests.trainer.tiny import make_config, make_trainer, conversation, gradients
from slipstream_trainer.advantage import assign
from slipstream_trainer.plan import make_plan
from slipstream_trainer.parallel import is_first, leave
trainer = make_trainer(make_config(Path(sys.argv[1]), Path(sys.argv[2]), beta=0.05))
assert trainer.world == 2
for loss in ("cispo", "gspo", "bnpo"):
    trainer.config.trainer.loss = loss
    trainer.loss_type = "grpo" if loss == "gspo" else loss
    trainer.importance_sampling_level = "sequence" if loss == "gspo" else "token"
    samples = conversation(3, groups=3, episodes=3)
    assign(samples, "std")
    plan = make_plan(samples, layout="merged", micro=60)
    assert len(plan.micro) % 2 == 1, len(plan.micro)
    work = trainer.start(plan)
    trainer.reference(work)
    value = trainer.backward(work)
    torch.save((value, gradients(trainer), work.now_T), f"{sys.argv[2]}/{loss}-{trainer.rank}.pt")
leave()
"""

WORKER = (
    "import sys\nfrom slipstream.config import Config\nfrom slipstream_trainer.worker import main\n"
    "sys.exit(main(Config.model_validate_json(open(sys.argv[1]).read()), sys.argv[2]))\n"
)


def two(script: Path, *args: str) -> list[str]:
    return [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}", str(script), *args,
    ]  # fmt: skip


ENV = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path]), "GLOO_SOCKET_IFNAME": "lo"}


def test_two_ranks_have_the_gradients_of_one(tiny, tmp_path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    with process(two(tmp_path / "rank.py", str(tiny), str(tmp_path)), tmp_path / "log", ENV) as p:
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
        trainer.reference(work)
        value = trainer.backward(work)
        for rank in range(2):
            other, grads, now = torch.load(tmp_path / f"{loss}-{rank}.pt")
            assert other == pytest.approx(value, rel=2e-6, abs=1e-6)
            assert apart(grads, gradients(trainer)) < 1e-5
            assert torch.allclose(now, work.now_T, atol=1e-5)


def test_the_worker_on_two_ranks(tiny, tmp_path) -> None:
    config = make_config(tiny, tmp_path / "d", min_groups=1, max_steps=2, max_kl=1e6)
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "config.json").write_text(config.model_dump_json())
    with serve(Control()) as control:
        for i in range(2):
            control.add(f"b{i}", table(conversation(i)))
        argv = two(tmp_path / "worker.py", str(tmp_path / "config.json"), control.url)
        with process(argv, tmp_path / "log", ENV) as p:
            wait_for(lambda: p.poll() is not None, 240, said="the trainer has ended")
        assert p.returncode == 0, (tmp_path / "log").read_text()[-3000:]
        assert control.done == {"b0": "trained", "b1": "trained"}
        assert [d["step"] for d in control.of_kind("step")] == [1, 2]
