"""One call of the judge's model, through LiteLLM: its traps, its errors, what it cost.

LiteLLM's own retries are off. What is tried again, and how long it waits, is decided here: ``Retry-After`` holds back
all calls to that model; a parameter that the model refuses (temperature, a JSON schema) is dropped for good.
"""

from __future__ import annotations

import asyncio
import email.utils
import functools
import logging
import os
import random
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.settings import JudgeConfig
from slipstream_judge.budget import Budget
from slipstream_judge.excerpts import estimate
from slipstream_judge.metrics import JudgeMetrics

log = logging.getLogger(__name__)
LIKE_OPENAI = re.compile(r"openai/|hosted_vllm/|[^/]+$")
RETRIES = 2
"""How often a call is tried again after a timeout or a server error."""
NOT_THE_GROUP = 60.0
"""Seconds until a group is tried again after an error that says nothing about the group (no connection, a wrong key).
"""


class JudgeFailed(Exception):
    """``retry_after``: seconds, if the group did not cause the failure. It then does not count as an attempt."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooLong(JudgeFailed):
    """The model says that the prompt is beyond its context."""


@dataclass(slots=True)
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = 0.0
    """Dollars; None when LiteLLM does not know the model's price."""
    seconds: float = 0.0
    calls: int = 0

    def add(self, other: Usage) -> None:
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self.cost = None if self.cost is None or other.cost is None else self.cost + other.cost
        self.seconds += other.seconds
        self.calls += other.calls

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(slots=True)
class Answer:
    text: str
    refusal: str | None
    finish: str | None
    usage: Usage


@functools.cache
def litellm() -> Any:
    """Imported once, when it is first needed: it takes seconds, and would fetch a price list from the network."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm as module

    module.suppress_debug_info = True
    module.telemetry = False
    return module


def retry_after(headers: Mapping[str, str] | None) -> float | None:
    """Seconds that a reply's ``Retry-After`` (or ``retry-after-ms``) asks for. None: nothing that can be read."""
    if not headers:
        return None
    low = {str(k).lower(): str(v) for k, v in headers.items()}
    try:
        if "retry-after-ms" in low:
            return max(0.0, float(low["retry-after-ms"]) / 1000)
        value = low.get("retry-after", low.get("llm_provider-retry-after"))
        if value is None:
            return None
        if value.strip().replace(".", "", 1).isdigit():
            return float(value)
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def _headers(error: Exception) -> Mapping[str, str] | None:
    reply = getattr(error, "response", None)
    found = getattr(error, "litellm_response_headers", None) or getattr(reply, "headers", None)
    return found if isinstance(found, Mapping) or found is None else dict(found)


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def _no_connection(error: BaseException) -> bool:
    """LiteLLM calls a refused connection a server error; what it was stands further down its chain."""
    names = {"APIConnectionError", "ConnectError"}
    return any(isinstance(e, ConnectionError) or type(e).__name__ in names for e in _chain(error))


def _status(error: BaseException) -> int:
    """The HTTP status that the API answered with, whatever LiteLLM made of it (it goes by words); 0: none."""
    found = [s for e in _chain(error) if isinstance(s := getattr(e, "status_code", None), int)]
    return found[-1] if found else 0


