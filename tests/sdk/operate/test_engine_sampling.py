"""Calls that say nothing are recorded as they were sampled, or not trained on: with generation configs as models ship them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.engines.engine import NEUTRAL_SAMPLING, EngineAnswer, EngineQuestion, EngineSampling, Steps, ask_now
from slipstream.engines.vllm.sampling import (
    LIKELIEST_TOKENS_ASKED,
    apart_from_neutral,
    find_sampling,
    generation_config,
)


def answered(steps: Steps[EngineSampling], ask: Callable[[str, dict[str, Any]], Any]) -> EngineSampling:
    """``ask(path, body)`` → the answer's JSON; None: the engine refuses."""

    def answer(question: EngineQuestion) -> EngineAnswer:
        found = ask(question.path, question.body or {})
        return EngineAnswer(400 if found is None else 200, found, "")

    return ask_now(steps, answer)


SHIPPED: dict[str, dict[str, float]] = {
    "Qwen2.5": {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
    "Qwen3": {"temperature": 0.6, "top_p": 0.95, "top_k": 20},
    "Llama-3": {"temperature": 0.6, "top_p": 0.9},
    "Gemma-3": {"top_k": 64, "top_p": 0.95},
    "SmolLM3": {"temperature": 0.6, "top_p": 0.95},
    "Kimi": {"temperature": 0.6},
    "a penalty": {"repetition_penalty": 1.1},
    "few tokens": {"top_k": 20},
    "no unlikely ones": {"min_p": 0.05},
    "none": {},
}
VOCABULARY = 2000


def engine(
    own: dict[str, float], *, processed: bool, responses: bool = True, hottest: float = 1e6
) -> Callable[[str, dict[str, Any]], Any]:
    """Answers as vLLM does: a value of the call, else its own, else a neutral one. ``hottest``: temperature it takes."""

    def ask(path: str, body: dict[str, Any]) -> Any:
        asked = {**NEUTRAL_SAMPLING, **own, **{n: body[n] for n in NEUTRAL_SAMPLING if body.get(n) is not None}}
        if path == "/v1/responses":
            told = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
            return {name: asked[name] for name in told} if responses else None
        if asked["temperature"] > hottest:
            return None
        choices = []
        for index, prompt in enumerate(body["prompt"]):
            seen = [*{ord(t) if isinstance(t, str) else t for t in prompt}]
            z = np.random.default_rng(len(prompt) + seen[0]).normal(0, 2.5, VOCABULARY)
            if processed:
                banned = np.ones(VOCABULARY, bool)
                banned[body.get("allowed_token_ids", slice(None))] = False
                z[banned] = -np.inf
                z[seen] = np.where(
                    z[seen] > 0, z[seen] / asked["repetition_penalty"], z[seen] * asked["repetition_penalty"]
                )
                z = z / asked["temperature"]
                p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
                order = np.argsort(-p)
                p[order[int(asked["top_k"]) or VOCABULARY :]] = 0
                p /= p.sum()
                keep = p[order].cumsum() - p[order] < asked["top_p"]
                keep &= p[order] > 0
                keep &= p[order] >= asked["min_p"] * p.max()
                z[order[~keep]] = -np.inf
            lp = z - z.max() - np.log(np.exp(z - z.max()).sum())
            top = {f"token_id:{i}": max(float(lp[i]), -9999.0) for i in np.argsort(-lp)[:LIKELIEST_TOKENS_ASKED]}
            choices.append({"index": index, "logprobs": {"top_logprobs": [top]}})
        return {"choices": choices[::-1]}

    return ask


def model(path: Path, config: dict[str, float]) -> str:
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "generation_config.json").write_text(json.dumps({"do_sample": True, **config}))
    return str(path)


@pytest.mark.parametrize("file", [True, False])
@pytest.mark.parametrize("processed", [True, False])
@pytest.mark.parametrize("name", SHIPPED)
def test_nothing_is_taken_for_what_it_is_not(tmp_path: Path, name: str, processed: bool, file: bool) -> None:
    own = SHIPPED[name]
    root = model(tmp_path / "m", own) if file else "org/elsewhere"
    found = answered(find_sampling("m", root, None), engine(own, processed=processed))
    assert found.raw is not processed
    assert found == EngineSampling(own) or not found.known or not processed, found
    if not processed:  # these calls have log-probabilities of another distribution: the doctor refuses them
        assert found.values.keys() <= own.keys()
    if (
        not own
        or (file and "temperature" in own)
        or (processed and (file or own.keys() <= {"temperature", "top_p", "top_k"}))
    ):
        assert found == EngineSampling(own, raw=not processed)


@pytest.mark.parametrize("file", [True, False])
@pytest.mark.parametrize("processed", [True, False])
@pytest.mark.parametrize("name", SHIPPED)
def test_an_engine_that_takes_no_high_temperature(tmp_path: Path, name: str, processed: bool, file: bool) -> None:
    """vLLM from 0.32 on: log-probabilities before temperature are seen all the same, and nothing hidden is passed over."""
    own = SHIPPED[name]
    root = model(tmp_path / "m", own) if file else "org/elsewhere"
    found = answered(find_sampling("m", root, None), engine(own, processed=processed, hottest=2.0))
    assert found.raw is not processed
    if processed:
        assert found.known is (file or own.keys() <= {"temperature", "top_p"})
        assert found.values == own or not found.known


@pytest.mark.parametrize("name", SHIPPED)
def test_a_file_that_the_engine_does_not_use_is_no_sampling(tmp_path: Path, name: str) -> None:
    root = model(tmp_path / "m", SHIPPED[name])
    assert answered(find_sampling("m", root, None), engine({}, processed=True)) == EngineSampling()


@pytest.mark.parametrize("name", SHIPPED)
def test_without_the_responses_route(name: str) -> None:
    found = answered(find_sampling("m", None, None), engine(SHIPPED[name], processed=True, responses=False))
    assert found == EngineSampling(SHIPPED[name] if name in ("none", "few tokens") else {}, known=found.known)
    assert found.known is (name in ("none", "few tokens"))


def test_the_plugin_knows() -> None:
    told = {"packed": 1, "sampling": NEUTRAL_SAMPLING | SHIPPED["Qwen3"]}
    found = answered(find_sampling("m", None, told), lambda *_: pytest.fail("nothing need be asked"))
    assert found == EngineSampling(SHIPPED["Qwen3"])
    assert answered(find_sampling("m", None, told | {"logprobs_mode": "raw_logprobs"}), lambda *_: None).raw
    assert found.said() == "temperature 0.6, top_p 0.95, top_k 20"


def test_an_engine_that_answers_nothing_is_taken_as_it_was_started() -> None:
    assert answered(find_sampling("m", None, None), lambda *_: None) == EngineSampling()


def test_what_files_say(tmp_path: Path) -> None:
    assert generation_config(model(tmp_path / "m", SHIPPED["Qwen3"])) == SHIPPED["Qwen3"]
    (tmp_path / "m" / "generation_config.json").write_text("[")
    assert generation_config(str(tmp_path / "m")) == generation_config(None) == {}
    assert apart_from_neutral({"top_k": -1, "top_p": True, "temperature": None, "min_p": float("nan")}) == {}
    assert EngineSampling({"temperature": 0.7}).cuts is False
    assert (
        EngineSampling({"temperature": 0.7}, known=False).said() == "temperature 0.7 and others that it does not tell"
    )
