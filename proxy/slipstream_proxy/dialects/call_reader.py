"""Recorded calls, read: what every format does alike."""

from __future__ import annotations

from collections.abc import Callable

from slipstream_proxy.dialects.base import loads, unreadable
from slipstream_proxy.dialects.sampling import sampling_of, untrainable_within
from slipstream_proxy.json_types import JsonList, JsonObject
from slipstream_proxy.log.records import CallHead, Choice, Parsed

Read = tuple[list[int], list[Choice], str | None]
"""Prompt ids, choices, error of a reply."""

MOST_CHOICES = 16384
"""As many as vLLM samples of one prompt. More of them, each empty, would be a small reply that takes much memory."""
_BROKEN = ("abort", "error")
"""Ends that the engine made and the policy did not."""


def parsed(
    request: bytes,
    reply: bytes,
    head: CallHead,
    read: Callable[..., Read],
    texts: Callable[[JsonObject], tuple[JsonList, JsonList]],
) -> Parsed:
    """``read(reply, stream=…)`` reads the reply, ``texts(body)`` says the request's messages and tools."""
    body = loads(request)
    if not isinstance(body, dict):
        return unreadable("unreadable request")
    found: Read = [], [], None
    bad = None
    if reply:
        try:
            found = read(reply, stream=head.stream)
        except Exception:  # an aborted call's is cut off somewhere
            bad = "unreadable"
    if len(found[1]) > MOST_CHOICES:
        found, bad = ([], [], None), "too many choices"
    prompt, choices, error = found
    sampled = untrainable_within(body, [len(c.completion_ids) for c in choices], trust=head.trust_sampling)
    reason = why_not(head, bad or sampled, prompt, choices)
    if reason is None and (error is not None or any(c.finish_reason in _BROKEN for c in choices)):
        reason = "error"
    if error is None and head.status >= 400:
        error = reply[:4096].decode("utf-8", "replace")
    return Parsed(*texts(body), sampling_of(body), prompt, choices, reason, error)


def why_not(head: CallHead, sampling: str | None, prompt: list[int], choices: list[Choice]) -> str | None:
    """The first reason why a call cannot be trained on; None: it can."""
    if head.external:
        return "external upstream"
    if head.outcome == "aborted":
        return "aborted"
    if head.outcome != "ok" or head.status != 200:
        return "error"
    if head.note:  # no setting mends what was not captured
        return head.note
    if sampling:
        return sampling
    if not prompt or not choices or any(not c.completion_ids for c in choices):
        return "no token ids"
    if any(len(c.completion_ids) != len(c.logprobs) for c in choices):
        return "logprobs do not match the token ids"
    if any(not lp > -9999 for c in choices for lp in c.logprobs):
        return "logprob -9999"
    return None
