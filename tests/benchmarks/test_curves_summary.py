"""What runs of tasks are summed up to."""

from __future__ import annotations

import pytest
from benchmarks.curves.summary import Run, fill_table, round_all, summarise


def run(seed: int, base: float, last: float, expert: float = 1.0, **more) -> Run:
    given = {
        "task": "words", "seed": seed, "success_base": base, "success_last": last, "error_base": 0.02, "error_last": 0.03,
        "expert": expert, "steps": 40, "episodes": 1200, "calls": 4000, "train_seconds": 360.0, "failed_calls": 0,
        "curve": {"versions": [], "steps": []},
    }  # fmt: skip
    return Run.model_validate(given | more)


@pytest.mark.parametrize(
    ("base", "last", "expert", "gain"),
    [(0.2, 0.6, 1.0, 0.5), (-0.5, 0.0, 0.5, 0.5), (0.4, 0.3, 0.5, -1.0), (1, 1, 1, 0)],
)
def test_the_gain_is_the_share_of_the_way_to_the_expert(base: float, last: float, expert: float, gain: float) -> None:
    assert run(0, base, last, expert).gain == pytest.approx(gain)


def test_the_gain_of_a_task_is_its_worst_seeds() -> None:
    rewarded = [run(0, 0.2, 0.9), run(1, 0.2, 0.6, steps=44), run(2, 0.2, 0.8)]
    found = summarise({("words", "reward"): rewarded, ("words", "ruler"): [run(0, 0.2, 0.52)]})
    assert found["tasks"]["words"] == {
        "base": 0.2,
        "last": 0.767,
        "expert": 1.0,
        "gain": 0.5,
        "gain_ruler": 0.4,
        "steps": 41,
        "seconds": 360,
        "seeds": 3,
    }


def versions(means: list[float], count: int = 10) -> dict:
    return {"versions": [{"version": i, "mean": m, "count": count} for i, m in enumerate(means)], "steps": []}


@pytest.mark.parametrize(
    ("steps", "means", "slide"),
    [
        (256, [0.2] * 4 + [0.9] * 4 + [0.8] * 4 + [0.6] * 4, 0.3),
        (256, [0.2] * 8 + [0.9] * 8, 0.0),
        (255, [0.2] * 8 + [0.9] * 8, None),
    ],
)
def test_a_long_run_says_how_far_it_slid_from_its_best(steps: int, means: list[float], slide: float | None) -> None:
    found = run(0, 0.2, 0.9, steps=steps, curve=versions(means))
    assert found.slide == (None if slide is None else pytest.approx(slide))
    given = {("words", "reward"): [run(1, 0.2, 0.8)], ("words", "long"): [found]}
    tasks = summarise(given)["tasks"]
    assert tasks["words"].get("slide") == (None if slide is None else pytest.approx(slide))
    assert tasks["words"] | {"slide": 0} == summarise({k: v for k, v in given.items() if "long" not in k})["tasks"][
        "words"
    ] | {"slide": 0}
    filled = fill_table("<!-- curves -->\n<!-- /curves -->\n", {"tasks": tasks})
    assert ("(images/curves/words-long.png)" in filled) == (slide is not None)


def test_a_version_with_few_episodes_weighs_little_in_the_slide() -> None:
    curve = versions([0.5] * 8)
    curve["versions"][0] |= {"mean": 1.0, "count": 1}
    assert run(0, 0.2, 0.9, steps=256, curve=curve).slide == pytest.approx((1.0 + 5.0) / 11 - 0.5)


def test_what_was_not_run_is_said() -> None:
    found = summarise({("words", "ruler"): [run(0, 0.2, 0.52)]})
    assert found["tasks"]["words"]["gain"] is None
    page = "before\n<!-- curves -->\nold\nlines\n<!-- /curves -->\nafter\n"
    filled = fill_table(page, found)
    assert "| words | 0.20 | 0.52 | 1.00 | not run | 0.40 | 40 | 360 | 1 |  |" in filled
    assert filled.startswith("before\n") and filled.endswith("after\n")
    assert "(images/curves/words.png)" in filled
    assert "old" not in filled
    assert fill_table(filled, found) == filled
    with pytest.raises(ValueError, match="no <!-- curves -->"):
        fill_table("before", found)


def test_figures_are_rounded_wherever_they_are() -> None:
    assert round_all({"a": [0.123456, (1, 2.00001)], "b": "x", "c": None}) == {
        "a": [0.1235, [1, 2.0]],
        "b": "x",
        "c": None,
    }
    kept = run(0, 0.1, 0.2, curve={"versions": [{"mean": 1 / 3}]}).rounded()
    assert Run.model_validate_json(kept.model_dump_json(exclude_none=True)) == kept
    assert kept.curve["versions"][0]["mean"] == 0.3333
