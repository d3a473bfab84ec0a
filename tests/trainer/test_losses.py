"""Every loss against the closed form and against stock TRL on the same batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.learners import LOSSES, use
from tests.support.oracle import flat_loss, plain_logprobs
from tests.support.tiny import apart, conversation, gradients, make_config, make_trainer, sample, tokens

from slipstream.errors import ConfigError
from slipstream.settings import TrainerConfig
from slipstream.settings.trainer import LOSS_FUNCTIONS
from slipstream_trainer.algorithm.advantage import assign
from slipstream_trainer.algorithm.losses import (
    BNPO_LOSS,
    CISPO_LOSS,
    DR_GRPO,
    TrlLoss,
    check_loss,
    find_loss,
    trl_settings,
)
from slipstream_trainer.batch.layout import make_plan
from slipstream_trainer.step.trl_seam import GRPOTrainer, grpo_config


def own_cispo(tokens, settings):
    """A user's, to be compared with what the oracle says of the loss of that name."""
    ratio_T = (tokens.logprobs_T - tokens.old_logprobs_T).exp().clamp(max=1 + settings.epsilon_high).detach()
    return -(tokens.weights_T * ratio_T * tokens.advantages_T * tokens.logprobs_T).mean()


def own_gspo(tokens, settings):
    """A user's that needs an episode's tokens together, and forgets the weights of guarded tokens."""
    count_E = torch.bincount(tokens.episode_T, minlength=tokens.episodes)

    def mean_E(x_T):
        return torch.zeros(tokens.episodes).index_add(0, tokens.episode_T, x_T) / count_E

    ratio_T = mean_E(tokens.logprobs_T - tokens.old_logprobs_T).exp()[tokens.episode_T]
    clipped_T = ratio_T.clamp(1 - settings.epsilon, 1 + settings.epsilon)
    terms_T = -torch.minimum(ratio_T * tokens.advantages_T, clipped_T * tokens.advantages_T)
    return mean_E(terms_T * tokens.weights_T).mean()


@pytest.fixture(scope="module")
def trainer(tiny, tmp_path_factory):
    return make_trainer(make_config(tiny, tmp_path_factory.mktemp("losses")))


def perturbed(trainer, plan, weights: bool | str):
    """A second inner step: π_old lies apart from what is computed now, so ratios differ from 1 and some are clipped.

    ``weights``: "guarded" has every third call weigh nothing, False has all weigh 1.
    """
    work = trainer.start(plan)
    trainer.backward(work)
    generator = torch.Generator().manual_seed(5)
    work.trainer_logprobs_T = work.policy_logprobs_T + 0.4 * torch.randn(
        work.policy_logprobs_T.shape, generator=generator
    )
    work.importance_ratio_T = (
        (work.trainer_logprobs_T - work.behavior_logprobs_T).exp().clamp(max=2.0)
        if weights
        else torch.ones_like(work.trainer_logprobs_T)
    )
    if weights == "guarded":
        work.importance_ratio_T = work.importance_ratio_T.masked_fill(work.sample_T % 3 == 1, 0.0)
    return work


@pytest.mark.parametrize("weights", [True, False, "guarded"])
@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss", LOSSES)
def test_against_the_closed_form(trainer, loss: str, beta: float, weights: bool | str) -> None:
    use(trainer, loss, beta)
    samples = conversation(1)
    assign(samples, "std")
    plan = make_plan(samples, layout="tree", micro=64)
    assert len(plan.micro) > 1
    work = perturbed(trainer, plan, weights)
    found = trainer.backward(work)
    ours = gradients(trainer)

    trainer.model.zero_grad(set_to_none=True)
    lp = plain_logprobs(trainer.model, samples).double()
    ref = None
    if beta:
        with torch.no_grad(), trainer.model.disable_adapter():
            ref = plain_logprobs(trainer.model, samples).double()
    s = plan.scored
    high = 4.0 if loss == "cispo" else 0.2
    expected = flat_loss(
        loss,
        lp,
        work.trainer_logprobs_T,
        work.importance_ratio_T,
        torch.from_numpy(s.advantage_T),
        torch.from_numpy(s.unit_T),
        ref=ref,
        beta=beta,
        high=high,
    )
    expected.backward()
    assert found == pytest.approx(float(expected.detach()), rel=2e-6, abs=1e-6)
    assert apart(ours, gradients(trainer)) < 1e-5


