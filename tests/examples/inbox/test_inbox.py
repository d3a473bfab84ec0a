"""The inbox's world: tasks, splits, tools and the ceiling."""

from __future__ import annotations

import pytest
from common.worlds import SPLITS
from inbox import inbox


def test_a_seed_makes_the_same_task_every_time() -> None:
    assert inbox.make_task(7) == inbox.make_task(7)
    assert inbox.make_task(7) != inbox.make_task(8)
    assert inbox.make_task(7).id == "inbox-7"


def test_names_are_distinct_and_the_answer_is_in_the_mailbox() -> None:
    for task in inbox.make_tasks("train", 300):
        assert len(task.mails) == inbox.MAILS
        assert len({mail.name for mail in task.mails}) == inbox.MAILS
        target = next(mail for mail in task.mails if mail.name == task.name)
        assert task.answer == target.day
        assert task.name in task.question.split()
        assert target.thing in task.question.split()


def test_all_four_wordings_are_asked() -> None:
    starts = {" ".join(task.question.split()[:2]) for task in inbox.make_tasks("train", 200)}
    assert starts == {"what day", "tell me", "do you", "please tell"}


def test_splits_and_runs_share_no_seed() -> None:
    ranges = [
        (inbox.task_seed(split, 0, seed), inbox.task_seed(split, 99_999, seed))
        for split in SPLITS
        for seed in (0, 1, 2, 9_999)
    ]
    for (_, last), (first, _) in zip(sorted(ranges), sorted(ranges)[1:], strict=False):
        assert last < first
    with pytest.raises(ValueError, match="not in"):
        inbox.task_seed("train", 100_000)


def test_held_out_tasks_are_not_training_tasks() -> None:
    train = {(task.question, task.mails) for task in inbox.make_tasks("train", 1000)}
    assert not any((task.question, task.mails) in train for task in inbox.make_tasks("eval", 1000))


def test_search_lists_the_first_two_that_hold_every_keyword() -> None:
    task = inbox.make_task(3)
    box = inbox.Mailbox(task)
    mail = task.mails[5]
    assert box.search(mail.name) == f"mail 5: {mail.thing} {mail.name}"
    assert box.search(f"{mail.thing} {mail.name}") == f"mail 5: {mail.thing} {mail.name}"
    assert box.hits("the") == [0, 1]
    assert box.search("the").count("mail") == 2
    assert box.search(f"{task.mails[0].name} {task.mails[1].name}") == inbox.NOTHING
    assert box.search("") == inbox.NOTHING
    assert box.search('"; DROP TABLE mail --') == inbox.NOTHING
    box.close()


def test_read_and_bad_arguments() -> None:
    task = inbox.make_task(3)
    box = inbox.Mailbox(task)
    assert box.read(11) == task.mails[11].body
    assert box.read(12) == inbox.NOTHING
    assert box.read(-1) == inbox.NOTHING
    assert box.call("read", '{"id": 4}') == task.mails[4].body
    assert box.call("read", '{"id": "4"}') == task.mails[4].body
    for tool, arguments in (
        ("read", '{"id": "x"}'),
        ("read", "{}"),
        ("read", "[]"),
        ("read", '{"id": null}'),
        ("search", "not json"),
        ("search", '{"word": "the"}'),
        ("delete", '{"id": 1}'),
    ):
        assert box.call(tool, arguments) == inbox.NOTHING
    box.close()


def test_reward_is_one_for_the_right_day_only() -> None:
    task = inbox.make_task(3)
    assert inbox.reward(task, task.answer) == 1.0
    assert inbox.reward(task, f" {task.answer.title()} ") == 1.0
    assert inbox.reward(task, next(day for day in inbox.DAYS if day != task.answer)) == 0.0
    assert inbox.reward(task, "") == 0.0
    assert inbox.reward(task, None) == 0.0


def test_the_scripted_ceiling_is_reached() -> None:
    tasks = inbox.make_tasks("eval", 500)
    assert sum(inbox.reward(task, inbox.good_searcher(task)) for task in tasks) / len(tasks) >= 0.98
