from __future__ import annotations

import json

from slipstream_proxy.control.gate.baseline import MAX_TASKS, Baseline


def test_the_baseline_is_the_controls_mean_moved_by_how_hard_the_task_is():
    baseline = Baseline()
    for _ in range(40):
        baseline.see(1.0, "easy", tested=False)
        baseline.see(0.0, "hard", tested=False)
    assert baseline.of("easy") > 0.85 and baseline.of("hard") < 0.15
    assert abs(baseline.of("never seen") - 0.5) < 0.05
    assert baseline.of("") == baseline.of("never seen")


def test_the_tested_arm_teaches_how_hard_tasks_are_but_not_how_good_the_control_is():
    baseline = Baseline()
    for _ in range(40):
        baseline.see(0.8, "", tested=False)
        baseline.see(0.6, "easy", tested=True)
        baseline.see(0.2, "hard", tested=True)
    assert abs(baseline.of("") - 0.8) < 0.01
    assert baseline.of("easy") > 0.9 and baseline.of("hard") < 0.7


def test_accepting_makes_the_tested_version_the_control():
    baseline = Baseline()
    for _ in range(20):
        baseline.see(0.2, "", tested=False)
        baseline.see(0.9, "", tested=True)
    baseline.accept()
    assert abs(baseline.of("") - 0.9) < 0.01


def test_moved_bounds_leave_the_rewards_what_they_are():
    baseline = Baseline()
    baseline.see(0.5, "", tested=False)  # reward 5 of 0 to 10
    baseline.rescale(0.0, 10.0, 0.0, 20.0)
    assert baseline.of("") == 0.25


def test_many_tasks_are_forgotten_oldest_first_and_all_is_kept_over_a_restart():
    baseline = Baseline()
    for i in range(MAX_TASKS + 5):
        baseline.see(1.0, f"t{i}", tested=False)
    assert len(baseline.tasks) == MAX_TASKS and "t0" not in baseline.tasks
    again = Baseline()
    again.load(json.loads(json.dumps(baseline.dump())))
    assert again.dump() == baseline.dump()
