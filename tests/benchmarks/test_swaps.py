"""What the bench of swaps calls a wrong token."""

from benchmarks.engine.swaps import Call, Gaps, Span, tokens_seen

ALONE = {"m": [7, 8], "m@1": [11, 11], "m@2": [22, 22]}


def seen(*calls: tuple[str, list[int]]):
    return tokens_seen([Call(adapter, ids, []) for adapter, ids in calls], ALONE, "m")


def test_an_adapter_s_own_answer_is_right():
    found = seen(("m@1", [11, 11]), ("m@2", [22, 22]), ("m", [8, 9]))
    assert (found.of_another, found.of_none, found.in_base_calls, found.adapters) == (0, 0, 0, set())


def test_a_token_of_another_adapter_is_wrong():
    found = seen(("m@1", [11, 22]))
    assert (found.of_another, found.adapters) == (1, {"m@1"})


def test_a_token_that_no_adapter_says_is_wrong_too():
    found = seen(("m@2", [22, 5]), ("m@1", [11, 7]))
    assert (found.of_another, found.of_none, found.adapters) == (0, 2, {"m@1", "m@2"})


def test_the_base_model_says_no_adapter_s_token():
    assert seen(("m", [11, 22])).in_base_calls == 2


def test_a_token_that_the_adapter_says_alone_in_a_larger_batch_is_its_own():
    calls = [Call("m@1", [11, 12], []), Call("m@2", [22, 5], [])]
    found = tokens_seen(calls, ALONE, "m", {"m@1": {11, 12}})
    assert (found.rounded, found.of_none, found.of_another, found.adapters, found.calls) == (1, 1, 0, {"m@2"}, 1)


def test_what_an_adapter_says_alone_does_not_excuse_another() -> None:
    found = tokens_seen([Call("m@1", [11, 22], [])], ALONE, "m", {"m@2": {22, 11}})
    assert (found.rounded, found.of_another, found.calls) == (0, 1, 1)


def test_gaps_are_those_of_the_span_that_they_end_in() -> None:
    gaps = Gaps([Call("m@1", [1] * 4, [0.0, 1.0, 1.5, 4.0]), Call("m@2", [1] * 2, [1.0, 1.25])])
    assert gaps.within(Span(1.0, 1.5)) == [1.0, 0.25, 0.5]
    assert gaps.within(Span(5.0, 6.0)) == []


def test_the_longest_gap_is_the_median_over_the_spans() -> None:
    gaps = Gaps([Call("m@1", [1] * 6, [0.0, 1.0, 3.0, 3.5, 7.5, 8.0])])
    assert gaps.longest([Span(0.5, 1.5), Span(2.5, 3.6), Span(7.0, 9.0)]) == 2.0
    assert gaps.longest([Span(9.0, 10.0)]) == 0.0


def test_a_span_is_cut_into_whole_pieces() -> None:
    assert Span(1.0, 2.25).cut(0.5) == [Span(1.0, 1.5), Span(1.5, 2.0)]
