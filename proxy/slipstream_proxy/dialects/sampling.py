"""What a request says about how its reply is sampled, and whether a policy gradient may use such a reply.

What a recorded request leaves out had vLLM's neutral defaults: the proxy writes an engine's own into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Final

from slipstream.engines.engine import NEUTRAL_SAMPLING
from slipstream_proxy.dialects.untrainable import UntrainableReason
from slipstream_proxy.json_types import Json, JsonObject

_KEPT = (
    "n",
    "seed",
    "stop",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "min_tokens",
    "stop_token_ids",
)
_MEDIA: Final = frozenset(
    (
        "image_url",
        "input_image",
        "image",
        "image_pil",
        "image_embeds",
        "audio_url",
        "input_audio",
        "audio",
        "audio_embeds",
        "video_url",
        "video",
        "prompt_embeds",
        "file",
    )
)
_STRUCTURED = ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")


_FORCING: Final = frozenset(
    (
        *("response_format", "text", *_STRUCTURED, "tool_choice", "use_beam_search", "logit_bias", "allowed_token_ids"),
        *("bad_words", "thinking_token_budget", "watermarking", "vllm_xargs", "echo"),
    )
)
"""All members that ``forces`` reads. Few requests have one, so that one look at the body's own members is enough."""
_CONSTRAINING: Final = _FORCING.union(NEUTRAL_SAMPLING, ("min_tokens", "ignore_eos", "prompt_embeds")) - {"temperature"}
"""All members that ``untrainable`` reads, but messages and temperature."""
THINKING_BUDGET_REASON = UntrainableReason.THINKING_BUDGET.of()
UNKNOWN_SAMPLING = UntrainableReason.ENGINE_SAMPLING.of()
"""Why a call cannot be trained on that leaves to the engine what the engine does not tell."""
RAW_LOGPROBS = "log-probabilities before temperature"
"""Why a call at a temperature, or with a filter, cannot be trained on whose log-probabilities are without it."""
TOKEN_FILTERS = ("top_p", "top_k", "min_p")
"""What cuts tokens off. The trainer cuts its own logits alike, so such calls are trained on."""
MOST_SWITCH = 16
"""Characters of a word that sets something in a chat template."""
LEAST_TEMPERATURE = 0.01
"""vLLM samples with this where less is asked (and with the greatest logit at 0)."""


def _number(value: Json) -> Json:
    """As the engine reads it: ``"0.5"`` is a number to it, and so is an integer where a float is due."""
    try:
        return float(value) if isinstance(value, str | float) else value
    except ValueError:
        return value


def sampling_of(body: JsonObject) -> JsonObject:
    """The effective parameters, and what forces the output."""
    found = {
        name: default if body.get(name) is None else _number(body[name]) for name, default in NEUTRAL_SAMPLING.items()
    }
    if isinstance(found["temperature"], float) and 0 < found["temperature"] < LEAST_TEMPERATURE:
        found["temperature"] = LEAST_TEMPERATURE
    found.update({name: body[name] for name in _KEPT if body.get(name) is not None})
    if switches := template_switches(body):
        found["chat_template_kwargs"] = switches
    if forced := forces(body):
        found["forced"] = forced
    return found


def template_switches(body: JsonObject) -> JsonObject:
    """What a request sets in the model's chat template, as vLLM reads it: thinking, and how much. Texts that a user may
    have written are left out.
    """
    given = body.get("chat_template_kwargs")
    asked: JsonObject = given if isinstance(given, dict) else {}
    found = {
        name: value
        for name, value in asked.items()
        if isinstance(value, bool | int | float)
        or (isinstance(value, str) and len(value) <= MOST_SWITCH and name != "chat_template")
    }
    effort = body.get("reasoning_effort")
    if isinstance(effort, str) and len(effort) <= MOST_SWITCH:
        found = {"enable_thinking": effort != "none"} | found | {"reasoning_effort": effort}
    return found


