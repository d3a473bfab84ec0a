"""Log-probabilities between vLLM's processes: floats of marked requests arrive equal, others' arrays as they were."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("vllm")

from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import LogprobsLists
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from slipstream_vllm import core_outputs
from slipstream_vllm.core_outputs import PACKED_MARK, Floats

COUNTS = st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=6)


def request(*, marked: bool) -> SimpleNamespace:
    return SimpleNamespace(sampling_params=SamplingParams(logprobs=0, extra_args={PACKED_MARK: 1} if marked else None))


def step(counts: list[int], width: int, *, ragged: bool) -> LogprobsLists:
    total = sum(counts)
    generator = np.random.default_rng(0)
    starts = [int(n) for n in np.cumsum([0, *counts[:-1]])] if ragged else None
    return LogprobsLists(
        generator.integers(0, 9, (total, width)).astype(np.int32),
        generator.standard_normal((total, width)).astype(np.float32),
        np.ones(total, dtype=np.int32),
        starts,
    )


def scheduled(self: Any, _: object, model_output: Any) -> dict[int, EngineCoreOutputs]:
    """What vLLM's scheduler does with the log-probabilities, and it forgets the requests that end."""
    outputs = []
    for name, index in model_output.req_id_to_index.items():
        count = self.counts[index]
        rows = model_output.logprobs.slice_request(index, count)
        outputs.append(
            EngineCoreOutput(
                request_id=name, new_token_ids=[1] * count, new_logprobs=rows, kv_transfer_params=self.transfer
            )
        )
    self.requests.clear()
    return {0: EngineCoreOutputs(outputs=outputs)}


def sent_and_received(counts: list[tuple[int, bool]], lists: LogprobsLists, transfer: Any = None) -> list[Any]:
    """Outputs as the API server's own code sees them, after vLLM's encoder and decoder."""
    scheduler = SimpleNamespace(
        requests={f"r{i}": request(marked=m) for i, (_, m) in enumerate(counts)},
        counts=[n for n, _ in counts],
        transfer=transfer,
    )
    model_output = SimpleNamespace(logprobs=lists, req_id_to_index={f"r{i}": i for i in range(len(counts))})
    made = core_outputs.sending_floats(scheduled)(scheduler, None, model_output)
    assert model_output.logprobs is lists
    decoded = MsgpackDecoder(EngineCoreOutputs).decode(MsgpackEncoder().encode(made[0]))
    seen: list[Any] = []
    core_outputs.receiving_floats(lambda _, outputs: seen.extend(outputs))(None, decoded.outputs)
    return seen


@settings(deadline=None)
@given(COUNTS, st.integers(1, 3))
def test_marked_requests_get_floats_and_others_their_arrays(counts: list[tuple[int, bool]], width: int) -> None:
    lists = step([n for n, _ in counts], width, ragged=True)
    start = 0
    for output, (count, marked) in zip(sent_and_received(counts, lists), counts, strict=True):
        expected = lists.logprobs[start : start + count]
        found = output.new_logprobs
        if marked:
            assert type(found) is Floats
            assert np.array_equal(np.array(found, dtype=np.float32), expected[:, 0])
        else:
            assert np.array_equal(found.logprobs, expected)
            assert np.array_equal(found.logprob_token_ids, lists.logprob_token_ids[start : start + count])
        assert output.kv_transfer_params is None
        start += count


def test_one_token_a_request_needs_no_starts() -> None:
    lists = step([1, 1], 1, ragged=False)
    first, second = sent_and_received([(1, True), (1, True)], lists)
    assert [*first.new_logprobs, *second.new_logprobs] == lists.logprobs[:, 0].tolist()


def test_a_transfer_connectors_own_parameters_stay() -> None:
    (output,) = sent_and_received([(1, True)], step([1], 1, ragged=False), {"remote": "a"})
    assert output.kv_transfer_params == {"remote": "a"}
    assert len(output.new_logprobs) == 1


def test_what_vllm_cuts_off_after_a_stop_string_is_cut_off() -> None:
    assert Floats([1.0, 2.0, 3.0]).slice_request(0, 2) == [1.0, 2.0]
    assert type(Floats([1.0]).slice_request(0, 1)) is Floats


@pytest.mark.parametrize("lists", [None, step([1], 1, ragged=False)])
def test_a_step_without_marked_requests_is_left_alone(lists: LogprobsLists | None) -> None:
    scheduler = SimpleNamespace(requests={"r": request(marked=False)})
    model_output = SimpleNamespace(logprobs=lists, req_id_to_index={"r": 0})
    seen: list[object] = []

    def original(_: object, __: object, given: Any) -> dict[int, EngineCoreOutputs]:
        seen.append(given.logprobs)
        return {}

    core_outputs.sending_floats(original)(scheduler, None, model_output)
    assert seen == [lists]