@pytest.mark.parametrize("micro", [64, 4096])
@pytest.mark.parametrize(
    ("own", "name", "beta"), [(own_cispo, "cispo", 0.0), (own_cispo, "cispo", 0.1), (own_gspo, "gspo", 0.0)]
)
def test_a_function_of_ones_own_against_the_closed_form(trainer, own, name: str, beta: float, micro: int) -> None:
    """On a batch of several parts and of one; its gradient comes back through all of them."""
    use(trainer, f"{__name__}:{own.__name__}", beta)
    t = trainer.config.trainer
    t.epsilon_high = 4.0 if name == "cispo" else None
    try:
        check_loss(t)
        samples = conversation(1)
        assign(samples, "std")
        plan = make_plan(samples, layout="tree", micro=micro)
        assert (len(plan.micro) > 1) == (micro == 64)
        work = perturbed(trainer, plan, "guarded")
        found = trainer.backward(work)
        ours = gradients(trainer)
        with torch.no_grad(), trainer.model.disable_adapter():
            ref = plain_logprobs(trainer.model, samples).double()
        trainer.model.zero_grad(set_to_none=True)
        t.loss = name
        expected = flat(trainer, samples, plan, work, high=t.epsilon_high or 0.2, ref=ref, beta=beta)
        expected.backward()
        assert found == pytest.approx(float(expected.detach()), rel=2e-6, abs=1e-6)
        assert apart(ours, gradients(trainer)) < 1e-5
    finally:
        t.epsilon_high = None


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda tokens, _: tokens.logprobs_T, r"returned a tensor of shape \(5,\): return one number"),
        (lambda tokens, _: tokens.old_logprobs_T.sum(), "returned .* without a gradient: return one number"),
        (lambda *_: 0.5, "returned 0.5: return one number"),
        (
            lambda tokens, _: (tokens.logprobs_T - tokens.logprobs_T).abs().sqrt().sum(),
            "has no finite gradient at logprobs_T",
        ),
        (lambda: None, "fails on five tokens: TypeError"),
    ],
)
def test_what_a_function_of_ones_own_must_give(monkeypatch, made, message: str) -> None:
    monkeypatch.setitem(globals(), "bad", made)
    spec = f"{__name__}:bad"
    with pytest.raises(ConfigError, match=f"^trainer.loss = '{spec}' {message}"):
        check_loss(TrainerConfig(loss=spec))


@pytest.mark.parametrize("loss", LOSSES)
def test_a_name_stands_for_what_is_there(loss: str) -> None:
    check_loss(TrainerConfig(loss=loss))
    assert find_loss(TrainerConfig(loss=loss)) is find_loss(TrainerConfig(loss=LOSS_FUNCTIONS[loss]))


@pytest.fixture(scope="module")
def stock(tiny, tmp_path_factory):
    """TRL as it is, on the same weights."""
    from tests.support.tiny import make_trainer as make

    config = make_config(tiny, tmp_path_factory.mktemp("stock"))
    twin = make(config)
    for beta in (0.0,):
        args = grpo_config(config, config.root / "stock")
        trainer = GRPOTrainer(
            model=twin.model,
            reward_funcs=lambda **_: [0.0],
            args=args,
            train_dataset=twin.train_dataset,
            processing_class=twin.processing_class,
        )
        trainer.use_vllm, trainer.vllm_importance_sampling_correction, trainer.beta = True, True, beta
    trainer.current_gradient_accumulation_steps = 1
    trainer.args.steps_per_generation = 1  # type: ignore[attr-defined]
    trainer.model.train()
    return trainer


def stock_loss(stock, samples, work, beta: float) -> float:
    """Rows as TRL has them: prompt left-padded, everything sampled right-padded, results of tools masked."""
    rows = [s for s in samples if s.trainable]
    prompt, sampled = max(len(s.prompt_P) for s in rows), max(len(s.completion_C) for s in rows)
    ids, pmask = torch.zeros(len(rows), prompt, dtype=torch.long), torch.zeros(len(rows), prompt, dtype=torch.long)
    cids, cmask = torch.zeros(len(rows), sampled, dtype=torch.long), torch.zeros(len(rows), sampled, dtype=torch.long)
    old, weight = torch.zeros(len(rows), sampled), torch.ones(len(rows), sampled)
    at = 0
    for i, s in enumerate(rows):
        n = len(s.completion_C)
        ids[i, prompt - len(s.prompt_P) :], pmask[i, prompt - len(s.prompt_P) :] = (
            torch.from_numpy(s.prompt_P.astype(np.int64)),
            1,
        )
        cids[i, :n], cmask[i, :n] = torch.from_numpy(s.completion_C.astype(np.int64)), 1
        old[i, :n], weight[i, :n] = work.trainer_logprobs_T[at : at + n], work.importance_ratio_T[at : at + n]
        at += n
    inputs = {
        "prompt_ids": ids, "prompt_mask": pmask, "completion_ids": cids, "completion_mask": cmask,
        "advantages": torch.tensor([s.advantage for s in rows]), "old_per_token_logps": old, "importance_sampling_ratio": weight,
        "num_items_in_batch": cmask.sum().float(),
    }  # fmt: skip
    if beta:
        with torch.no_grad(), stock.model.disable_adapter():
            both = torch.cat([ids, cids], 1), torch.cat([pmask, cmask], 1)
            inputs["ref_per_token_logps"] = stock._get_per_token_logps_and_entropies(stock.model, *both, sampled)[0]
    stock.model.zero_grad(set_to_none=True)
    loss = stock.compute_loss(stock.model, inputs)
    loss.backward()
    return float(loss.detach())


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss", [name for name in LOSSES if isinstance(find_loss(TrainerConfig(loss=name)), TrlLoss)])
def test_against_stock_trl(trainer, stock, loss: str, beta: float) -> None:
    use(trainer, loss, beta)
    stock.beta = beta
    for name in ("loss_type", "importance_sampling_level", "epsilon_low", "epsilon_high"):
        setattr(stock, name, getattr(trainer, name))
    random = np.random.default_rng(2)
    samples = [
        sample(
            f"e{i}",
            tokens(random, 9 + i % 3),
            tokens(random, 4 + i % 4),
            group=f"g{i // 4}",
            reward=float(random.random()),
        )
        for i in range(8)
    ]
    assign(samples, "std")
    work = perturbed(trainer, make_plan(samples), weights=True)
    ours = trainer.backward(work)
    mine = gradients(trainer)
    assert ours == pytest.approx(stock_loss(stock, samples, work, beta), rel=2e-6, abs=1e-6)
    assert apart(mine, gradients(stock)) < 1e-5