def forces(body: JsonObject) -> str | None:
    """What of the request constrains the sampled tokens by a grammar, a choice or a bias."""
    if _FORCING.isdisjoint(body):
        return None
    kind = body.get("response_format")
    if isinstance(kind, dict) and kind.get("type") not in (None, "text"):
        return UntrainableReason.STRUCTURED.of()
    text = body.get("text")
    if (
        isinstance(text, dict)
        and isinstance(text.get("format"), dict)
        and text["format"].get("type") not in (None, "text")
    ):
        return UntrainableReason.STRUCTURED.of()
    if any(body.get(name) is not None for name in _STRUCTURED):
        return UntrainableReason.STRUCTURED.of()
    choice = body.get("tool_choice")
    if choice in ("required", "any") or (isinstance(choice, dict) and choice.get("type") not in ("auto", "none")):
        return UntrainableReason.FORCED_TOOL.of()
    if body.get("use_beam_search"):
        return UntrainableReason.BEAM_SEARCH.of()
    if body.get("logit_bias"):
        return UntrainableReason.LOGIT_BIAS.of()
    if body.get("allowed_token_ids") or body.get("bad_words"):
        return UntrainableReason.RESTRICTED.of()
    if body.get("thinking_token_budget") is not None:
        return THINKING_BUDGET_REASON
    if body.get("watermarking"):
        return UntrainableReason.WATERMARK.of()
    if body.get("vllm_xargs"):
        return UntrainableReason.ENGINE_OPTIONS.of()
    if body.get("echo"):
        return UntrainableReason.ECHO.of()
    return None


def has_media(messages: Json) -> bool:
    """Whether images, sounds or embeddings are among the parts. The prompt's ids hold only their places."""
    if isinstance(messages, list):  # compiled, a loop over a list costs a third of one over anything
        for message in messages:
            content = message.get("content") if isinstance(message, dict) else None
            if isinstance(content, list) and any(map(_is_media, content)):
                return True
    return False


def _is_media(part: Json) -> bool:
    return isinstance(part, dict) and (part.get("type") in _MEDIA or not _MEDIA.isdisjoint(part))


def untrainable(body: JsonObject, *, trust: bool) -> str | None:
    """The first reason why sampling was not the policy's own. ``trust`` overrides all but media, beams and echo."""
    usual = _CONSTRAINING.isdisjoint(body)
    if has_media(body.get("messages")) or not (usual or body.get("prompt_embeds") is None):
        return UntrainableReason.MEDIA.of()
    temperature = body.get("temperature")
    if usual and (temperature is None or temperature == 1.0):
        return None
    forced = forces(body)
    if trust:
        return forced if forced in ("beam search", "echo") else None
    if forced:
        return forced
    found = sampling_of(body)
    try:
        if not float(found["temperature"]) > 0:
            return UntrainableReason.TEMPERATURE_0.of()
        if not all(isfinite(float(found[name])) for name in TOKEN_FILTERS):
            return UntrainableReason.UNREADABLE_SAMPLING.of()
        if any(
            float(found[name]) != NEUTRAL_SAMPLING[name]
            for name in ("presence_penalty", "frequency_penalty", "repetition_penalty")
        ):
            return UntrainableReason.PENALTIES.of()
        if float(body.get("min_tokens") or 0) > 0:
            return UntrainableReason.MIN_TOKENS.of()
        if body.get("ignore_eos"):
            return UntrainableReason.IGNORE_EOS.of()
    except (TypeError, ValueError):
        return UntrainableReason.UNREADABLE_SAMPLING.of()
    return None


def untrainable_within(body: JsonObject, lengths: Sequence[int], *, trust: bool) -> str | None:
    """``untrainable`` of a call with replies of so many tokens. A thinking budget forces tokens when it is spent, and a
    reply that is shorter did not spend it.
    """
    reason = untrainable(body, trust=trust)
    if reason != THINKING_BUDGET_REASON:
        return reason
    budget = body["thinking_token_budget"]
    if isinstance(budget, bool) or not isinstance(budget, int) or any(length >= budget for length in lengths):
        return THINKING_BUDGET_REASON
    return untrainable({k: v for k, v in body.items() if k != "thinking_token_budget"}, trust=trust)
