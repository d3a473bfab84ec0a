"""How many groups should a step wait for? A simulated policy that learns from groups of runs, at the shipped pace.

    python benchmarks/trainer/step_size.py [--runs 6000] [--seeds 8]

The policy is a softmax over 16 answers, linear in 48 features that all tasks share. It begins where 15 % of its answers
are right, as a small instruct model does. A run is one answer; eight runs of a task are a group; advantages, Adam, the
learning rate and its steering are the trainer's (``learning_rate.py``). Groups whose rewards are all equal teach
nothing. Each rule says when a step is taken:

    scored N     as soon as N groups are scored, whatever their rewards
    signal N     as soon as N groups with different rewards are there

The last line is JSON: of each rule the runs until 90 % of the reachable reward, steps and versions to there, and steps
in all. A step is worth less the fewer groups teach in it; what each run teaches should not depend on it.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream.settings import TrainerConfig
from slipstream_trainer.algorithm.learning_rate import StepPace

FEATURES, ANSWERS, TASKS, GROUP = 48, 16, 64, 8
HIDDEN = 576
"""Of the model whose first learning rate is meant."""
SCALE = 40.0
"""How far one unit of the trainer's learning rate moves these weights: a step at the first rate is on target."""
GOOD = 0.9
Floats = npt.NDArray[np.float64]


def softmax(x: Floats) -> Floats:
    e = np.exp(x - x.max(-1, keepdims=True))
    found: Floats = e / e.sum(-1, keepdims=True)
    return found


@dataclass
class World:
    """Tasks, their right answers, and a policy that is right now and then."""

    features_TF: Floats
    right_T: npt.NDArray[np.int64]
    weights_FA: Floats

    @classmethod
    def make(cls, random: np.random.Generator) -> World:
        features_TF = random.normal(size=(TASKS, FEATURES)) / np.sqrt(FEATURES)
        truth_FA = random.normal(size=(FEATURES, ANSWERS))
        right_T = (features_TF @ truth_FA).argmax(-1)
        return cls(features_TF, right_T, 0.6 * truth_FA + random.normal(size=truth_FA.shape))

    def policy(self) -> Floats:
        return softmax(self.features_TF @ self.weights_FA)

    def reward(self) -> float:
        return float(self.policy()[np.arange(TASKS), self.right_T].mean())


def learn(least: int, by_signal: bool, runs: int, seed: int) -> dict[str, Any]:
    """One run of a rule."""
    random = np.random.default_rng(seed)
    world, t, pace = World.make(random), TrainerConfig(), StepPace()
    m_FA, v_FA = np.zeros((FEATURES, ANSWERS)), np.zeros((FEATURES, ANSWERS))
    steps, curve, queue = 0, [], []
    for n in range(runs // GROUP):
        policy_TA = world.policy()
        task = int(random.integers(TASKS))
        answers_G = random.choice(ANSWERS, GROUP, p=policy_TA[task])
        rewards_G = (answers_G == world.right_T[task]).astype(float)
        queue.append((task, answers_G, rewards_G))
        teaching = [g for g in queue if g[2].std() > 0]
        if (len(teaching) if by_signal else len(queue)) < least or not teaching:
            queue = queue if by_signal or len(queue) < least else []
            continue
        queue = []
        slope_FA, episodes = np.zeros_like(m_FA), len(teaching) * GROUP
        for task, answers_G, rewards_G in teaching:
            advantage_G = (rewards_G - rewards_G.mean()) / (rewards_G.std() + 1e-4)
            push_A = np.bincount(answers_G, advantage_G, ANSWERS) - advantage_G.sum() * policy_TA[task]
            slope_FA += np.outer(world.features_TF[task], push_A) / episodes
        slope_FA *= min(1.0, 1.0 / max(1e-12, float(np.linalg.norm(slope_FA))))
        units = np.arange(episodes)
        scored: Any = SimpleNamespace(
            unit_T=units, advantage_T=np.ones(episodes), units=episodes, tokens=episodes, hinted_T=None
        )  # fmt: skip
        reach = pace.reach(t, HIDDEN, scored, steps)
        steps += 1
        m_FA += 0.1 * (slope_FA - m_FA)
        v_FA += 0.001 * (slope_FA**2 - v_FA)
        step_FA = (m_FA / (1 - 0.9**steps)) / (np.sqrt(v_FA / (1 - 0.999**steps)) + 1e-8)
        world.weights_FA += SCALE * reach.rate * step_FA
        after_TA = world.policy()
        asked = [g[0] for g in teaching]
        kl = float((policy_TA * np.log(policy_TA / after_TA)).sum(-1)[asked].mean())
        pace.note(t, reach, kl, undone=False)
        curve.append(((n + 1) * GROUP, world.reward(), steps))
    best = max(r for _, r, _ in curve)
    there = next(((x, s) for x, r, s in curve if r >= GOOD), (runs, steps))
    return {"runs": there[0], "steps": there[1], "steps_in_all": steps, "reward": curve[-1][1], "best": best}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=24_000)
    parser.add_argument("--seeds", type=int, default=8)
    args = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for by_signal in (False, True):
        for least in (1, 2, 4, 8, 16):
            rule = f"{'signal' if by_signal else 'scored'} {least}"
            got = [learn(least, by_signal, args.runs, seed) for seed in range(args.seeds)]
            found[rule] = {k: round(float(np.mean([g[k] for g in got])), 3) for k in got[0]}
            print(rule, found[rule], flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
