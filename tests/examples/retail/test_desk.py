"""The service desk: cases are of a seed, the database ends as the policy says, and each way to break the policy costs the reward."""

from __future__ import annotations

import random
from itertools import islice

import pytest
from retail.desk import BYE, PLEAD, YES, Case, Desk, cases, make_case, right_end
from retail.domains import AGES, AIRLINE, RETAIL
from retail.players import EXPERT, PLAYERS, expert_reward, play

SOME = list(islice(cases("eval"), 400))


def case_with(mind: str, **wanted: object) -> Case:
    """A held-out case of a kind."""
    return next(
        c for c in islice(cases("eval"), 5000) if c.mind == mind and all(getattr(c, k) == v for k, v in wanted.items())
    )


def test_the_policies_allow_what_their_words_say() -> None:
    for age in AGES:
        for state in RETAIL.states:
            assert RETAIL.allows("cancel", state, age) == (state == "pending")
            assert RETAIL.allows("return", state, age) == (state == "delivered" and age <= 30)
            assert RETAIL.allows("exchange", state, age) == (state == "delivered" and age <= 15)
        for state in AIRLINE.states:
            assert AIRLINE.allows("cancel", state, age) == (state == "business" or age <= 20)
            assert AIRLINE.allows("change", state, age) == (state != "basic")
            assert AIRLINE.allows("upgrade", state, age) == (state == "economy" or (state == "basic" and age <= 30))


def test_a_case_is_its_seed_and_held_out_cases_are_never_trained_on() -> None:
    assert make_case(5) == make_case(5)
    ids = [
        {c.id for c in islice(cases(split, seed), 300)} for split in ("train", "eval", "pretrain") for seed in (0, 1)
    ]
    assert sum(map(len, ids)) == len(set.union(*ids)) == 1800


def test_customers_are_of_every_kind() -> None:
    kinds = {(c.mind, c.domain.name) for c in SOME}
    assert kinds == {(mind, name) for mind in ("", "change", "refused", "then") for name in ("retail", "airline")}
    wrong = sum(c.told != c.record(c.wishes[0]).id for c in SOME) / len(SOME)
    assert 0.4 < wrong < 0.6, "about half of the customers name somebody else's record"
    assert any(c.wrong_code is not None for c in SOME)


def test_the_right_end_is_the_last_wish_where_it_is_allowed() -> None:
    """Against a statement of its own: at most one change, of the customer's own record, and allowed."""
    for case in SOME:
        end = right_end(case)
        assert len(end) <= 1
        last = case.wishes[-1]
        record = next(r for r in case.records if (r.code, r.thing) == (case.code, last.thing))
        fine = case.domain.allows(last.action, record.state, record.age)
        assert end == ({record.id: last.action} if fine else {})


def test_the_expert_is_always_right_and_the_careless_are_not() -> None:
    assert expert_reward(SOME) == 1.0
    rng = random.Random(0)
    means = [sum(play(case, player, rng)[0].reward for case in SOME) / len(SOME) for player in PLAYERS]
    assert means == sorted(means)
    assert 0.1 < means[0] < 0.3
    assert 0.7 < means[-1] < 0.95


def steps(case: Case) -> list[tuple[str, object]]:
    """What serves a case without a change of mind: tools with numbers, and words."""
    wish = case.wishes[0]
    record = case.record(wish).id
    return [
        ("customer", case.code),
        (case.domain.record, record),
        ("say", f"{wish.action} {record}?"),
        (wish.action, record),
        ("say", "done"),
    ]


def run(case: Case, what: list[tuple[str, object]]) -> Desk:
    desk = Desk(case)
    desk.opening()
    for name, value in what:
        desk.say(str(value)) if name == "say" else desk.call(name, value)
    return desk


def test_the_plain_way_earns_the_reward() -> None:
    case = case_with("")
    assert run(case, steps(case)).reward == 1.0


@pytest.mark.parametrize(
    ("skipped", "why"),
    [(0, "before the customer was looked up"), (2, "without a yes"), (3, "said that something was done")],
)
def test_a_skipped_step_costs_the_reward(skipped: int, why: str) -> None:
    case = case_with("")
    what = steps(case)
    desk = run(case, what[:skipped] + what[skipped + 1 :])
    assert desk.reward == 0.0
    assert why in "; ".join(desk.broken)


def test_a_yes_is_for_one_change_once() -> None:
    case = case_with("")
    what = steps(case)
    other = next(r.id for r in case.records if r.code == case.code and r.thing != case.wishes[0].thing)
    assert run(case, [*what[:4], (case.wishes[0].action, other), what[4]]).broken
    assert run(case, [*what[:3], ("say", "one moment"), *what[3:]]).broken, "something else was said in between"


def test_somebody_elses_record_may_be_agreed_to_and_is_wrong_all_the_same() -> None:
    case = next(c for c in SOME if not c.mind and c.told != c.record(c.wishes[0]).id)
    action = case.wishes[0].action
    desk = Desk(case)
    desk.call("customer", case.code)
    assert desk.say(f"{action} {case.told}?") == YES, "the customer believes the number that he or she named"
    desk.call(action, case.told)
    desk.say("done")
    assert not desk.broken
    assert desk.reward == 0.0


def test_a_customer_who_may_not_pleads_and_leaves() -> None:
    case = case_with("refused", pleads=2)
    desk = run(case, steps(case)[:2])
    assert [desk.say("I am sorry, that is not allowed.") for _ in range(3)] == [PLEAD, PLEAD, BYE]
    assert desk.reward == 1.0
    assert run(case, steps(case)).reward == 0.0, "to give in is wrong"


def test_a_changed_mind_counts() -> None:
    case = case_with("change")
    desk = run(case, steps(case))
    assert desk.wish == 1
    assert desk.reward == 0.0
    assert play(case, EXPERT, random.Random(0))[0].changes == right_end(case)


def test_a_customer_who_is_not_understood_gives_up() -> None:
    desk = run(case_with("refused"), [("say", "hm"), ("say", "hm")])
    assert desk.left
    assert desk.reward == 0.0


def test_arguments_that_are_no_number_find_nothing() -> None:
    desk = Desk(SOME[0])
    assert desk.call("customer", "x") == "no customer"
    assert desk.call("fly", 3) == "no such tool"
