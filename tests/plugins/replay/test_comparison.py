from __future__ import annotations

import functools

import numpy as np
import pytest
from tests.support.replayed import recorded, tool_message

from slipstream.errors import ConfigError
from slipstream_proxy.control.gate.detector import BettingDetector
from slipstream_replay.comparison import (
    ROUND_ERROR_SHARES,
    CasePair,
    PairedTest,
    Questions,
    by_tools,
    checked,
    compare,
    groups_of,
    guard,
    least,
)
from slipstream_replay.steps import case_of

detect = functools.partial(BettingDetector, lump=1.0, rate=0.0, shifts=False)


def verdicts(
    p_candidate: float, p_control: float, *, replays: int, cases: int, samples: int = 8, steps: int = 1
) -> list[str]:
    """Of replays whose cases differ in difficulty and whose samples are successes or none. One of ``steps`` decides."""
    rng = np.random.default_rng(7)
    shell = case_of(recorded("e"))
    found: list[str] = []
    for _ in range(replays):
        hard = rng.uniform(-0.15, 0.15, cases)
        scores = [rng.binomial(samples, np.clip(p + hard, 0, 1)) / samples for p in (p_candidate, p_control)]
        made = []
        for n, (a, b) in enumerate(zip(*scores, strict=True)):
            case = case_of(shell.episode.model_copy(update={"id": f"e{n}"}))
            sides = [[{"message": {"score": x / steps}}] for x in (a, b)]
            case.steps[0].candidate, case.steps[0].control = sides
            made.append(case)
        found.append(compare("f", made, lambda _, r: r["message"]["score"], detect, 0.005).verdict)
    return found


def test_equal_versions_are_refused_no_more_often_than_the_level_says() -> None:
    assert verdicts(0.7, 0.7, replays=150, cases=200).count("worse") <= 3  # 0.75 expected at most


def test_one_step_of_three_decides() -> None:
    assert verdicts(0.6, 0.7, replays=40, cases=200, steps=3).count("worse") >= 38
    assert verdicts(0.7, 0.7, replays=60, cases=200, steps=3).count("worse") <= 1


def test_ten_points_are_found_in_two_hundred_cases() -> None:
    assert verdicts(0.6, 0.7, replays=60, cases=200).count("worse") >= 57
    assert verdicts(0.8, 0.7, replays=20, cases=200).count("worse") == 0


def test_a_spoiled_version_never_passes() -> None:
    assert verdicts(0.0, 0.7, replays=100, cases=60).count("worse") == 100


def rounds(loss: float, *, replays: int, own: float) -> tuple[int, int]:
    """Replays of 100 cases that are refused in their first round, and in any. Each case has an effect of its own."""
    rng = np.random.default_rng(11)
    first = later = 0
    for _ in range(replays):
        test = PairedTest("f", 0.01, detect, alike=True, rounds=ROUND_ERROR_SHARES)
        effects = rng.normal(-loss, own, 100)
        for turn in range(len(ROUND_ERROR_SHARES)):
            for n, x in enumerate(effects + rng.normal(0.0, 0.25, 100)):
                test.see(CasePair(f"e{n}", 0.5 + x / 2, 0.5 - x / 2, 0))
            first += turn == 0 and test.verdict == "worse"
            if not test.leans:
                break
            test.again()
        later += test.verdict == "worse"
        assert len(test.pairs) == 100
    return first, later


def test_a_round_that_leans_is_followed_by_another_one() -> None:
    first, later = rounds(0.08, replays=60, own=0.02)
    assert first < 30 and later > 44


def test_more_samples_of_the_same_cases_are_no_more_cases() -> None:
    assert rounds(0.0, replays=300, own=0.3)[1] <= 6  # 3 expected at most


def test_tool_calls_are_compared_whatever_the_rewards_but_never_of_the_record_with_itself() -> None:
    """The mean of equal rewards may lie above them all by a rounding."""
    for alike, expected in ((True, ["worse"]), (False, [])):
        questions = Questions(detect, 0.01, None, None, [0.1] * 24, alike=alike)
        for n in range(24):
            case = case_of(recorded(f"e{n}").model_copy(update={"reward": 0.1}))
            case.steps[0].candidate = [{"message": tool_message("drop"), "finish_reason": "stop"}]
            case.steps[0].control = [{"message": tool_message("find", name=f"e{n}"), "finish_reason": "stop"}]
            questions.see(case)
        assert [t.verdict for t in questions.asked if t.question == "tool calls"] == expected
        assert ("recorded calls themselves" in str(questions.note())) is not alike


def test_how_many_cases_are_needed_at_least() -> None:
    need = least(detect, 0.005)
    total_loss = [verdicts(-5.0, 5.0, replays=1, cases=n)[0] for n in (need - 1, need)]
    assert total_loss == ["undecided", "worse"]


def test_tools_and_guards() -> None:
    call = recorded("e1").call_list[0]
    assert by_tools(call, tool_message("find", name="e1")) == 1.0
    assert by_tools(call, tool_message("find", name="e2")) == 0.5
    assert by_tools(call, tool_message("drop", name="e1")) == by_tools(call, {"content": "done"}) == 0.0
    broken = tool_message("find")
    broken["tool_calls"][0]["function"]["arguments"] = "{"
    replies = [
        (broken, "tool_calls"),
        ({"content": "a"}, "length"),
        ({"refusal": "no"}, "stop"),
        ({"content": "I'm sorry, but I can't help with that."}, "stop"),
        ({"content": ""}, "stop"),
        ({"content": "a"}, "stop"),
    ]
    assert [guard({"message": m, "finish_reason": f}) for m, f in replies] == [
        "parse",
        "length",
        "refusal",
        "refusal",
        "empty",
        None,
    ]


@pytest.mark.parametrize(("broken", "verdict"), [(None, []), ("c3", ["f for tag.customer=c3"])])
def test_a_loss_for_one_customer_of_five_hides_behind_no_gain(broken: str | None, verdict: list[str]) -> None:
    names = [f"c{n % 5}" for n in range(100)]
    groups = [groups_of({"customer": name, "user": str(n)}, None) for n, name in enumerate(names)]
    questions = Questions(detect, 0.01, "f", lambda _, message: message["score"], groups=groups)
    assert questions.groups == [f"tag.customer=c{n}" for n in range(5)]  # a user's one case is no group
    for n, name in enumerate(names):
        case = case_of(recorded(f"e{n}").model_copy(update={"tags": {"customer": name, "user": str(n)}}))
        score = 0.0 if name == broken else 0.95
        case.steps[0].candidate, case.steps[0].control = (
            [{"message": {"content": "x", "score": x}}] for x in (score, 0.7)
        )
        questions.see(case)
    assert [t.question for t in questions.tests.values() if t.verdict == "worse"] == verdict
    assert questions.worse is bool(verdict) and questions.short(0) is None


@pytest.mark.parametrize("value", [1.5, "good", None])
def test_a_users_function_gives_numbers_from_0_to_1(value: object) -> None:
    with pytest.raises(ConfigError, match=r"my:f returned .*from 0 to 1"):
        checked(lambda *_: value, "my:f")(recorded("e1").call_list[0], {})
