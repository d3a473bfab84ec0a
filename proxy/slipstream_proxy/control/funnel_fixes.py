"""Fixes by reason: for calls that cannot be trained on, and for groups that were lost."""

from __future__ import annotations

TRUST = 'or set models."<name>".sampling = "trust" to train on such calls all the same'
FORCED = (
    "let the model choose: the grammar or the choice is the engine's, not the policy's (docs, Your framework); " + TRUST
)
UNTRAINABLE = {
    "temperature 0": f"an agent that always asks temperature 0 never learns: ask 1.0 in training, {TRUST}",
    "penalties": f"do not send presence_, frequency_ or repetition_penalty in training, {TRUST}",
    "structured output": FORCED,
    "forced tool": f'send tool_choice "auto" in place of "required", {TRUST}',
    "restricted tokens": FORCED,
    "thinking budget": f"do not send thinking_token_budget in training, {TRUST}",
    "beam search": "do not use beam search in training",
    "echo": "do not send echo in training",
    "images or other media": "text alone can be trained on today",
    "no token ids": "start vLLM 0.25 or newer; `slipstream doctor` checks what the engine returns",
    "no log-probabilities": "start vLLM with --logprobs-mode processed_logprobs; `slipstream doctor` checks it",
    "logprob -9999": "the engine cut this token's probability off: start it with --logprobs-mode processed_logprobs",
    "aborted": "the client went away before the reply ended: raise its timeout",
    "error": "the engine answered with an error: see the call's error, and the engine's log",
    "superseded": "the client sent the call again: raise its timeout, so that it retries less",
    "external upstream": "it went to another API, which returns no tokens; map the model name to the trained model",
    "too large": "lower max_tokens or n, or ask for no top_logprobs: the call's error says where its raw record lies",
    "redacted": "proxy.redact changed its text, so its tokens no longer match",
} | {
    name: f"do not send {name} in training, {TRUST}"
    for name in ("top_p", "top_k", "min_p", "min_tokens", "ignore_eos", "logit_bias")
}
"""Reason, or the beginning of one → fix."""


def fix_untrainable(reason: str) -> str:
    """What to change so that such calls train."""
    if reason in UNTRAINABLE:
        return UNTRAINABLE[reason]
    known = next((fix for start, fix in UNTRAINABLE.items() if reason.startswith(start)), None)
    return known or f"docs/capture.md lists the reasons; {TRUST.removeprefix('or ')}"


LOST = {
    ("stale", "unknown"): (
        "they were sampled too many versions ago",
        "raise trainer.max_staleness, or raise trainer.min_groups so that versions come more slowly",
    ),
    ("stale", "judge"): (
        "too many versions went live while they waited for the judge",
        "raise judge.concurrency, choose a faster judge.model, or raise trainer.max_staleness",
    ),
    ("stale", "reward"): (
        "too many versions went live while they waited for a reward",
        "post rewards sooner, or raise trainer.max_staleness",
    ),
    ("stale", "forming"): (
        "too many versions went live while they waited for more episodes of their task",
        "run the same task more often at a time, set groups.size lower, or raise trainer.max_staleness",
    ),
    ("stale", "trainer"): (
        "too many versions went live while they waited for the trainer",
        "raise trainer.max_groups, or raise trainer.max_staleness",
    ),
    ("dropped", "unknown"): (
        "their adapter was rolled back, or their episodes were deleted",
        "nothing to do: what a bad adapter sampled must not train the next one",
    ),
    ("dropped", "rolled_back"): (
        "the gate took back the adapter that sampled them",
        "nothing to do: what a bad adapter sampled must not train the next one",
    ),
    ("dropped", "deleted"): ("their episodes were deleted", "nothing to do"),
    ("dropped", "nothing_trainable"): (
        "no call in them can be trained on",
        "see the reasons of untrainable calls, and change what the agent sends",
    ),
}
"""(state, cause) → why, and what to do."""
