"""What a learner promises, of each one that there is: against fp64, and bit by bit against itself."""

from __future__ import annotations

import pytest
import torch
from tests.support.learners import (
    LOSSES,
    exact_gradients,
    exact_model,
    learner_gradients,
    needs_server,
    tinker_config,
    tinker_trainer,
    use,
)
from tests.support.oracle import flat_loss, plain_logprobs
from tests.support.tinker_server import TinkerServer
from tests.support.tiny import apart, conversation, make_config, make_trainer

from slipstream_trainer.algorithm.advantage import assign
from slipstream_trainer.algorithm.learning_rate import StepPace
from slipstream_trainer.step.step import train
from slipstream_trainer.versions.checkpoint import Checkpoints, CheckpointState


@pytest.fixture(scope="module")
def server(tiny, tmp_path_factory):
    made = TinkerServer(tiny, tmp_path_factory.mktemp("tinker"))
    made.start()
    yield made
    made.kill()


@pytest.fixture(scope="module", params=["torch", pytest.param("tinker", marks=needs_server)])
def trainer(request, tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("learner")
    if request.param == "torch":
        return make_trainer(make_config(tiny, folder, mode="merged"))
    made = tinker_trainer(tinker_config(tiny, folder, request.getfixturevalue("server").url))
    assert train(made, batch(0), StepPace(), 0).outcome == "step", "now B is not zero"
    return made


def batch(seed: int = 1):
    return conversation(seed, temperatures=False)


def passes(trainer, seed: int = 1) -> torch.Tensor:
    samples = batch(seed)
    assign(samples, "std")
    work = trainer.start(trainer.learner.plan(samples))
    with torch.no_grad():
        for micro in work.plan.micro:
            logps, _, token = trainer.forward(micro, work)
            work.policy_logprobs_T[token] = logps.detach()
    return work.policy_logprobs_T.clone()


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_are_those_of_fp64(trainer, tiny, tmp_path, loss: str, beta: float) -> None:
    use(trainer, loss, beta)
    samples = batch()
    assign(samples, "std")
    plan = trainer.learner.plan(samples)
    work = trainer.start(plan)
    found = trainer.backward(work)
    ours = learner_gradients(trainer, tmp_path)

    trainer.learner.adapter(tmp_path / "now")
    model = exact_model(tiny, tmp_path / "now")
    lp = plain_logprobs(model, samples).double()
    ref = None
    if beta:
        with torch.no_grad(), model.disable_adapter():
            ref = plain_logprobs(model, samples).double()
    s = plan.scored
    expected = flat_loss(
        loss, lp, lp.detach(), work.importance_ratio_T.double(), torch.from_numpy(s.advantage_T).double(),
        torch.from_numpy(s.unit_T), ref=ref, beta=beta, high=4.0 if loss == "cispo" else 0.2,
    )  # fmt: skip
    expected.backward()
    exact = exact_gradients(model, shared=not hasattr(trainer.learner, "model"))
    trainer.learner.zero_grads()
    assert (work.policy_logprobs_T - lp.detach()).abs().max() < 2e-5
    assert found == pytest.approx(float(expected.detach()), rel=1e-5, abs=1e-6)
    norms = [float(sum(g.double().square().sum() for g in grads.values()) ** 0.5) for grads in (ours, exact)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    assert apart(ours, exact) < 1e-5


def test_a_step_that_is_undone_leaves_nothing(trainer, tiny, tmp_path) -> None:
    use(trainer, "cispo", 0.0)
    before, snapshot = passes(trainer), trainer.learner.save()
    assert train(trainer, batch(2), StepPace(), 0).outcome == "step"
    assert not torch.equal(passes(trainer), before)
    trainer.learner.restore(snapshot)
    assert torch.equal(passes(trainer), before)


def test_half_a_step_is_half_as_long(trainer, tmp_path) -> None:
    learner = trainer.learner
    snapshot = learner.save()
    learner.adapter(tmp_path / "start")
    samples = batch(3)
    assign(samples, "std")
    trainer.backward(trainer.start(learner.plan(samples)))
    learner.clip()
    learner.step(1e-3)
    learner.adapter(tmp_path / "whole")
    learner.resize(snapshot, 0.5)
    learner.adapter(tmp_path / "half")
    learner.restore(snapshot)
    from safetensors.torch import load_file

    start, whole, half = (load_file(tmp_path / n / "adapter_model.safetensors") for n in ("start", "whole", "half"))
    moved, half_moved = ({n: b[n].double() - start[n].double() for n in start} for b in (whole, half))
    assert apart({n: 2 * m for n, m in half_moved.items()}, moved) < 1e-3


def test_a_checkpoint_goes_on_bit_by_bit(trainer, tmp_path) -> None:
    learner, checkpoints = trainer.learner, Checkpoints(tmp_path / "c", 3)
    path = checkpoints.save(learner, learner.save(keep=True), CheckpointState(1, adapter="tiny@1", weights="tiny@1"))
    first = train(trainer, batch(4), StepPace(), 0)
    after = passes(trainer)
    assert checkpoints.load(path, learner).step == 1
    second = train(trainer, batch(4), StepPace(), 0)
    assert torch.equal(passes(trainer), after)
    assert first.figures["kl"] == second.figures["kl"] > 0
    checkpoints.load(path, learner)
    assert learner.distance(path / "adapter") < 1e-7


@pytest.mark.parametrize("trainer", [pytest.param("tinker", marks=needs_server)], indirect=True)
def test_the_other_learner_computes_the_same_with_the_exported_adapter(trainer, tiny, tmp_path) -> None:
    theirs = passes(trainer)
    trainer.learner.adapter(tmp_path / "a")
    here = make_trainer(
        make_config(tiny, tmp_path / "d", lora_alpha=32.0, init_adapter=str(tmp_path / "a")), warm=False
    )
    assert (passes(here) - theirs).abs().max() < 1e-5


@pytest.mark.parametrize("trainer", [pytest.param("tinker", marks=needs_server)], indirect=True)
def test_a_killed_server_costs_nothing_but_a_pause(trainer, server, tmp_path) -> None:
    from slipstream_tinker.service import ServiceFailed

    learner, checkpoints = trainer.learner, Checkpoints(tmp_path / "c", 3)
    path = checkpoints.save(learner, learner.save(keep=True), CheckpointState(1, weights="tiny"))
    first = train(trainer, batch(5), StepPace(), 0)
    after = passes(trainer)
    server.kill()
    learner.service.deadline = 5.0
    learner._passed.clear()
    with pytest.raises(ServiceFailed, match="did not answer|refused"):
        train(trainer, batch(6), StepPace(), 0)
    server.start()
    learner.service.deadline = 240.0
    checkpoints.load(path, learner)
    second = train(trainer, batch(5), StepPace(), 0)
    assert torch.equal(passes(trainer), after)
    assert first.figures["kl"] == second.figures["kl"]
