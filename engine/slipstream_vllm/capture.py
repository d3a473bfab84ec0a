"""Compact capture: no object, no text and no JSON for each token's log-probability.

A request with ``"slipstream_capture": 1`` gets the packed member (``packing``) and is otherwise answered as if it had
not asked: the client's own ``logprobs`` and ``return_token_ids`` keep their meaning. The sampled token's
log-probability is computed by the engine core as for ``logprobs: 0``, and collected here as plain floats.
``"slipstream_capture": {"prefixes": [[n, digest], …]}`` says which prompts the caller knows, so that their ids are not
sent again.
"""

from __future__ import annotations

import functools
import json
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from slipstream_vllm import packing
from slipstream_vllm.core_outputs import PACKED_MARK, Floats, marked
from slipstream_vllm.versions import CHAT_MODULE, COMPLETION_MODULE, resolve

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.logprobs import LogprobsProcessor
    from vllm.v1.outputs import LogprobsLists

CAPTURE_FIELD = "slipstream_capture"
MAX_PREFIXES = 8
"""Prefixes that are looked at."""


class Request(Protocol):
    """What is read of a chat or completion request."""

    echo: bool | None


def asked(request: object) -> bool:
    extra = getattr(request, "model_extra", None)
    return bool(extra and extra.get(CAPTURE_FIELD)) and not getattr(request, "echo", False)


def known_prefixes(request: object) -> list[packing.Known] | None:
    """What the caller says that it knows; None: it does not want to hear of it. What makes no sense is left out."""
    value = (getattr(request, "model_extra", None) or {}).get(CAPTURE_FIELD)
    prefixes = value.get("prefixes") if isinstance(value, dict) else None
    if not isinstance(prefixes, list):
        return None
    pairs = [p for p in prefixes[:MAX_PREFIXES] if isinstance(p, list) and [type(x) for x in p] == [int, str]]
    return [(n, digest) for n, digest in pairs]


# --- sampling parameters and the collection of log-probabilities ---


def with_logprobs(original: Callable[..., object]) -> Callable[..., object]:
    """``to_sampling_params``: ask the engine core for the sampled token's log-probability."""

    @functools.wraps(original)
    def to_sampling_params(self: object, *args: object, **kwargs: object) -> object:
        params = original(self, *args, **kwargs)
        if asked(self) and getattr(params, "logprobs", 0) is None and not getattr(params, "logprob_token_ids", None):
            params.logprobs = 0  # type: ignore[attr-defined]
            extra = getattr(params, "extra_args", None) or {}
            params.extra_args = {**extra, PACKED_MARK: 1}  # type: ignore[attr-defined]
        return params

    return to_sampling_params


def collecting_floats(original: Callable[..., LogprobsProcessor]) -> Callable[..., LogprobsProcessor]:
    """``from_new_request``: an array takes the place of the list of objects; vLLM slices and extends both alike."""

    def from_new_request(
        cls: type[LogprobsProcessor], tokenizer: object, request: EngineCoreRequest
    ) -> LogprobsProcessor:
        made = original(tokenizer, request)
        if marked(request):
            made.logprobs = array("f")
        return made

    return from_new_request


def appending_floats(original: Callable[..., None]) -> Callable[..., None]:
    """``_update_sample_logprobs``: the sampled token stands first in each row."""

    def update(self: LogprobsProcessor, logprobs_lists: LogprobsLists | Floats) -> None:
        collected = self.logprobs
        if type(collected) is not array:
            original(self, logprobs_lists)
            return
        if isinstance(logprobs_lists, Floats):
            sampled: list[float] = logprobs_lists
        else:
            sampled = [float(row[0]) for row in logprobs_lists.logprobs]
        collected.extend(sampled)
        self.cumulative_logprob = (self.cumulative_logprob or 0.0) + sum(sampled)

    return update


# --- replies ---


def logprobs_of(output: CompletionOutput) -> Sequence[float]:
    """One log-probability for each of the output's ids."""
    found = output.logprobs
    if found is None:
        return ()
    if isinstance(found, array):
        return found
    return [row[i].logprob for i, row in zip(output.token_ids, found, strict=False) if row is not None and i in row]


