from __future__ import annotations

import threading

from slipstream_proxy.store.tables.memory import Clocks, ExactFigure, PacedFigure


class Clock:
    def __init__(self):
        self.now = Clocks(0.0, 0.0)

    def __call__(self):
        return self.now

    def spend(self, wall: float, work: float = 0.0):
        self.now = Clocks(self.now.wall + wall, self.now.work + work)


def figure_of(clock, *, wall: float, work: float):
    looks = []

    def look():
        clock.spend(wall, work)
        looks.append(1)
        return len(looks)

    figure = PacedFigure(clock)
    return lambda key="k": figure.get(key, look)


def test_a_cheap_figure_is_always_looked_up():
    ask = figure_of(Clock(), wall=0.4, work=0.04)
    assert [ask(), ask(), ask()] == [1, 2, 3]


def test_a_dear_one_is_good_for_as_long_as_it_takes_a_small_share():
    clock = Clock()
    ask = figure_of(clock, wall=1.0, work=1.0)
    assert [ask(), ask()] == [1, 1]
    clock.spend(24.9)
    assert ask() == 1
    clock.spend(0.2)
    assert ask() == 2


def test_a_wait_for_the_database_counts_too_and_each_key_has_its_own():
    clock = Clock()
    ask = figure_of(clock, wall=2.0, work=0.0)
    assert [ask("a"), ask("b"), ask("a"), ask("b")] == [1, 2, 1, 2]


def test_who_comes_while_somebody_looks_gets_what_was_found_before():
    clock, looking, go_on = Clock(), threading.Event(), threading.Event()
    figure = PacedFigure(clock)
    assert figure.get("k", lambda: 1) == 1

    def slow() -> int:
        looking.set()
        go_on.wait(10)
        return 2

    thread = threading.Thread(target=lambda: figure.get("k", slow))
    thread.start()
    looking.wait(10)
    assert figure.get("k", lambda: 3) == 1
    go_on.set()
    thread.join()
    assert figure.get("k", lambda: 4) == 4


def test_a_look_that_fails_is_tried_again():
    figure = PacedFigure(Clock())
    for _ in range(2):
        try:
            figure.get("k", lambda: 1 / 0)
        except ZeroDivisionError:
            continue
        raise AssertionError
    assert figure.get("k", lambda: 5) == 5


def test_an_exact_one_is_looked_up_once_for_each_stand_of_the_store():
    figure: ExactFigure[int] = ExactFigure()
    assert [figure.get(1, lambda: 10), figure.get(1, lambda: 11), figure.get(2, lambda: 12)] == [10, 10, 12]
    assert [figure.get(None, lambda: 13), figure.get(None, lambda: 14), figure.get(2, lambda: 15)] == [13, 14, 12]


def test_a_dear_one_of_a_store_that_stands_the_same_is_still_true():
    clock = Clock()
    figure: PacedFigure[int] = PacedFigure(clock)
    assert [figure.get("k", lambda: 1, 7), figure.get("k", lambda: 2, 7), figure.get("k", lambda: 3, 8)] == [1, 1, 3]
    assert [figure.get("k", lambda: 4, None), figure.get("k", lambda: 5, None)] == [4, 5]