def test_settings_that_have_traps() -> None:
    assert trl_settings(TrainerConfig())["epsilon_high"] == 5.0
    assert trl_settings(TrainerConfig(loss="dapo"))["epsilon_high"] == 0.2
    found = trl_settings(TrainerConfig(loss="cispo", epsilon_high=0.28))["epsilon_high"]
    assert found == 1.28, "as in the paper: ratios up to 1 + epsilon_high"
    found = trl_settings(TrainerConfig(loss="gspo"))
    assert (found["loss_type"], found["importance_sampling_level"]) == ("grpo", "sequence")
    assert found["vllm_importance_sampling_mode"] == "token_truncate"
    assert found["use_bias_correction_kl"] is True


def test_parts_add_up() -> None:
    assert BNPO_LOSS.part_factor(3, 12, 4) == DR_GRPO.part_factor(3, 12, 4) == 0.25
    assert CISPO_LOSS.part_factor(3, 12, 4) == 1.0


def flat(trainer, samples, plan, work, **settings) -> torch.Tensor:
    """The oracle on a plan's tokens, with plain forwards of the trainer's model."""
    s = plan.scored
    return flat_loss(
        trainer.config.trainer.loss, plain_logprobs(trainer.model, samples).double(), work.trainer_logprobs_T, work.importance_ratio_T,
        torch.from_numpy(s.advantage_T), torch.from_numpy(s.unit_T), **settings,
    )  # fmt: skip


@pytest.mark.parametrize("high", [0.05, 0.28])
def test_the_upper_clip_of_cispo_is_one_plus_epsilon_high(trainer, high: float) -> None:
    use(trainer, "cispo", 0.0)
    trainer.config.trainer.epsilon_high = high
    trainer.epsilon_high = trl_settings(trainer.config.trainer)["epsilon_high"]
    try:
        samples = conversation(1)
        assign(samples, "std")
        plan = make_plan(samples)
        work = perturbed(trainer, plan, weights=True)
        assert float((work.policy_logprobs_T - work.trainer_logprobs_T).exp().max()) > 1 + high, "something is clipped"
        found = trainer.backward(work)
        ours = gradients(trainer)
        trainer.model.zero_grad(set_to_none=True)
        expected = flat(trainer, samples, plan, work, high=high)
        expected.backward()
        assert found == pytest.approx(float(expected), rel=2e-6, abs=1e-6)
        assert apart(ours, gradients(trainer)) < 1e-5
    finally:
        trainer.config.trainer.epsilon_high = None


@pytest.mark.parametrize("loss", ["cispo", "grpo"])
def test_the_reference_is_the_adapter_that_training_started_from(tiny, tmp_path, loss: str) -> None:
    """A trained policy whose start was an adapter: the KL term pulls to that adapter, not to the base model."""
    made = make_trainer(make_config(tiny, tmp_path / "a"))
    made.model.save_pretrained(str(tmp_path / "start"))
    config = make_config(tiny, tmp_path / "b", loss=loss, beta=0.1, init_adapter=str(tmp_path / "start"))
    trainer = make_trainer(config, warm=False)
    samples = conversation(1)
    assign(samples, "std")
    plan = make_plan(samples)
    with torch.no_grad():
        ref = plain_logprobs(trainer.model, samples).double()
        for p in trainer.learner.trained:
            p.add_(0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters() if p.requires_grad}
    work = perturbed(trainer, plan, weights="guarded")
    assert all(torch.equal(p, before[n]) for n, p in trainer.model.named_parameters() if p.requires_grad)
    assert float((work.reference_logprobs_T.double() - ref).abs().max()) < 1e-4
    found = trainer.backward(work)
    ours = gradients(trainer)
    trainer.model.zero_grad(set_to_none=True)
    expected = flat(trainer, samples, plan, work, ref=ref, beta=0.1, high=4.0 if loss == "cispo" else 0.2)
    expected.backward()
    assert found == pytest.approx(float(expected), rel=2e-5, abs=1e-6)
    assert apart(ours, gradients(trainer)) < 1e-4


