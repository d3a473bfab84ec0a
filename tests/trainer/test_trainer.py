"""The same gradients however a batch is laid out, ordered or cut; nothing but sampled tokens counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.tiny import apart, conversation, gradients, make_config, make_trainer, sample, tokens

from slipstream_trainer.algorithm.advantage import assign
from slipstream_trainer.batch.layout import make_plan


@pytest.fixture(scope="module")
def trainer(tiny, tmp_path_factory):
    return make_trainer(make_config(tiny, tmp_path_factory.mktemp("trainer"), max_ratio=4.0))


def computed(trainer, samples, loss: str = "cispo", **layout):
    """(loss, gradients, log-probabilities by (call, choice))."""
    trainer.config.trainer.loss = loss
    trainer.loss_type = "grpo" if loss == "gspo" else loss
    trainer.importance_sampling_level = "sequence" if loss == "gspo" else "token"
    plan = make_plan(samples, **layout)
    work = trainer.start(plan)
    value = trainer.backward(work)
    by_call: dict[tuple[str, int], list[float]] = {}
    for i, lp in zip(plan.scored.sample_T.tolist(), work.policy_logprobs_T.tolist(), strict=True):
        by_call.setdefault((samples[i].call, samples[i].choice), []).append(lp)
    return value, gradients(trainer), by_call


def ready(samples):
    assign(samples, "std")
    return samples


@pytest.mark.parametrize("loss", ["cispo", "grpo", "gspo", "dr_grpo"])
def test_a_row_per_call_merged_and_trees_are_the_same(trainer, loss: str) -> None:
    samples = ready(conversation(3, groups=3, episodes=4, turns=4))
    value, expected, lp = computed(trainer, samples, loss, layout="per_call")
    for layout, forest in (("merged", False), ("tree", False), ("auto", False), ("merged", True), ("tree", True)):
        other, found, lp2 = computed(trainer, samples, loss, layout=layout, forest=forest)
        assert other == pytest.approx(value, abs=1e-6)
        assert apart(found, expected) < 1e-5
        assert lp2.keys() == lp.keys()
        for call, logprobs in lp.items():
            assert lp2[call] == pytest.approx(logprobs, abs=1e-4)


@pytest.mark.parametrize("loss", ["cispo", "sapo", "bnpo"])
def test_order_and_micro_batches_do_not_matter(trainer, loss: str) -> None:
    samples = ready(conversation(4, groups=3, episodes=4))
    value, expected, _ = computed(trainer, samples, loss, layout="tree")
    for seed, micro in ((0, 40), (1, 100), (2, 400)):
        order = np.random.default_rng(seed).permutation(len(samples))
        other, found, _ = computed(trainer, [samples[i] for i in order], loss, layout="auto", micro=micro)
        assert other == pytest.approx(value, abs=1e-6)
        assert apart(found, expected) < 1e-5


def test_branches_of_an_episode_each_token_once_under_its_own_prefix(trainer) -> None:
    """Thinking stripped, a compaction, a sub-agent, a retry, parallel samples: all as many plain sequences as there are calls."""
    random = np.random.default_rng(9)
    system, a, b, c, result = (tokens(random, n) for n in (8, 5, 6, 4, 3))
    one = np.concatenate([system, a, result])
    samples = [
        sample("e0", system, a, call="c0", number=0, reward=1.0),
        sample("e0", one, b, call="c1", number=1, reward=1.0),
        sample("e0", one, b[:3].tolist() + [5, 6], call="c1-retry", number=2, reward=1.0),  # same prompt again
        sample(
            "e0", np.concatenate([system, a[2:], result, b, result]), c, call="c2", number=3, reward=1.0
        ),  # thinking stripped
        sample("e0", np.concatenate([system, result]), a, call="c3", number=4, reward=1.0),  # compaction
        sample("e0", tokens(random, 7), c, call="sub", number=5, reward=1.0),  # a sub-agent with its own prompt
        *(sample("e1", system, tokens(random, 5), call="n", number=0, choice=k, reward=0.0) for k in range(3)),
        sample("e1", system, a, call="twin", number=1, reward=0.0),  # the same tokens, sampled by another episode
    ]
    assign(samples, "mean")
    _, expected, lp = computed(trainer, samples, layout="per_call")
    for layout in ("merged", "tree"):
        plan = make_plan(samples, layout=layout)
        assert sorted(np.concatenate([m.slots.token_S for m in plan.micro]).tolist()) == list(
            range(sum(len(s.completion_C) for s in samples))
        )
        _, found, lp2 = computed(trainer, samples, layout=layout)
        assert apart(found, expected) < 1e-5
        for call, logprobs in lp.items():
            assert lp2[call] == pytest.approx(logprobs, abs=1e-4)


def test_filtered_calls_are_computed_alike_in_each_layout(trainer) -> None:
    samples = ready(conversation(8))
    _, _, whole = computed(trainer, samples, layout="tree")
    for i, s in enumerate(samples):
        s.filter = ((0.0, 5.0, 1.0), None, (0.1, 0.0, 0.8))[i % 3]
    _, expected, lp = computed(trainer, samples, layout="per_call")
    _, found, lp2 = computed(trainer, samples, layout="tree")
    assert apart(found, expected) < 1e-5
    for call in lp:
        assert lp2[call] == pytest.approx(lp[call], abs=1e-4)
    assert sum(sum(lp[call]) for call in lp) > sum(sum(whole[call]) for call in whole), "less is left to draw from"


def test_nothing_but_sampled_tokens_has_a_gradient(trainer) -> None:
    """Each scored log-probability pulls by its advantage and by its way from the reference; prompts, tool results and untrainable calls pull not at all."""
    samples = ready(conversation(5))
    samples[3].trainable, samples[3].reason = False, "top_k"
    plan = make_plan(samples, layout="tree")
    work = trainer.start(plan)
    pulls = []
    taught = trainer.taught

    def watched(micro, work):
        logps, entropy, token, score = taught(micro, work)
        logps.register_hook(lambda g: pulls.append((token, g)))
        return logps, entropy, token, score

    trainer.taught = watched
    try:
        trainer.config.trainer.loss = trainer.loss_type = "cispo"
        trainer.importance_sampling_level = "token"
        trainer.backward(work)
    finally:
        trainer.taught = taught
    token, pull = (torch.cat(x) for x in zip(*pulls, strict=True))
    away_T = work.reference_logprobs_T - work.policy_logprobs_T
    weight_T = work.importance_ratio_T
    pull_T = weight_T * work.advantage_T + trainer.beta * away_T * (weight_T > 0)
    expected = -pull_T[token] / plan.scored.tokens
    assert torch.allclose(pull, expected, atol=1e-7)
    assert plan.scored.tokens == sum(len(s.completion_C) for s in samples if s.trainable)


def test_garbage_where_nothing_is_trained_changes_nothing(trainer) -> None:
    samples = ready(conversation(6))
    for s in samples[::4]:
        s.trainable, s.reason = False, "penalty"
    _, expected, _ = computed(trainer, samples, layout="tree")
    for s in samples[::4]:
        s.logprobs_C = np.full(len(s.completion_C), np.nan, dtype=np.float32)
        s.completion_C = np.full(len(s.completion_C), 10**6, dtype=np.int32)
        s.temperature, s.advantage = float("nan"), float("inf")
    _, found, _ = computed(trainer, samples, layout="tree")
    assert apart(found, expected) == 0.0


def test_each_call_has_its_own_temperature(trainer) -> None:
    hot, cold = conversation(7), conversation(7)
    for s in cold:
        s.temperature = 1.0
    a, b = (computed(trainer, ready(x), layout="merged")[2] for x in (hot, cold))
    for s in hot:
        same = a[s.call, 0] == pytest.approx(b[s.call, 0], abs=1e-5)
        assert same == (s.temperature == 1.0)


def test_a_sequence_that_went_astray_weighs_nothing(trainer) -> None:
    samples = ready(conversation(8))
    for s in samples:
        if s.episode == "g0e0":
            s.logprobs_C = s.logprobs_C - 20
    work = trainer.start(make_plan(samples))
    trainer.backward(work)
    astray = torch.tensor([samples[i].episode == "g0e0" for i in work.sample_T.tolist()])
    assert work.guarded_calls >= 3
    assert (work.importance_ratio_T[astray] == 0).all()
    assert (work.importance_ratio_T[~astray] > 0).any()
    assert (work.importance_ratio_T <= 2.0).all()


def test_prepared_batches_pass_through_and_trl_is_given_what_was_computed(trainer) -> None:
    assert trainer._prepare_inputs({"a": 1}) == {"a": 1}
    with pytest.raises(RuntimeError, match="outside of a loss"):
        trainer._get_per_token_logps_and_entropies(None)


def test_fresh_lora_is_the_base_model(tiny, tmp_path) -> None:
    trainer = make_trainer(make_config(tiny, tmp_path, beta=0.1), warm=False)
    work = trainer.start(make_plan(ready(conversation(1))))
    trainer.backward(work)
    assert torch.allclose(work.reference_logprobs_T, work.policy_logprobs_T, atol=1e-6)