class Llm:
    """``model``: LiteLLM's name. A ``deadline`` is in seconds since the epoch."""

    def __init__(self, judge: JudgeConfig, budget: Budget, metrics: JudgeMetrics, model: str | None = None) -> None:
        name = model or judge.model
        if name is None:
            raise JudgeFailed("no judge.model is set")
        self.judge, self.budget, self.metrics, self.model = judge, budget, metrics, name
        self.key = os.environ.get(judge.api_key_env) if judge.api_key_env else None
        self._dropped: set[str] = set()
        self._not_before = 0.0
        self._schema: bool | None = None
        self._price_warned = False

    def _supports_schema(self) -> bool:
        if self._schema is None:
            try:
                self._schema = bool(litellm().supports_response_schema(model=self.model))
            except Exception:
                self._schema = False
        return self._schema

    def _arguments(self, messages: list[dict[str, str]], schema: dict[str, Any]) -> dict[str, Any]:
        j = self.judge
        given: dict[str, Any] = {name: value for name, value in j.params.items() if name not in self._dropped}
        given |= {"model": self.model, "messages": messages, "timeout": j.timeout, "num_retries": 0, "max_retries": 0}
        if j.api_base:
            given["api_base"] = j.api_base
        if self.key:
            given["api_key"] = self.key
        elif j.api_base and LIKE_OPENAI.match(self.model) and not os.environ.get("OPENAI_API_KEY"):
            given["api_key"] = "none"  # local servers take any, but LiteLLM wants one
        if j.temperature is not None and "temperature" not in self._dropped:
            given["temperature"] = j.temperature
        if j.max_tokens is not None:
            given["max_tokens"] = j.max_tokens
        if "response_format" not in self._dropped and self._supports_schema():
            named = {"name": "scores", "schema": schema, "strict": True}
            given["response_format"] = {"type": "json_schema", "json_schema": named}
        return given

    async def ask(self, messages: list[dict[str, str]], schema: dict[str, Any], deadline: float) -> Answer:
        """Raises ``JudgeFailed`` (``TooLong`` for a prompt beyond the context), ``OverBudget``."""
        tokens = sum(estimate(m["content"]) for m in messages)
        tries = 0
        while True:
            await self._hold(deadline)
            try:
                return await self._once(self._arguments(messages, schema), tokens, deadline)
            except _Again as again:
                if again.counts:
                    tries += 1
                    if tries > RETRIES:
                        raise JudgeFailed(again.message, again.retry_after) from None
                if again.wait:
                    pause = again.wait * (1 + random.random() / 4)
                    if time.time() + pause > deadline:
                        raise JudgeFailed(again.message, again.retry_after) from None
                    await asyncio.sleep(pause)

    async def _hold(self, deadline: float) -> None:
        while (wait := self._not_before - time.time()) > 0:
            if self._not_before > deadline:
                raise JudgeFailed(f"the judge's API asks to wait {wait:.0f} s", wait)
            await asyncio.sleep(min(wait, 1.0))

    async def _once(self, arguments: dict[str, Any], reserve: int, deadline: float) -> Answer:
        module = litellm()
        await self.budget.take(reserve, deadline)
        began = time.monotonic()
        usage = Usage(calls=1)
        try:
            async with asyncio.timeout(self.judge.timeout + 5):
                reply = await module.acompletion(**arguments)
            usage.seconds = time.monotonic() - began
            answer = _read(reply, usage)
        except Exception as error:
            raise self._explain(error, arguments, deadline) from error
        finally:
            self.budget.spend(reserve, usage.tokens, usage.cost)
        if usage.cost is None and self.judge.dollars_per_day is not None and not self._price_warned:
            self._price_warned = True
            log.warning("LiteLLM knows no price for %s: judge.dollars_per_day cannot be kept", self.model)
        m = self.metrics
        m.calls.labels("answered").inc()
        m.call_seconds.observe(usage.seconds)
        m.tokens.labels("prompt").inc(usage.prompt_tokens)
        m.tokens.labels("completion").inc(usage.completion_tokens)
        m.cost.inc(usage.cost or 0.0)
        return answer

    def _explain(self, error: Exception, arguments: dict[str, Any], deadline: float) -> Exception:
        """What an error means: try again (``_Again``), or give the group up for now (``JudgeFailed``)."""
        m = litellm()
        text = f"{type(error).__name__}: {error}"[:500]
        count = self.metrics.calls.labels
        status = _status(error)
        if isinstance(error, m.ContextWindowExceededError):
            count("too_long").inc()
            return TooLong(text)
        if isinstance(error, m.ContentPolicyViolationError):
            count("refused").inc()
            return PromptRefused(text)
        if isinstance(error, m.RateLimitError) or status in {429, 529}:
            count("rate_limited").inc()
            return self._slow_down(_headers(error), text)
        if isinstance(error, m.Timeout | TimeoutError):
            count("timeout").inc()
            return _Again(text, wait=0.2, counts=True)
        if isinstance(error, m.BadRequestError) and (name := self._refused_parameter(str(error), arguments)):
            log.warning("the judge's model does not take %s; going on without", name)
            self._dropped.add(name)
            return _Again(text)
        count("error").inc()
        if status in {401, 403, 404} or isinstance(error, m.AuthenticationError):
            return JudgeFailed(text, NOT_THE_GROUP)
        if _no_connection(error):
            return _Again(text, wait=0.5, counts=True, retry_after=10.0)
        if status == 503 and retry_after(_headers(error)) is not None:
            return self._slow_down(_headers(error), text)
        if status < 500 and isinstance(error, m.BadRequestError):
            return JudgeFailed(text)
        return _Again(text, wait=0.5, counts=True)

    def _slow_down(self, headers: Mapping[str, str] | None, text: str) -> _Again:
        wait = retry_after(headers)
        if wait is None:
            return _Again(text, wait=1.0, retry_after=30.0)
        self._not_before = max(self._not_before, time.time() + wait)
        return _Again(text)

    def _refused_parameter(self, text: str, arguments: dict[str, Any]) -> str | None:
        low = text.lower()
        for name in self.judge.params:
            if name.lower() in low and name in arguments:
                return name
        if "temperature" in low and "temperature" in arguments:
            return "temperature"
        about_schema = any(word in low for word in ("response_format", "schema", "structured output"))
        return "response_format" if "response_format" in arguments and about_schema else None


class PromptRefused(JudgeFailed):
    """The API would not have the prompt (content policy)."""


class _Again(Exception):
    """``wait`` seconds (0: at once), then once more.

    ``counts`` towards RETRIES; ``retry_after`` as in ``JudgeFailed`` if it is given up.
    """

    def __init__(
        self, message: str, wait: float = 0.0, *, counts: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.wait, self.counts, self.retry_after = message, wait, counts, retry_after


def _read(reply: Any, usage: Usage) -> Answer:
    choice = reply.choices[0]
    message = choice.message
    fields = getattr(message, "provider_specific_fields", None) or {}
    refusal = getattr(message, "refusal", None) or fields.get("refusal")
    if choice.finish_reason == "content_filter" and not refusal:
        refusal = "content filter"
    used = getattr(reply, "usage", None)
    usage.prompt_tokens = int(getattr(used, "prompt_tokens", 0) or 0)
    usage.completion_tokens = int(getattr(used, "completion_tokens", 0) or 0)
    cost = (getattr(reply, "_hidden_params", None) or {}).get("response_cost")
    usage.cost = float(cost) if isinstance(cost, int | float) else None
    return Answer(message.content or "", refusal, choice.finish_reason, usage)
