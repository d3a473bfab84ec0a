"""Compact capture inside vLLM's own classes: what it collects equals what vLLM's objects say, whatever is merged or sliced on the way."""

from __future__ import annotations

import json
from array import array
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.packed_engine import entry_of

pytest.importorskip("vllm")

from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.logprobs import LogprobsProcessor
from vllm.v1.outputs import LogprobsLists

from slipstream_vllm import capture, packing
from slipstream_vllm.core_outputs import PACKED_MARK

update = capture.appending_floats(LogprobsProcessor._update_sample_logprobs)
make = capture.collecting_floats(LogprobsProcessor.from_new_request)


def processor(*, packed: bool) -> LogprobsProcessor:
    params = SamplingParams(logprobs=0, extra_args={PACKED_MARK: 1} if packed else None)
    return make(LogprobsProcessor, None, SimpleNamespace(sampling_params=params))


def rows(tokens: list[tuple[int, float]]) -> LogprobsLists:
    ids = np.array([[t] for t, _ in tokens], dtype=np.int32)
    logprobs = np.array([[x] for _, x in tokens], dtype=np.float32)
    return LogprobsLists(ids, logprobs, np.ones(len(tokens), dtype=np.int32), None)


TOKENS = st.lists(
    st.lists(st.tuples(st.integers(0, 50000), st.floats(-50, 0, width=32)), min_size=1, max_size=3),
    min_size=1,
    max_size=8,
)


@settings(deadline=None)
@given(TOKENS)
def test_floats_are_what_vllms_objects_hold(steps: list[list[tuple[int, float]]]) -> None:
    plain, packed = processor(packed=False), processor(packed=True)
    for step in steps:
        update(plain, rows(step))
        update(packed, rows(step))
    ids = [t for step in steps for t, _ in step]
    assert isinstance(packed.logprobs, array)
    expected = [row[i].logprob for i, row in zip(ids, plain.logprobs, strict=True)]
    assert list(packed.logprobs) == expected
    assert packed.cumulative_logprob == pytest.approx(plain.cumulative_logprob)


def output(ids: list[int], logprobs: Any, index: int = 0) -> CompletionOutput:
    return CompletionOutput(index=index, text="", token_ids=ids, cumulative_logprob=0.0, logprobs=logprobs)


def request_output(*outputs: CompletionOutput, prompt: tuple[int, ...] = (1, 2)) -> RequestOutput:
    return RequestOutput("r", None, list(prompt), None, list(outputs), False)


@settings(deadline=None)
@given(TOKENS)
def test_outputs_that_vllm_merges_keep_one_logprob_an_id(steps: list[list[tuple[int, float]]]) -> None:
    merged: RequestOutput | None = None
    for step in steps:
        new = request_output(output([t for t, _ in step], array("f", [x for _, x in step])))
        if merged is None:
            merged = new
        else:
            merged.add(new, aggregate=True)
    assert merged is not None
    (made,) = merged.outputs
    assert list(made.token_ids) == [t for step in steps for t, _ in step]
    assert list(capture.logprobs_of(made)) == [x for step in steps for _, x in step]


def test_objects_that_the_client_asked_for_are_packed_too() -> None:
    plain = processor(packed=False)
    update(plain, rows([(7, -0.5), (9, -1.5)]))
    assert list(capture.logprobs_of(output([7, 9], plain.logprobs))) == [-0.5, -1.5]


class Asked(SimpleNamespace):
    model_extra = {capture.CAPTURE_FIELD: 1}
    n = 1


async def results(*found: RequestOutput) -> AsyncIterator[RequestOutput]:
    for one in found:
        yield one


async def test_a_stream_carries_what_was_sampled_since_its_last_event() -> None:
    async def original(self: object, request: object, found: AsyncIterator[RequestOutput]) -> AsyncIterator[str]:
        async for result in found:
            if result.outputs[0].token_ids != [11]:  # held back, as a tool parser does
                yield f'data: {{"id":"{result.outputs[0].index}"}}\n\n'
        yield "data: [DONE]\n\n"

    steps = [request_output(output([t], array("f", [-1.0]))) for t in (10, 11, 12)]
    events = [e async for e in capture.streaming(original)(None, Asked(), results(*steps))]
    first, second = (json.loads(e[6:])["slipstream"] for e in events[:2])
    assert first == packing.pack([(0, [1, 2])], [(0, [10], [-1.0])])
    assert second == packing.pack([], [(0, [11], [-1.0]), (0, [12], [-1.0])])
    assert events[2] == "data: [DONE]\n\n"


