"""Why a call cannot be trained on, each reason with its fix.

What is stored, and what metrics count, is the reason's text: `UntrainableReason.of` makes it, `find` reads it again,
also out of a store of an older release.

Not compiled: its members are more than their text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple, Self

from slipstream.engines import DEFAULT_ENGINE

TRUST_ADVICE = 'or set models."<name>".sampling = "trust" to train on such calls all the same'
EXPLORE_ADVICE = 'set models."<name>".explore = "temperature" for a share of the runs'
OVERRIDE_ADVICE = 'set models."<name>".{0} = {1}, which replaces what the client asks'
FORCED_ADVICE = (
    "let the model choose: the grammar or the choice is the engine's, not the policy's (docs, Your framework); "
    + TRUST_ADVICE
)
OWN_ROUTE_TEXT = "the engine's own route answered, which gives no token ids: "
PARTS_ADVICE = OWN_ROUTE_TEXT + "text alone can be trained on today; the reason names the part's type"
RESULT_ADVICE = OWN_ROUTE_TEXT + "send the result as text, from the role user"
OTHER_MODEL = "the engine serves another model than engine.model: `slipstream doctor` checks it"
NO_MORE = "nothing to do: an earlier release recorded them, and calls of now are trained on"
HIDDEN_REASONING_ADVICE = "leave include_reasoning out"
UNREADABLE_ADVICE = "the engine or the proxy could not read it: see the call's error"


class UntrainableReason(StrEnum):
    """The value is the reason's text; ``{}`` in it stands for what the call had, and so it does in the fix."""

    fix: str

    def __new__(cls, text: str, fix: str) -> Self:
        member = str.__new__(cls, text)
        member._value_, member.fix = text, fix
        return member

    TEMPERATURE_0 = (
        "temperature 0",
        "greedy runs have nothing to compare: ask 1.0 in training, or "
        + OVERRIDE_ADVICE.format("temperature", "1.0")
        + f", or {EXPLORE_ADVICE}",
    )
    PENALTIES = (
        "penalties",
        (
            "do not send presence_, frequency_ or repetition_penalty in training, or set them in "
            f'models."<name>" to 0, 0 and 1, which replaces what the client asks, {TRUST_ADVICE}'
        ),
    )
    MIN_TOKENS = ("min_tokens", f"do not send min_tokens in training, {TRUST_ADVICE}")
    IGNORE_EOS = ("ignore_eos", f"do not send ignore_eos in training, {TRUST_ADVICE}")
    LOGIT_BIAS = ("logit_bias", f"do not send logit_bias in training, {TRUST_ADVICE}")
    TOP_P = ("top_p", NO_MORE)
    TOP_K = ("top_k", NO_MORE)
    MIN_P = ("min_p", NO_MORE)
    STRUCTURED = ("structured output", FORCED_ADVICE)
    FORCED_TOOL = ("forced tool", f'send tool_choice "auto" in place of "required", {TRUST_ADVICE}')
    RESTRICTED = ("restricted tokens", FORCED_ADVICE)
    WATERMARK = ("watermark", f"do not send watermarking in training, {TRUST_ADVICE}")
    ENGINE_OPTIONS = ("engine options", f"do not send vllm_xargs in training, {TRUST_ADVICE}")
    THINKING_BUDGET = (
        "thinking budget",
        (
            "the reply spent its thinking budget, and the engine then forced the end of the thought: "
            f"ask for a larger one, {TRUST_ADVICE}"
        ),
    )
    ENGINE_SAMPLING = ("the engine's own sampling", f"{DEFAULT_ENGINE.neutral_fix}, {TRUST_ADVICE}")
    BEAM_SEARCH = ("beam search", "do not use beam search in training")
    ECHO = ("echo", "do not send echo in training")
    MEDIA = ("images or other media", "text alone can be trained on today")
    UNREADABLE_SAMPLING = ("unreadable sampling parameters", UNREADABLE_ADVICE)
    UNREADABLE_REQUEST = ("unreadable request", UNREADABLE_ADVICE)
    UNREADABLE_LOGPROBS = ("unreadable logprobs", UNREADABLE_ADVICE)
    NO_TOKEN_IDS = ("no token ids", "`slipstream doctor` checks what the engine returns")
    NO_LOGPROBS = ("no log-probabilities", "`slipstream doctor` checks what the engine returns")
    LOGPROBS_MISMATCH = ("logprobs do not match", "`slipstream doctor` checks what the engine returns")
    LOGPROB_NO_NUMBER = ("logprob is no number", "`slipstream doctor` checks what the engine returns")
    LOGPROB_ABOVE_0 = ("logprob above 0", "`slipstream doctor` checks what the engine returns")
    NO_TOKEN_ID = ("a token id that is none", OTHER_MODEL)
    TOKEN_ID_BEYOND = ("a token id above the vocabulary", OTHER_MODEL)
    ABORTED = (
        "aborted",
        (
            "the client closed the connection before the reply ended: nothing, if somebody stopped the agent; "
            "where its own timeout ended the calls, raise that"
        ),
    )
    ERROR = ("error", "the engine answered with an error: see the call's error, and the engine's log")
    SUPERSEDED = ("superseded", "the client sent the call again: raise its timeout, so that it retries less")
    EXTERNAL = (
        "external upstream",
        (
            "it went to another API, which returns no tokens: `slipstream distill` trains "
            "your model on such runs; or map the model name to the trained model"
        ),
    )
    TOO_LARGE = (
        "too large",
        "lower max_tokens or n, or ask for no top_logprobs: the call's error says where its record lies",
    )
    TOO_HEAVY = ("too heavy", "send fewer messages and tools in one request")
    REDACTED = ("redacted", "proxy.redact changed its text, so its tokens no longer match")
    REDACTION_FAILED = ("redaction failed", "proxy.redact raised an error: see the proxy's log")
    SEVERAL_PROMPTS = ("several prompts in one call", "send one prompt in each call")
    NO_MESSAGES = ("no messages", "send messages")
    NO_PROMPT = ("no prompt", "send a prompt as text or as token ids")
    HIDDEN_REASONING_GRAMMAR = ("hidden reasoning under a grammar", HIDDEN_REASONING_ADVICE)
    HIDDEN_REASONING_TOKENS = ("hidden reasoning with its tokens asked for", HIDDEN_REASONING_ADVICE)
    HIDDEN_REASONING = ("hidden reasoning", HIDDEN_REASONING_ADVICE)
    LOGPROBS_REFUSED = ("logprobs refused", "send logprobs: true with top_logprobs, or leave both out")
    OWN_RESPONSES = ("engine.own_responses", "set engine.own_responses = false, or let the agent use chat completions")
    CONTEXT_UNKNOWN = (
        "the length of the engine's context is not known",
        "send max_output_tokens, or see why the engine's /v1/models is silent",
    )
    ENGINE_REFUSED = (
        "the engine refused it as a chat completion",
        OWN_ROUTE_TEXT + "its log says what it does not take of the chat request",
    )
    FORCED_TOOL_FIELD = ("forced tool: {}", OWN_ROUTE_TEXT + 'send tool_choice "auto"')
    STRUCTURED_FIELD = (
        "structured output: {}",
        OWN_ROUTE_TEXT + "ask for the format in the prompt, and leave the field out",
    )
    OTHER_PARTS = ("images or other parts: {}", PARTS_ADVICE)
    OTHER_BLOCKS = ("images or other blocks: {}", PARTS_ADVICE)
    HOSTED_TOOL = ("a hosted tool: {}", OWN_ROUTE_TEXT + "switch the tool of this type off in the agent")
    GRAMMAR_TOOL = (
        "a custom tool with a grammar: {}",
        OWN_ROUTE_TEXT + "give the tool of this name the format text, or make it a function",
    )
    TOOL_FIELDS = (
        "a tool with fields of its own: {}",
        OWN_ROUTE_TEXT + "send the tool of this name with the fields of a function only",
    )
    NAMESPACE_TOOL = (
        "a tool in a namespace that is no function",
        OWN_ROUTE_TEXT + "put functions only into a namespace",
    )
    NO_TOOL = ("no tool that the model can call", OWN_ROUTE_TEXT + "leave tools out, or send a function among them")
    EMPTY_TOOLS = ("an empty list of tools", OWN_ROUTE_TEXT + "leave tools out")
    ASSISTANT_RESULT = ("a tool's result that the assistant says", RESULT_ADVICE)
    RESULT_PARTS = ("a tool's result with more than text: {}", RESULT_ADVICE)
    ROLE = ("a message of the role {}", OWN_ROUTE_TEXT + "send it from the role user, assistant or system")
    SYSTEM_PARTS = ("role system with more than text", OWN_ROUTE_TEXT + "send system messages as text")
    SYSTEM_PLACE = (
        "role system among the messages: the engine does not say where it puts them",
        OWN_ROUTE_TEXT + "send system messages first, or start an engine with our plugin, which says it",
    )
    THINKING_DISABLED = (
        "thinking disabled: the engine does not say what that means",
        OWN_ROUTE_TEXT + "leave thinking out, or start an engine with our plugin, which says it",
    )
    THINKING_TYPE = (
        "thinking of the type {}",
        OWN_ROUTE_TEXT + "send thinking of the type adaptive, enabled or disabled, or leave it out",
    )
    ITEM_TYPE = (
        "an item of the type {}",
        OWN_ROUTE_TEXT + "send messages, function calls, their outputs and reasoning only",
    )
    MESSAGE_PARTS = ("a message with more than text", OWN_ROUTE_TEXT + "send one text in each message of the assistant")
    BLOCK_FIELDS = (
        "a block with fields of another",
        OWN_ROUTE_TEXT + "send each block with the fields of its type only",
    )
    UNFINISHED = ("a reply to go on with", OWN_ROUTE_TEXT + "send items of the status completed only")
    ENCRYPTED = ("encrypted reasoning", OWN_ROUTE_TEXT + "send reasoning as text; an engine of vLLM's refuses it, too")
    STORED = ("stored response", OWN_ROUTE_TEXT + "send store: false")
    BACKGROUND = ("in the background", OWN_ROUTE_TEXT + "leave background out")
    EARLIER_RESPONSE = (
        "after an earlier response",
        OWN_ROUTE_TEXT + "send the whole conversation in input, without previous_response_id",
    )
    INCLUDED = ("more was asked in the reply", OWN_ROUTE_TEXT + "leave include and top_logprobs out")
    STORED_PROMPT = ("a stored prompt", OWN_ROUTE_TEXT + "send the prompt's text")
    TRUNCATION = ("truncation", OWN_ROUTE_TEXT + "leave truncation out")
    ASKED = ("{} was asked", OWN_ROUTE_TEXT + "leave {} out")
    KIND = (
        "a {} call",
        (
            'take "{}" out of identity.untrained_kinds to train on such calls, or send x-slipstream-kind: main '
            "with calls that are no such ones"
        ),
    )

    def of(self, detail: object = "") -> str:
        """The text, as it is stored."""
        return self.value.replace("{}", str(detail))


class FoundReason(NamedTuple):
    reason: UntrainableReason
    detail: str

    @property
    def fix(self) -> str:
        return self.reason.fix.replace("{}", self.detail)


def _patterns() -> Iterator[tuple[UntrainableReason, re.Pattern[str]]]:
    """Those that begin with a text of their own come first."""
    for reason in sorted(UntrainableReason, key=lambda r: -len(r.value.partition("{}")[0])):
        yield reason, re.compile(re.escape(reason.value).replace(r"\{\}", "(.*)"), re.DOTALL)


_PATTERNS = tuple(_patterns())


def find_reason(text: str) -> FoundReason | None:
    """None: a text of an engine's, or of another release. A longer text than a reason's is known by its beginning."""
    for reason, pattern in _PATTERNS:
        if (found := pattern.fullmatch(text)) is not None:
            return FoundReason(reason, found[1] if found.re.groups else "")
    begun = next(
        (reason for reason, _ in _PATTERNS if "{}" not in reason.value and text.startswith(reason.value)), None
    )
    return FoundReason(begun, "") if begun is not None else None
