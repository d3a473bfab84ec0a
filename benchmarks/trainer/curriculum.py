"""Which groups should a step take when more wait than it takes? The simulated policy of step_size.py, and a trainer that is slower than its agents.

    python benchmarks/trainer/curriculum.py [--steps 400] [--seeds 8]

Between two steps agents finish `--arrive` groups. A step takes at most `--most` of those that wait and teach. A group that waited more than `max_staleness` steps is lost.
`begins` is the share of tasks that are solved from the start. The rules:

    oldest     the oldest groups first
    spread     every other place for the group whose rewards differ most, the others for the oldest
    hard       every other place for the group whose good runs are the rarest (store/write/batches.py)
    once       no task twice while another waits

The last line is JSON: of each rule, the steps until 90 % of the reachable reward, the last reward, and the reward of the worst eighth of the tasks.
"""

from __future__ import annotations

import argparse
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
from step_size import ANSWERS, FEATURES, GOOD, GROUP, HIDDEN, SCALE, TASKS, World

from slipstream.settings import TrainerConfig
from slipstream_proxy.store.write.batches import hard_first
from slipstream_trainer.algorithm.learning_rate import StepPace

RULES = ("oldest", "spread", "hard", "once")


def order(rule: str, groups: list[Any]) -> list[int]:
    """Places of the groups, which come the oldest first, in the order in which a step takes them."""
    places = list(range(len(groups)))
    if rule == "oldest":
        return places
    if rule == "hard":
        return hard_first(places, {n: 1.0 - float(g[3].mean()) for n, g in enumerate(groups)})
    if rule == "spread":
        return hard_first(places, {n: float(g[3].std()) for n, g in enumerate(groups)})
    seen: dict[int, int] = {}
    turn = {}
    for n, g in enumerate(groups):
        turn[n] = seen[g[1]] = seen.get(g[1], -1) + 1
    return sorted(places, key=lambda n: turn[n])


def begin(random: np.random.Generator, solved: float) -> World:
    """A world in which that share of the tasks is solved: for them the policy has learned the answer."""
    world = World.make(random)
    for _ in range(400 if solved else 0):
        policy_TA = world.policy()
        known_T = np.arange(TASKS) < solved * TASKS
        target_TA = np.eye(ANSWERS)[world.right_T]
        world.weights_FA += 4.0 * world.features_TF[known_T].T @ (target_TA - policy_TA)[known_T] / TASKS
    return world


def learn(rule: str, solved: float, seed: int, args: argparse.Namespace) -> dict[str, float]:
    random = np.random.default_rng(seed)
    world, t, pace = begin(random, solved), TrainerConfig(), StepPace()
    m_FA, v_FA = np.zeros((FEATURES, ANSWERS)), np.zeros((FEATURES, ANSWERS))
    queue: list[tuple[int, int, Any, Any, Any]] = []
    there, steps = args.steps, 0
    often_T = 1.0 / (1.0 + random.permutation(TASKS)) ** args.skew
    often_T /= often_T.sum()
    for now in range(args.steps):
        policy_TA = world.policy()
        for task in random.choice(TASKS, size=args.arrive, p=often_T):
            answers_G = random.choice(ANSWERS, GROUP, p=policy_TA[task])
            rewards_G = (answers_G == world.right_T[task]).astype(float)
            if rewards_G.std() > 0:
                queue.append((now, int(task), answers_G, rewards_G, policy_TA[task]))
        queue = [g for g in queue if now - g[0] <= t.max_staleness]
        chosen = order(rule, queue)[: args.most]
        teaching = [queue[n] for n in chosen]
        queue = [g for n, g in enumerate(queue) if n not in set(chosen)]
        if not teaching:
            continue
        slope_FA, episodes = np.zeros_like(m_FA), len(teaching) * GROUP
        for _, task, answers_G, rewards_G, old_A in teaching:
            advantage_G = (rewards_G - rewards_G.mean()) / (rewards_G.std() + 1e-4)
            weight_G = np.minimum(policy_TA[task][answers_G] / old_A[answers_G], t.is_max) * advantage_G
            push_A = np.bincount(answers_G, weight_G, ANSWERS) - weight_G.sum() * policy_TA[task]
            slope_FA += np.outer(world.features_TF[task], push_A) / episodes
        slope_FA *= min(1.0, 1.0 / max(1e-12, float(np.linalg.norm(slope_FA))))
        scored: Any = SimpleNamespace(unit_T=np.arange(episodes), advantage_T=np.ones(episodes), units=episodes, tokens=episodes, hinted_T=None)  # fmt: skip
        reach = pace.reach(t, HIDDEN, scored, steps)
        steps += 1
        m_FA += 0.1 * (slope_FA - m_FA)
        v_FA += 0.001 * (slope_FA**2 - v_FA)
        world.weights_FA += SCALE * reach.rate * (m_FA / (1 - 0.9**steps)) / (np.sqrt(v_FA / (1 - 0.999**steps)) + 1e-8)
        after_TA = world.policy()
        asked = [g[1] for g in teaching]
        kl = float((policy_TA * np.log(policy_TA / after_TA)).sum(-1)[asked].mean())
        pace.note(t, reach, kl, undone=False)
        if there == args.steps and world.reward() >= GOOD:
            there = now + 1
    right_T = np.sort(world.policy()[np.arange(TASKS), world.right_T])
    return {"steps": there, "reward": world.reward(), "worst_eighth": float(right_T[: TASKS // 8].mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--arrive", type=int, default=96, help="groups between two steps")
    parser.add_argument("--most", type=int, default=8, help="groups that a step takes")
    parser.add_argument("--skew", type=float, default=0.0, help="how unequally often tasks come (Zipf's exponent)")
    args = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for solved in (0.0, 0.8):
        for rule in RULES:
            got = [learn(rule, solved, seed, args) for seed in range(args.seeds)]
            name = f"{rule}, {solved:.0%} solved"
            found[name] = {k: round(float(np.mean([g[k] for g in got])), 3) for k in got[0]}
            print(name, found[name], flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