async def test_what_no_event_carried_comes_before_the_end() -> None:
    async def original(self: object, request: object, found: AsyncIterator[RequestOutput]) -> AsyncIterator[str]:
        async for _ in found:
            pass
        yield "data: [DONE]\n\n"

    found = results(request_output(output([10], array("f", [-1.0]))))
    (event,) = [e async for e in capture.streaming(original)(None, Asked(), found)]
    extra, done, _ = event.split("\n\n")
    assert json.loads(extra[6:])["slipstream"]["c"]
    assert done == "data: [DONE]"


def test_a_call_that_does_not_ask_gets_the_engines_own_generator() -> None:
    events = iter(())

    def original(*_: object) -> Iterator[str]:
        return events

    request = SimpleNamespace(model_extra=None)
    assert capture.streaming(original)(None, request, None) is events  # type: ignore[arg-type, comparison-overlap]


@pytest.mark.parametrize("extra", [None, {}, {capture.CAPTURE_FIELD: 0}])
def test_only_those_that_ask_are_captured(extra: object) -> None:
    assert not capture.asked(SimpleNamespace(model_extra=extra))


def test_echo_is_never_captured() -> None:
    assert not capture.asked(SimpleNamespace(model_extra={capture.CAPTURE_FIELD: 1}, echo=True))


def test_the_clients_own_logprobs_keep_their_meaning() -> None:
    params = SamplingParams(logprobs=5)
    made = capture.with_logprobs(lambda self: params)(Asked())
    assert made.logprobs == 5  # type: ignore[attr-defined]
    assert not made.extra_args  # type: ignore[attr-defined]


async def test_a_whole_reply_has_the_field_and_an_error_has_none() -> None:
    found = (request_output(output([10, 11], array("f", [-1.0, -2.0]))),)

    async def chat(self: object, request: object, stream: AsyncIterator[RequestOutput]) -> object:
        _ = [r async for r in stream]
        return SimpleNamespace(choices=[])

    made = await capture.whole_chat(chat)(None, Asked(), results(*found))
    assert made.slipstream == packing.pack([(0, [1, 2])], [(0, [10, 11], [-1.0, -2.0])])  # type: ignore[attr-defined]

    async def failing(self: object, request: object, stream: AsyncIterator[RequestOutput]) -> object:
        _ = [r async for r in stream]
        return SimpleNamespace(error="x")

    assert not hasattr(await capture.whole_chat(failing)(None, Asked(), results(*found)), "slipstream")


def test_choices_of_several_prompts_have_the_replys_indices() -> None:
    batch = [request_output(output([n], array("f", [-1.0]), index=i), prompt=(n,)) for n, i in ((1, 0), (2, 1))]
    made = capture.whole_completion(lambda *_: SimpleNamespace(choices=[]))(
        None, batch, SimpleNamespace(model_extra={capture.CAPTURE_FIELD: 1}, n=2)
    )
    assert made.slipstream == packing.pack([(0, [1]), (1, [2])], [(0, [1], [-1.0]), (3, [2], [-1.0])])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, None),
        ({}, None),
        ({"prefixes": 3}, None),
        ({"prefixes": []}, []),
        ({"prefixes": [[3, "a"], [True, "a"], ["3", "a"], [3, 4], [3], 5, [6, "b"]]}, [(3, "a"), (6, "b")]),
        ({"prefixes": [[3, "a"]] * 99}, [(3, "a")] * capture.MAX_PREFIXES),
    ],
)
def test_what_the_caller_says_that_it_knows(value: object, expected: object) -> None:
    assert capture.known_prefixes(SimpleNamespace(model_extra={capture.CAPTURE_FIELD: value})) == expected
    assert capture.known_prefixes(SimpleNamespace(model_extra=None)) is None


@pytest.mark.parametrize("streamed", [False, True])
async def test_known_ids_are_left_out_of_whole_and_streamed_replies(streamed: bool) -> None:
    prompt = tuple(range(100))
    _, _, _, count, digest = entry_of(prompt)
    request = SimpleNamespace(model_extra={capture.CAPTURE_FIELD: {"prefixes": [[count, digest]]}}, n=1)
    found = (request_output(output([10], array("f", [-1.0])), prompt=prompt),)
    expected = packing.pack([(0, prompt)], [(0, [10], [-1.0])], [(count, digest)])
    assert expected["p"][0][2] == count  # type: ignore[index]

    async def chat(self: object, request: object, stream: AsyncIterator[RequestOutput]) -> object:
        _ = [r async for r in stream]
        return SimpleNamespace(choices=[])

    async def events(self: object, request: object, stream: AsyncIterator[RequestOutput]) -> AsyncIterator[str]:
        async for _ in stream:
            yield 'data: {"id":"0"}\n\n'

    if streamed:
        (event,) = [e async for e in capture.streaming(events)(None, request, results(*found))]
        assert json.loads(event[6:])["slipstream"] == expected
    else:
        made = await capture.whole_chat(chat)(None, request, results(*found))
        assert made.slipstream == expected  # type: ignore[attr-defined]
