"""From the engine core to the API server: a marked request's log-probabilities travel as plain floats.

vLLM sends three small NumPy arrays for each token of each request. To slice, encode and decode them costs about 20 µs a
token in Python, most of it in the engine core's own process, where the next step waits for it. Here the floats of a
marked request ride in ``kv_transfer_params``, which msgspec encodes without Python code. The API server takes them out
again before vLLM looks at that field. Other requests' arrays travel as before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from slipstream_vllm.versions import resolve

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
    from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
    from vllm.v1.request import Request

PACKED_MARK = "slipstream"
"""In the sampling parameters' ``extra_args``, and in ``kv_transfer_params`` on the way back."""


class Floats(list[float]):
    """One log-probability for each new token, where vLLM expects its arrays."""

    def slice_request(self, index: int, count: int) -> Floats:
        return Floats(self[index : index + count])


class Rows(NamedTuple):
    """A request's rows in the step's arrays. They are cut out only if the request wants the arrays."""

    step: StepRows
    first: int
    length: int


class StepRows:
    """The log-probabilities of one step. ``slice_request`` is the only part that the scheduler uses."""

    def __init__(self, lists: LogprobsLists) -> None:
        self.lists = lists
        self._sampled: list[float] = lists.logprobs[:, 0].tolist()

    def slice_request(self, index: int, count: int) -> Rows:
        return Rows(self, index, count)

    def floats(self, rows: Rows) -> list[float]:
        positions = self.lists.cu_num_generated_tokens
        start = rows.first if positions is None else int(positions[rows.first])
        return self._sampled[start : start + rows.length]


class Scheduler(Protocol):
    requests: dict[str, Request]


def marked(request: Request | EngineCoreRequest | None) -> bool:
    """Whether the API server asked for this request's log-probabilities on the proxy's behalf."""
    params = getattr(request, "sampling_params", None)
    return bool(params is not None and params.extra_args and params.extra_args.get(PACKED_MARK))


def sending_floats(
    original: Callable[[Scheduler, object, ModelRunnerOutput], dict[int, EngineCoreOutputs]],
) -> Callable[[Scheduler, object, ModelRunnerOutput], dict[int, EngineCoreOutputs]]:
    """``Scheduler.update_from_output``: new_logprobs of marked requests become floats."""

    @functools.wraps(original)
    def update_from_output(
        self: Scheduler, scheduler_output: object, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        lists = model_runner_output.logprobs
        # asked before the call, which forgets the requests that end in this step
        captured = (
            set() if lists is None else {i for i in model_runner_output.req_id_to_index if marked(self.requests.get(i))}
        )
        if lists is None or not captured:
            return original(self, scheduler_output, model_runner_output)
        model_runner_output.logprobs = StepRows(lists)
        try:
            made = original(self, scheduler_output, model_runner_output)
        finally:
            model_runner_output.logprobs = lists
        for batch in made.values():
            for output in batch.outputs:
                rows: object = output.new_logprobs
                if type(rows) is Rows:
                    _settle(output, rows, captured)
        return made

    return update_from_output


def _settle(output: EngineCoreOutput, rows: Rows, captured: set[str]) -> None:
    if output.request_id not in captured:
        output.new_logprobs = rows.step.lists.slice_request(rows.first, rows.length)
        return
    output.new_logprobs = None
    output.kv_transfer_params = {**(output.kv_transfer_params or {}), PACKED_MARK: rows.step.floats(rows)}


def receiving_floats(original: Callable[..., object]) -> Callable[..., object]:
    """``OutputProcessor.process_outputs``: the floats take the arrays' place before vLLM reads the output."""

    @functools.wraps(original)
    def process_outputs(self: object, outputs: Iterable[EngineCoreOutput], *args: object, **kwargs: object) -> object:
        for output in outputs:
            carried = output.kv_transfer_params
            if carried and PACKED_MARK in carried:
                output.new_logprobs = Floats(carried[PACKED_MARK])
                output.kv_transfer_params = {k: v for k, v in carried.items() if k != PACKED_MARK} or None
        return original(self, outputs, *args, **kwargs)

    return process_outputs


def install_sender() -> None:
    """In the engine core's process."""
    scheduler = resolve("vllm.v1.core.sched.scheduler:Scheduler")
    scheduler.update_from_output = sending_floats(scheduler.update_from_output)


def install_receiver() -> None:
    """In an API server's process."""
    processor = resolve("vllm.v1.engine.output_processor:OutputProcessor")
    processor.process_outputs = receiving_floats(processor.process_outputs)