@pytest.mark.parametrize("loss", LOSSES)
def test_stale_runs_count_in_the_baseline_and_not_in_the_loss(trainer, loss: str) -> None:
    """Half of the runs are too old to be trained on; the advantages of the others are by all rewards of their group."""
    use(trainer, loss, 0.0)
    random = np.random.default_rng(4)
    samples = [
        sample(f"e{i}", tokens(random, 9), tokens(random, 5), group=f"g{i // 4}", reward=float(i % 4 == 0) + i / 8)
        for i in range(8)
    ]
    for s in samples[1::2]:
        s.trainable, s.reason = False, "stale"
    rewards = np.array([s.reward for s in samples]).reshape(2, 4)
    assign(samples, "std")
    plan = make_plan(samples)
    work = perturbed(trainer, plan, weights=True)
    found = trainer.backward(work)
    ours = gradients(trainer)
    expected_advantage = (
        (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, ddof=1, keepdims=True) + 1e-4)
    ).flatten()[::2]
    assert plan.scored.units == 4
    trainer.model.zero_grad(set_to_none=True)
    lp = plain_logprobs(trainer.model, samples).double()
    high = 4.0 if loss == "cispo" else 0.2
    advantage = torch.from_numpy(np.repeat(expected_advantage, 5))
    expected = flat_loss(
        loss,
        lp,
        work.trainer_logprobs_T,
        work.importance_ratio_T,
        advantage,
        torch.arange(4).repeat_interleave(5),
        high=high,
    )
    expected.backward()
    assert found == pytest.approx(float(expected), rel=2e-5, abs=1e-6)
    assert apart(ours, gradients(trainer)) < 1e-5


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_guarded_call_pulls_at_nothing(trainer, loss: str, beta: float) -> None:
    """The slope of the loss at each token of a call that weighs nothing is zero: through the clip, the sequence's ratio and KL."""
    use(trainer, loss, beta)
    samples = conversation(1)
    assign(samples, "std")
    work = perturbed(trainer, make_plan(samples, layout="tree", micro=64), "guarded")
    leaf = work.policy_logprobs_T.clone().requires_grad_()
    (slope_T,) = torch.autograd.grad(trainer._loss(work, leaf, work.entropy_T, None), leaf)
    guarded = work.importance_ratio_T == 0
    assert guarded.any() and not guarded.all()
    assert slope_T[guarded].abs().max() == 0
    assert slope_T[~guarded].abs().max() > 0


@pytest.mark.parametrize("loss", ["cispo", "gspo", f"{__name__}:own_cispo"])
def test_a_share_of_the_kl_term_pulls_as_all_of_it_does_on_average(trainer, monkeypatch, loss: str) -> None:
    use(trainer, loss, 0.1)
    trainer.config.trainer.epsilon_high = 4.0
    samples = conversation(1)
    assign(samples, "std")
    plan = make_plan(samples, layout="tree", micro=64)
    count, seen = len(plan.micro), {}
    assert count > 2

    def gradient(share: float, seed: int) -> tuple[frozenset[int], dict[str, torch.Tensor]]:
        trainer.config.trainer.beta_share = share
        monkeypatch.setattr("slipstream_trainer.step.trainer.draw", lambda _: np.random.default_rng(seed))
        work = trainer.start(plan)
        trainer.backward(work)
        where = () if work.referred_T is None else work.referred_T.nonzero().flatten().tolist()
        return frozenset(where), gradients(trainer)

    try:
        whole = gradient(1.0, 0)[1]
        for seed in range(200):
            where, found = gradient(1 / count, seed)
            seen[where] = found
            if len(seen) == count:
                break
    finally:
        trainer.config.trainer.beta_share, trainer.config.trainer.epsilon_high = 1.0, None
    assert len(seen) == count, "each micro-batch is drawn, and one at a time"
    assert sum(map(len, seen)) == len(frozenset().union(*seen)) == plan.scored.tokens
    mean = {n: sum(found[n] for found in seen.values()) / count for n in whole}
    assert apart(mean, whole) < 1e-5
    assert apart(next(iter(seen.values())), whole) > 1e-3