class Stream:
    """What a streamed call has sampled and not sent yet."""

    def __init__(self, known: list[packing.Known] | None = None) -> None:
        """``known``: prompts that the caller knows (``known_prefixes``)."""
        self._known = known
        self.prompts: list[tuple[int, Sequence[int]]] = []
        self.choices: list[packing.Choice] = []
        self._seen: set[int] = set()

    def note(self, result: RequestOutput, prompt: int, choices_each: int) -> None:
        if prompt not in self._seen:
            self._seen.add(prompt)
            self.prompts.append((prompt, result.prompt_token_ids or ()))
        for output in result.outputs:
            if output.token_ids:
                index = output.index + prompt * choices_each
                self.choices.append((index, tuple(output.token_ids), tuple(logprobs_of(output))))

    def take(self) -> packing.Packed | None:
        if not (self.prompts or self.choices):
            return None
        packed = packing.pack(self.prompts, self.choices, self._known)
        self.prompts, self.choices = [], []
        return packed


def spliced(event: str, stream: Stream) -> str:
    """The event with what was sampled since the last one as the last member of its JSON."""
    if not event.startswith("data: {"):
        if event.startswith("data: [DONE]") and (packed := stream.take()) is not None:
            return f"data: {_dumps({packing.PACKED_FIELD: packed})}\n\n{event}"
        return event
    end = event.rfind("}")
    packed = stream.take()
    if packed is None:
        return event
    return f'{event[:end]},"{packing.PACKED_FIELD}":{_dumps(packed)}{event[end:]}'


def _dumps(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


Results = AsyncIterator["RequestOutput | tuple[int, RequestOutput]"]
"""Of one prompt, or each with its prompt's number."""


async def _tapped(results: Results, stream: Stream, choices_each: int) -> Results:
    async for result in results:
        prompt, output = result if isinstance(result, tuple) else (0, result)
        stream.note(output, prompt, choices_each)
        yield result


async def _splicing(events: AsyncIterator[str], stream: Stream) -> AsyncIterator[str]:
    async for event in events:
        yield spliced(event, stream)


def streaming(original: Callable[..., AsyncIterator[str]], place: int = 0) -> Callable[..., AsyncIterator[str]]:
    """A generator of events. ``place``: where the results stand among its arguments behind the request."""

    @functools.wraps(original)
    def generator(self: object, request: Request, *args: Any, **kwargs: object) -> AsyncIterator[str]:
        if not asked(request):
            return original(self, request, *args, **kwargs)
        stream = Stream(known_prefixes(request))
        tapped = _tapped(args[place], stream, _choices_each(request))
        return _splicing(original(self, request, *args[:place], tapped, *args[place + 1 :], **kwargs), stream)

    return generator


def _choices_each(request: object) -> int:
    return getattr(request, "n", None) or 1


def _with_field(response: object, stream: Stream) -> object:
    if hasattr(response, "choices") and (packed := stream.take()) is not None:
        setattr(response, packing.PACKED_FIELD, packed)
    return response


def whole_chat(original: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
    @functools.wraps(original)
    async def generator(self: object, request: Request, results: Results, *args: object, **kwargs: object) -> object:
        if not asked(request):
            return await original(self, request, results, *args, **kwargs)
        stream = Stream(known_prefixes(request))
        tapped = _tapped(results, stream, _choices_each(request))
        return _with_field(await original(self, request, tapped, *args, **kwargs), stream)

    return generator


def whole_completion(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def response(
        self: object, results: list[RequestOutput], request: Request, *args: object, **kwargs: object
    ) -> object:
        made = original(self, results, request, *args, **kwargs)
        if not asked(request):
            return made
        stream = Stream(known_prefixes(request))
        for prompt, result in enumerate(results):
            stream.note(result, prompt, _choices_each(request))
        return _with_field(made, stream)

    return response


def install() -> None:
    """Put these in vLLM's place. ``versions.unsupported()`` was asked before."""
    for path in (f"{CHAT_MODULE}.protocol:ChatCompletionRequest", f"{COMPLETION_MODULE}.protocol:CompletionRequest"):
        kind = resolve(path)
        kind.to_sampling_params = with_logprobs(kind.to_sampling_params)
    processor = resolve("vllm.v1.engine.logprobs:LogprobsProcessor")
    processor.from_new_request = classmethod(collecting_floats(processor.from_new_request))
    processor._update_sample_logprobs = appending_floats(processor._update_sample_logprobs)
    chat = resolve(f"{CHAT_MODULE}.serving:OpenAIServingChat")
    chat.chat_completion_stream_generator = streaming(chat.chat_completion_stream_generator)
    chat.chat_completion_full_generator = whole_chat(chat.chat_completion_full_generator)
    plain = resolve(f"{COMPLETION_MODULE}.serving:OpenAIServingCompletion")
    plain.completion_stream_generator = streaming(plain.completion_stream_generator, 1)
    plain.request_output_to_completion_response = whole_completion(plain.request_output_to_completion_response)
