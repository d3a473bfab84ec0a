"""What needs no server; the rest is in ``tests/trainer/test_learner.py``."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tiny import conversation, make_config, sample

from slipstream.errors import ConfigError
from slipstream.settings import ModelRoute, TenantConfig
from slipstream.tenants import TENANT_STATES_FILE_NAME
from slipstream_tinker.learner import TinkerLearner, chains_of, check_around
from slipstream_tinker.service import REDUCTION_BY_NAME, Reduction, ScoredChain, ServiceFailed, TinkerService, calibrate
from slipstream_trainer.algorithm.losses import check_loss
from slipstream_trainer.batch.layout import make_plan
from slipstream_trainer.model.learner import check_capabilities
from slipstream_trainer.run.start import start_trainer


def service(deadline: float = 5.0) -> TinkerService:
    return TinkerService("http://127.0.0.1:9", "m", vocab=64, context=100, deadline=deadline)


replies = st.lists(st.lists(st.integers(3, 6), min_size=1, max_size=4), min_size=1, max_size=12)


@given(replies, st.sampled_from([64, 256]))
def test_each_token_is_scored_once_behind_its_own_prompt(said, budget: int) -> None:
    """Also where runs begin alike, repeat each other, or end differently."""
    samples = [sample(f"e{i}", [9, 9, 8], tokens) for i, tokens in enumerate(said)]
    plan = make_plan(samples, layout="merged", budget=budget)
    seen: dict[int, tuple[list[int], int]] = {}
    for micro in plan.micro:
        chains, slots = chains_of(micro)
        for chain, at in zip(chains, slots, strict=True):
            service().check([chain])
            for place, target, slot in zip(chain.source, chain.target, at, strict=True):
                token = int(micro.slots.token_S[slot])
                assert token not in seen
                seen[token] = chain.ids[: place + 1].tolist(), int(target)
    expected = [([9, 9, 8, *tokens[:n]], tokens[n]) for tokens in said for n in range(len(tokens))]
    assert [seen[n] for n in range(len(expected))] == expected


@pytest.mark.parametrize(
    ("ids", "source", "target", "why"),
    [
        ([3] * 101, [1], [3], "101 tokens, and the model's context 100"),
        ([3, 64], [1], [3], "ids 3 to 64, and the model 64"),
        ([3, 4], [1], [-1], "ids -1 to 4"),
        ([3, 4], [1, 1], [3, 5], "scores a place twice"),
        ([], [], [], "0 tokens"),
    ],
)
def test_what_a_server_would_compute_wrongly_is_not_sent(ids, source, target, why: str) -> None:
    chain = ScoredChain(np.array(ids, np.int64), np.array(source, np.int64), np.array(target, np.int64))
    with pytest.raises(ValueError, match=why):
        service().check([chain])


class Server:
    """A run at a service that divides gradients, or does not; or that tells no norms."""

    def __init__(self, divides: Reduction | None) -> None:
        self.service, self.divides, self.gradient, self.rates = service(), divides, 0.0, set[float]()

    def logprobs(self, chains: list[ScoredChain]) -> list[Any]:
        return [np.full(len(c.source), -1.0) for c in chains]

    def backward(self, chains: list[ScoredChain], logprobs: Any, slopes: Any, *, weight: float) -> None:
        self.service.check(chains)
        for c, slope in zip(chains, slopes, strict=True):
            divides = self.divides or REDUCTION_BY_NAME["sum"]
            scored = weight * len(c.source) if divides.tokens else 1.0
            self.gradient += weight * float(slope.sum()) / scored / (len(chains) if divides.chains else 1)

    def step(self, *, learning_rate: float, **_: float) -> float | None:
        self.rates.add(learning_rate)
        found, self.gradient = self.gradient, 0.0
        return found if self.divides else None


@pytest.mark.parametrize("tokens", [True, False])
@pytest.mark.parametrize("chains", [True, False])
def test_how_a_service_divides_is_found_without_moving_a_weight(tokens: bool, chains: bool) -> None:
    server: Any = Server(Reduction(tokens=tokens, chains=chains))
    assert calibrate(server) == server.divides
    assert server.rates == {0.0}


def test_a_service_that_tells_no_norm_has_to_be_described() -> None:
    server: Any = Server(None)
    with pytest.raises(ConfigError, match=r"set plugins\.tinker\.reduction to mean or sum"):
        calibrate(server)


def test_a_service_that_does_not_answer_fails_at_the_deadline() -> None:
    asked, silence = service(deadline=0.1), threading.Event()
    asked.session = object()
    try:
        with pytest.raises(ServiceFailed, match=r"did not answer forward in 0\.1 s"):
            asked.ask("forward", silence.wait)
    finally:
        silence.set()
    assert asked.session is None, "the next request is of a new session"


@pytest.mark.parametrize(
    ("setting", "value", "fix"),
    [
        ("lora_alpha", 16.0, "set trainer.lora_alpha = 32.0"),
        ("lora_targets", ["q_proj"], "set trainer.lora_targets = 'all-linear'"),
        ("rslora", True, "set trainer.rslora = False"),
        ("init_adapter", "/a", "set trainer.init_adapter = None"),
        ("mode", "tree", "set trainer.mode = 'auto'"),
        ("quantize", "4bit", "set trainer.quantize = 'none'"),
        ("sharding", "fsdp2", "set trainer.sharding = 'ddp'"),
        ("inner_steps", 2, "set trainer.inner_steps = 1"),
        ("words_weight", 0.5, "set trainer.words_weight = 1.0"),
    ],
)
def test_what_is_lost_is_refused_with_the_setting_and_its_fix(tmp_path, setting: str, value: Any, fix: str) -> None:
    has = TinkerLearner.capabilities
    check_capabilities(make_config(tmp_path, tmp_path), has)
    with pytest.raises(ConfigError) as e:
        check_capabilities(make_config(tmp_path, tmp_path, **{setting: value}), has)
    assert f"trainer.{setting} = {value!r}" in str(e.value)
    assert fix in str(e.value)


@pytest.mark.parametrize("declared", [True, False])
def test_tenants_are_refused_before_anything_is_loaded(tmp_path, declared: bool) -> None:
    """Those in the settings, and those that a key has made."""
    config = make_config(tmp_path / "nothing", tmp_path, backend="tinker", lora_alpha=32.0)
    if declared:
        config.tenants["acme"] = TenantConfig()
    else:
        (config.root / TENANT_STATES_FILE_NAME).write_text('{"acme": ""}')
    with pytest.raises(ConfigError, match=r"tenants\.acme: it trains one policy: .* set trainer\.backend = 'torch'"):
        start_trainer(config, None)


def test_processes_a_shared_gpu_and_hot_exploration_are_refused_together(tmp_path, monkeypatch) -> None:
    config = make_config(tmp_path, tmp_path)
    config.engine.share = True
    monkeypatch.setenv("WORLD_SIZE", "2")
    config.models["m"] = ModelRoute(explore="temperature", explore_temperature=1.2)
    with pytest.raises(ConfigError, match=r"explore_temperature = 1\.0.*engine\.share = false.*start one process"):
        check_around(config)


def reads_entropy(tokens, settings):
    return -(tokens.logprobs_T * tokens.entropy_T).mean()


def test_a_loss_that_reads_entropies_is_refused(tmp_path) -> None:
    t = make_config(tmp_path, tmp_path, loss=f"{__name__}:reads_entropy", backend="tinker").trainer
    check_loss(t)
    with pytest.raises(ConfigError, match="knows no entropies"):
        check_loss(t, entropy=False)


def test_calls_that_cannot_be_trained_on_say_why(tmp_path) -> None:
    learner = TinkerLearner(service(), make_config(tmp_path, tmp_path), None)
    plain, *_ = conversation(0, temperatures=False)
    assert learner.fault(plain) is None
    plain.hint = "no"
    assert learner.fault(plain) is None and plain.hint is None, "its reward trains"
    plain.hint, plain.reward = "no", math.nan
    assert learner.fault(plain) == "words_alone"
    plain.filter = (0.0, 5.0, 1.0)
    assert learner.fault(plain) == "sampling_filters"
    plain.temperature = 0.7
    assert learner.fault(plain) == "temperature_not_1"
