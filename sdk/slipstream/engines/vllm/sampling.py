"""What an engine samples with where a call says nothing of it.

vLLM takes such values from the model's ``generation_config.json``, unless it was started with ``--generation-config
vllm``. They are no part of a call and of no reply, so they have to be found out: else a call at temperature 0.7 would
be recorded as one at 1.0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from slipstream.engines.engine import (
    NEUTRAL_SAMPLING,
    EngineQuestion,
    EngineSampling,
    Json,
    JsonDict,
    Reading,
    Steps,
    reading,
)
from slipstream.shared.hub import model_folder

LIKELIEST_TOKENS_ASKED = 5
MIN_LOGPROB_CHANGE_NATS = 0.01
"""Nats. A busy GPU's rounding moves a log-probability by less, and a cut or a penalty by more."""
NO_CONFIG = "start vLLM with --generation-config vllm, so that calls that say nothing are sampled as the model likes"
PROMPT_TEXTS: JsonDict = {"prompt": ["a", "The", '{"', "\n\n"]}
FLAT_QUESTION: JsonDict = {**PROMPT_TEXTS, "temperature": 1e4}
"""All tokens are about as likely: a cut at the likeliest shows."""
WARM_QUESTION: JsonDict = {**PROMPT_TEXTS, "temperature": 2.0}
"""The same for vLLM from 0.32 on, which takes no higher temperature."""
COLD_QUESTION: JsonDict = {**PROMPT_TEXTS, "temperature": 0.3}
"""Few tokens are likely: a cut of the unlikely ones shows."""
REPEATED_QUESTION: JsonDict = {
    "prompt": [[40] * 4, [50] * 4, [60] * 4],
    "allowed_token_ids": [40, 45, 50, 55, 60, 65],
    **{name: NEUTRAL_SAMPLING[name] for name in ("temperature", "top_p", "top_k", "min_p")},
}
"""Only some tokens may come, and one of them was said before: a penalty on that shows."""
SAMPLING_QUESTIONS = (PROMPT_TEXTS, FLAT_QUESTION, COLD_QUESTION, REPEATED_QUESTION)

QUESTION_TIMEOUT_S = 20.0
"""Seconds for a question."""


def apart_from_neutral(found: Mapping[str, object]) -> dict[str, float]:
    """The fields of ``NEUTRAL_SAMPLING`` that have another value."""
    values = {
        name: value
        for name in NEUTRAL_SAMPLING
        if isinstance(value := found.get(name), int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
    if values.get("top_k") == -1:
        values["top_k"] = 0
    return {name: value for name, value in values.items() if value != NEUTRAL_SAMPLING[name]}


def generation_config(model: str | None) -> dict[str, float]:
    """What the model's own file would have a call sampled with, as far as the model is on this machine."""
    folder = model_folder(model)
    try:
        read = json.loads((folder / "generation_config.json").read_text()) if folder else {}
    except (OSError, ValueError):
        return {}
    return apart_from_neutral(read) if isinstance(read, dict) else {}


def find_sampling(model: str, root: str | None, hello: Json) -> Steps[EngineSampling]:
    """``root``: where the engine has its model from. ``hello``: what it answers at ``/slipstream``; the plugin knows.
    Without it, ``/v1/responses`` tells a part, and the rest shows in the next token's log-probabilities.
    """
    told = hello.get("sampling") if isinstance(hello, dict) else None
    if isinstance(told, dict):
        return EngineSampling(apart_from_neutral(told), raw=str(hello.get("logprobs_mode", "")).startswith("raw"))
    # 16 is the least that some versions take
    echo = {"model": model, "input": "a", "max_output_tokens": 16, "store": False}
    echoed = (yield EngineQuestion("POST", "/v1/responses", echo, QUESTION_TIMEOUT_S)).object
    seen = apart_from_neutral(echoed)
    file = generation_config(root)
    fits = bool(file) and all(
        file.get(name, NEUTRAL_SAMPLING[name]) == echoed[name] for name in NEUTRAL_SAMPLING if name in echoed
    )
    questions, silent = list(SAMPLING_QUESTIONS), []
    for question in SAMPLING_QUESTIONS:
        answer = yield _completion(model, question)
        silent.append(reading(answer.object))
    hot = silent[1] is not None
    if not hot:
        questions[1] = WARM_QUESTION
        silent[1] = reading((yield _completion(model, WARM_QUESTION)).object)
    flat, cold = silent[1:3]
    if flat is None or not _differ(flat, cold):  # nothing shows in its log-probabilities
        sure = (fits and bool(seen)) or not (seen or file)
        return EngineSampling(file if fits and seen else seen, known=sure, raw=flat is not None)
    guessed = seen | _top_k(flat, seen) if hot else seen
    for values in (file, seen) if fits else (seen, guessed):
        for question, before in zip(questions, silent, strict=True):
            said = reading((yield _completion(model, NEUTRAL_SAMPLING | values | question)).object)
            if before is None or _differ(before, said):
                break
        else:
            return EngineSampling(values)
    return EngineSampling(seen, known=False)


def _top_k(flat: Reading, seen: Mapping[str, float]) -> dict[str, float]:
    """Where all tokens are as likely, their likelihood says how many there are; ``top_p`` takes a part of them."""
    kept = min(math.exp(min(30.0, -max(after.values()))) for after in flat)
    return {"top_k": round(kept / seen.get("top_p", 1.0))}


def _completion(model: str, question: JsonDict) -> EngineQuestion:
    asked = {"model": model, "max_tokens": 1, "logprobs": LIKELIEST_TOKENS_ASKED, "return_tokens_as_token_ids": True}
    return EngineQuestion("POST", "/v1/completions", asked | question, QUESTION_TIMEOUT_S)


def _differ(one: Reading, other: Reading | None) -> bool:
    """Whether some token's log-probability is another. The sampled token alone may be in one answer only."""
    pairs = zip(one, other or [], strict=False)
    return any(abs(a[t] - b[t]) > MIN_LOGPROB_CHANGE_NATS for a, b in pairs for t in a.keys() & b.keys())
