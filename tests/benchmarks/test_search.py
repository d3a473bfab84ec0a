"""The search plays and trains as the trainer does, on batches as the proxy makes them."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "curves"))

from search import arguments, configured
from search_run import Search, rounded
from search_sampler import merged_weights

from slipstream_trainer.step.step import train


def make(folder: Path, *words: str) -> Search:
    torch.set_num_threads(1)
    args = arguments(["tictactoe", "--held-out", "8", "--size", "4", "--groups", "4", "--device", "cpu", *words])
    return Search(args, configured(args, str(folder)))


def test_a_batch_is_groups_of_runs_of_an_item(tmp_path: Path) -> None:
    found = make(tmp_path).batch(3)
    assert [len(group) for group in found.rewards] == [4, 4, 4]
    runs: dict[str, set[str]] = {}
    for s in found.samples:
        runs.setdefault(s.group, set()).add(s.run)
        assert s.kind == "task"
        assert len(s.logprobs_C) == len(s.completion_C) > 0
    assert [len(runs[g]) for g in sorted(runs)] == [4, 4, 4]
    first = {s.group: tuple(s.prompt_P) for s in found.samples if s.number == 0}
    assert all(tuple(s.prompt_P) == first[s.group] for s in found.samples if s.number == 0)
    assert len(set(first.values())) == 3


def test_the_policy_that_samples_is_the_policy_that_is_trained(tmp_path: Path) -> None:
    """After steps that move it: sampled log-probabilities are the trainer's own."""
    searched = make(tmp_path, "--set", "trainer.max_kl=10", "--learning-rate", "0.01")
    before = searched.sampler.model.get_parameter("model.layers.0.self_attn.q_proj.weight").clone()
    for _ in range(3):
        batch = searched.batch(4)
        gap = train(searched.trainer, batch.samples, searched.pace, searched.steps).figures["logprob_gap_max"]
        assert gap < 2e-3
        searched.versions.append(merged_weights(searched.trainer.model))
    assert not torch.allclose(before, searched.sampler.model.get_parameter("model.layers.0.self_attn.q_proj.weight"))


def test_settings_reach_the_trainer(tmp_path: Path) -> None:
    t = make(
        tmp_path, "--target-kl", "0.01", "--loss", "grpo", "--set", "trainer.is_max=3.0", "--lora-rank", "4"
    ).config.trainer
    assert (t.target_kl, t.loss, t.is_max, t.lora_rank) == (0.01, "grpo", 3.0, 4)
    default = make(tmp_path).config.trainer
    assert (default.target_kl, default.loss, default.learning_rate) == (0.003, "cispo", "auto")


@pytest.mark.parametrize(("groups", "wanted"), [("1", 4), ("9", 9), ("99", 16)])
def test_a_step_has_as_many_groups_as_the_trainer_takes(tmp_path: Path, groups: str, wanted: int) -> None:
    assert make(tmp_path, "--groups", groups).wanted() == wanted


def test_groups_of_equal_rewards_can_be_left_uncounted(tmp_path: Path) -> None:
    found = make(tmp_path, "--informative", "--size", "2").batch(4)
    unequal = [group for group in found.rewards if np.ptp(group) > 0]
    assert len(unequal) == 4
    assert len(found.rewards) > 4
    assert found.equal == pytest.approx(1 - 4 / len(found.rewards))
    assert len({s.group for s in found.samples}) == len(found.rewards)


def test_an_old_version_samples(tmp_path: Path) -> None:
    searched = make(tmp_path, "--stale", "2")
    assert {s.staleness for s in searched.batch(1).samples} == {0}
    for _ in range(3):
        searched.step()
    assert {s.staleness for s in searched.batch(1).samples} == {2}
    assert len(searched.versions) == 3
    moved = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(searched.sampler.model.get_parameter(moved), searched.versions[0][moved])


def test_cut_replies_can_be_left_out(tmp_path: Path) -> None:
    searched = make(tmp_path, "--leave-out-cut")
    searched.sampler.tokens = 2
    found = searched.batch(2)
    assert found.cut_tokens == sum(len(s.completion_C) for s in found.samples) > 0
    assert {s.reason for s in found.samples} == {"cut"}
    assert searched.step()["cut_text"]


def test_two_gradients_of_one_batch_agree(tmp_path: Path) -> None:
    searched = make(tmp_path)
    batch = searched.batch(4)
    first, second = searched.gradient(batch), searched.gradient(batch)
    assert first is not None
    assert second is not None
    assert torch.nn.functional.cosine_similarity(first, second, dim=0) == pytest.approx(1, abs=1e-3)
    assert -1 <= (searched.agreement(3) or 0) < 0.999
    assert searched.steps == 0


def test_a_run_has_a_curve_and_its_gain(tmp_path: Path) -> None:
    found = make(tmp_path, "--steps", "3", "--every", "2").run()
    held = [point["held_out"] for point in found["curve"] if "held_out" in point]
    assert [point["step"] for point in found["curve"]] == [0, 1, 2, 3]
    assert len(held) == 3
    assert found["gain"] == pytest.approx((held[-1] - held[0]) / (found["expert"] - held[0]))
    assert found["gain_late"] == found["gain"]
    assert found["episodes"] == 3 * 4 * 4
    point = found["curve"][1]
    assert {"reward", "entropy", "kl", "grad_norm", "equal", "cut_tokens"} <= set(point)
    assert statistics.fmean([point["equal"], point["cut_tokens"]]) <= 1


def test_settings_change_on_the_way(tmp_path: Path) -> None:
    searched = make(
        tmp_path, "--then", "2:target_kl=0.01", "--then", "2:size=2", "--average", "--steps", "2", "--every", "1"
    )
    found = searched.run()
    assert found["episodes"] == 4 * 4 + 4 * 2
    assert searched.config.trainer.target_kl == 0.01
    assert all("held_out_average" in point for point in found["curve"][1:])
    name = "model.layers.0.self_attn.q_proj.weight"
    old, new = searched.sampler.model.get_parameter(name), searched.versions[-1][name]
    assert torch.equal(old, searched.average[name])
    assert not torch.equal(old, new)


def test_the_time_ends_a_run(tmp_path: Path) -> None:
    found = make(tmp_path, "--steps", "50", "--seconds", "0").run()
    assert found["steps"] == 1
    assert "held_out" in found["curve"][-1]


def test_figures_are_rounded() -> None:
    assert rounded({"a": [0.123456789, (1, 2.000001)], "b": "x"}) == {"a": [0.1235, [1, 2.0]], "b": "x"}


def test_a_task_or_a_grid_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments([])
    assert "name a task" in capsys.readouterr().err
