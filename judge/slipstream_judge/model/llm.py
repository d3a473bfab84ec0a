"""One call of the judge's model, through LiteLLM: its traps, its errors, what it cost.

LiteLLM's own retries are off. What is tried again, and how long it waits, is decided here: ``Retry-After`` holds back
all calls to that model; a parameter that the model refuses (temperature) is dropped for good. The server is asked and
not a price list: each gets a JSON schema first, plain JSON if it refuses that, and words alone if it refuses both.

A slow server is asked less at once (``Llm.limit``) and waited for longer (``Llm.patience``) after each timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import functools
import json
import logging
import os
import random
import re
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from slipstream.contract import Headers
from slipstream.errors import ConfigError
from slipstream.settings import JudgeConfig
from slipstream.settings.judge import NO_QUOTA, is_own
from slipstream.shared.backoff import Backoff
from slipstream_judge.model.budget import Budget
from slipstream_judge.model.metrics import JudgeMetrics
from slipstream_judge.model.server import (
    OLLAMA_PROVIDERS,
    OwnProxy,
    Served,
    ask,
    base_of,
    bypass,
    ignore_own,
    is_near,
    provider_of,
)
from slipstream_judge.text.excerpts import estimate

log = logging.getLogger(__name__)
LIKE_OPENAI = re.compile(r"openai/|hosted_vllm/|[^/]+$")
CALL_RETRIES = 2
"""How often a call is tried again after a timeout or a server error."""
SLOW_TIMEOUT_FACTOR = 4.0
"""As many times ``judge.timeout`` a call of a slow server may take."""
EASY_CALL_SHARE = 0.25
"""A call of this share of ``judge.timeout`` lets one more run at once."""
OLLAMA_CONTEXT = 16_384
"""Ollama serves 4,096 tokens where nothing is asked, and cuts what is longer."""
LONGEST_ANSWER = 16_384
"""Tokens of a near model's answer with its thoughts: a small model may not find an end."""
ANSWER_SHARE = 4
"""The answer gets one part in this many of a near server's context."""
NO_ROOM = re.compile(
    r"(?i)context (?:size|window|length)\b.*exceed|exceed\w*.*\bcontext (?:size|window|length)|too many tokens"
    r"|longer than the (?:model's )?context|exceed\w*.*context window|exceed_context_size|context_length_exceeded"
)
NO_SYSTEM = re.compile(
    r"(?i)system (?:role|message|prompt)s?\b.*(?:not|n't|un)\s?(?:be )?support|(?:only|not).*system role"
)
ABOUT_FORMAT = ("response_format", "schema", "structured output", "json_object", "grammar", "guided")
RESPONSE_FORMATS = ("bounded_schema", "json_schema", "json_object", None)
"""What is asked for, the next where the server refuses. A near server begins with bounds for texts and numbers: a small
model finds no end of them by itself.
"""
LONGEST_REASON = 400
"""Characters."""
UNRECORDED_HEADERS = {"x-slipstream-capture": "off", "x-slipstream-kind": "judge"}
BEHIND_AGENTS = 1000
"""vLLM's priority of a call of ``self``; the agents' is 0, which goes first where vLLM schedules by priority."""
SLOW_SERVER_RETRY_S = 5.0
"""Seconds until a group is tried again that a slow server had no time for."""
QUOTA_PAUSES_S = (30.0, 300.0)
"""Seconds between two questions to an API without quota: at first, and at most."""
NOT_THE_GROUP = 60.0
"""Seconds until a group is tried again after an error that says nothing about the group (no connection, a wrong key).
"""


class JudgeFailed(Exception):
    """``retry_after``: seconds, if the group did not cause the failure. It then does not count as an attempt."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class OutOfQuota(JudgeFailed):
    """The account that pays for the judge's model has nothing left."""


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


_ASKING: ContextVar[bool] = ContextVar("asking", default=False)
"""A judge's call is under way, here and in threads that it starts."""


@contextlib.contextmanager
def _asking() -> Iterator[None]:
    before = _ASKING.set(True)
    try:
        yield
    finally:
        _ASKING.reset(before)


@functools.cache
def litellm() -> Any:
    """Imported once, when it is first needed: it takes seconds, and would fetch a price list from the network."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm as module

    module.suppress_debug_info = True
    module.telemetry = False
    _follow_nothing()
    return module


def _follow_nothing() -> None:
    """LiteLLM's clients follow redirects, with the conversation and some APIs' keys, to whatever host is named.

    Those of the program that imports this go on as they are: a judge's calls alone follow nothing.
    """
    once, later = httpx.Client.send, httpx.AsyncClient.send

    def send(self: httpx.Client, *args: Any, **more: Any) -> httpx.Response:
        return once(self, *args, **(more | {"follow_redirects": False} if _ASKING.get() else more))

    async def send_later(self: httpx.AsyncClient, *args: Any, **more: Any) -> httpx.Response:
        return await later(self, *args, **(more | {"follow_redirects": False} if _ASKING.get() else more))

    httpx.Client.send, httpx.AsyncClient.send = send, send_later  # type: ignore[method-assign]


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
    """LiteLLM calls a refused connection a server error; what it was stands further down its chain
    (findings/README.md).
    """
    names = {"APIConnectionError", "ConnectError"}
    return any(isinstance(e, ConnectionError) or type(e).__name__ in names for e in _chain(error))


def _status(error: BaseException) -> int:
    """The HTTP status that the API answered with, whatever LiteLLM made of it (it goes by words:
    findings/README.md); 0: none.
    """
    found = [s for e in _chain(error) if isinstance(s := getattr(e, "status_code", None), int)]
    return found[-1] if found else 0


def _said(error: BaseException) -> str:
    """All that the API said of an error. With openai 3 its code, type and parameter stand in no text
    (findings/litellm-openai-3-content-policy-is-a-bad-request.sh).
    """
    bodies = (json.dumps(body, default=str) for e in _chain(error) if (body := getattr(e, "body", None)))
    return " ".join([str(error), *bodies])


class Llm:
    """``model``: LiteLLM's name. A ``deadline`` is in seconds since the epoch."""

    def __init__(
        self,
        judge: JudgeConfig,
        budget: Budget,
        metrics: JudgeMetrics,
        model: str | None = None,
        own: OwnProxy | None = None,
    ) -> None:
        """``own``: where the model is asked if it is ``self``. Raises ``ConfigError`` where that is missing."""
        name = model or judge.model
        if name is None:
            raise JudgeFailed("no judge.model is set")
        self.judge, self.budget, self.metrics, self.model = judge, budget, metrics, name
        self.api_base = None if is_own(judge.model) else judge.api_base
        self.key = os.environ.get(judge.api_key_env) if judge.api_key_env else None
        self.own = is_own(name)
        if self.own:
            if own is None:
                raise ConfigError(f"judge.model = {name!r} needs a proxy: give its address with --url")
            self.tenant = {Headers.TENANT: own.tenant} if own.tenant else {}
            self.model, self.api_base, self.key = own.model(name), f"{own.url}/v1", own.key
        elif own is not None:
            ignore_own(own.url)
        self.base = base_of(self.model, self.api_base)
        self.near = self.own or is_near(self.base)
        if self.near and self.base is not None:
            bypass(self.base)
        self.served = Served()
        self.most = self.limit = judge.concurrency * judge.votes
        """Calls at once: the most, and how many this server bears."""
        self.patience = judge.timeout
        """Seconds that a call may take."""
        self.running = 0
        self._easy = 0
        self._looked = ""
        self._ended = asyncio.Event()
        self._dropped: set[str] = set()
        self._format = 0 if self.near else 1
        self._not_before = 0.0
        self._price_warned = False
        self._quota = Backoff(*QUOTA_PAUSES_S)
        self.out_of_quota: str | None = None
        """What the API said. It is asked by one call at a time until it answers."""
        self._quota_until = self._quota_said = 0.0

    async def look(self, when: Literal["before", "after"] = "before") -> Served:
        """What a near server says of the model. It is asked before the first call, and once more after it.

        Ollama loads a model with the first call.
        """
        if self.near and self.base is not None and self._looked not in {when, "after"}:
            self._looked = when
            self.served = await ask(self.model, self.base, self.key)
            asked = self._num_ctx()
            # what is loaded now may be loaded anew
            if asked is not None and (when == "before" or self.served.context is None):
                self.served.context = asked
            if self.served.slots is not None:
                self.limit = min(self.limit, self.served.slots)
                self.most = min(self.most, self.served.slots)
        return self.served

    def _num_ctx(self) -> int | None:
        """The context that Ollama is asked for; None: another server."""
        wanted = self.judge.params.get("num_ctx", OLLAMA_CONTEXT)
        return wanted if provider_of(self.model) in OLLAMA_PROVIDERS and isinstance(wanted, int) else None

    def _format_of(self, schema: dict[str, Any]) -> dict[str, Any] | None:
        kind = RESPONSE_FORMATS[self._format]
        if kind not in {"bounded_schema", "json_schema"}:
            return {"type": kind} if kind else None
        wanted = bounded(schema) if kind == "bounded_schema" else schema
        return {"type": "json_schema", "json_schema": {"name": kind, "schema": wanted, "strict": True}}

    def _arguments(self, messages: list[dict[str, str]], schema: dict[str, Any]) -> dict[str, Any]:
        j = self.judge
        if "system" in self._dropped:
            messages = [{"role": "user", "content": "\n\n".join(m["content"] for m in messages)}]
        given: dict[str, Any] = {name: value for name, value in j.params.items() if name not in self._dropped}
        given |= {
            "model": self.model,
            "messages": messages,
            "timeout": self.patience,
            "num_retries": 0,  # it repeats a 400, too (findings/README.md)
            "max_retries": 0,
        }
        if self.api_base:
            given["api_base"] = self.api_base
        if self.own:
            given["extra_headers"] = {**UNRECORDED_HEADERS, **self.tenant, **_mapping(given.get("extra_headers"))}
            behind = {} if "priority" in self._dropped else {"priority": BEHIND_AGENTS}
            given["extra_body"] = {**behind, **_mapping(given.get("extra_body"))}
        if self.key:
            given["api_key"] = self.key
        elif self.api_base and LIKE_OPENAI.match(self.model) and not os.environ.get("OPENAI_API_KEY"):
            given["api_key"] = "none"  # local servers take any, but LiteLLM wants one
        if "temperature" not in self._dropped:
            given.setdefault("temperature", 0.0)
        if self.served.context is not None and "max_tokens" not in given:
            given["max_tokens"] = min(LONGEST_ANSWER, self.served.context // ANSWER_SHARE)
        if (asked := self._num_ctx()) is not None:
            given["num_ctx"] = asked
        if "response_format" not in j.params and (wanted := self._format_of(schema)):
            given["response_format"] = wanted
        return given

    async def ask(self, messages: list[dict[str, str]], schema: dict[str, Any], deadline: float) -> Answer:
        """Raises ``JudgeFailed`` (``TooLong`` for a prompt beyond the context), ``OverBudget``."""
        if self.out_of_quota is not None:
            if (left := self.quota_pause()) > 0:
                raise OutOfQuota(self.out_of_quota, max(SLOW_SERVER_RETRY_S, left))
            self._quota_until = time.time() + self._quota.next()
        await self.look()
        tokens = sum(estimate(m["content"]) for m in messages)
        tries = 0
        while True:
            await self._hold(deadline)
            try:
                return await self._once(self._arguments(messages, schema), tokens, deadline)
            except _Again as again:
                if again.counts:
                    tries += 1
                    if tries > CALL_RETRIES:
                        raise JudgeFailed(again.message, again.retry_after) from None
                if again.wait:
                    pause = again.wait * (1 + random.random() / 4)
                    if time.time() + pause > deadline:
                        raise JudgeFailed(again.message, again.retry_after) from None
                    await asyncio.sleep(pause)

    def quota_pause(self) -> float:
        """Seconds until the API is asked again whether it has quota."""
        return max(0.0, self._quota_until - time.time()) if self.out_of_quota is not None else 0.0

    def _note_quota(self, text: str) -> OutOfQuota:
        if self.out_of_quota is None:
            self._quota_until = time.time() + self._quota.next()
        self.out_of_quota = text
        if self._quota_until != self._quota_said:
            self._quota_said = self._quota_until
            log.error(
                "the judge's API has no quota left; it is asked again in %.0f s: restore the quota of the account that "
                "pays for judge.model",
                self.quota_pause(),
            )
        return OutOfQuota(text, max(SLOW_SERVER_RETRY_S, self.quota_pause()))

    async def _hold(self, deadline: float) -> None:
        while (wait := self._not_before - time.time()) > 0:
            if self._not_before > deadline:
                raise JudgeFailed(f"the judge's API asks to wait {wait:.0f} s", wait)
            await asyncio.sleep(min(wait, 1.0))

    async def _turn(self, deadline: float) -> None:
        """Wait until the server bears one more call. A group that waits in vain goes back: it is not at fault."""
        while self.running >= self.limit:
            self._ended.clear()
            left = deadline - time.time() - self.patience
            try:
                async with asyncio.timeout(max(0.0, left)):
                    await self._ended.wait()
            except TimeoutError:
                raise JudgeFailed("the judge's server had no time for this group", SLOW_SERVER_RETRY_S) from None
        self.running += 1

    def _quicken(self, seconds: float) -> None:
        """After as many quick calls as run at once, and four times more, one more may."""
        self._easy = self._easy + 1 if seconds < EASY_CALL_SHARE * self.judge.timeout else 0
        if self._easy >= 4 * self.limit and self.limit < self.most:
            self.limit, self._easy = self.limit + 1, 0

    def _slower(self, text: str) -> _Again:
        """A call took too long: fewer at once; where it was alone, more time."""
        self._easy = 0
        if self.limit > 1 and self.running > 1:
            self.limit = max(1, min(self.limit, self.running) // 2)
            log.warning(
                "the judge's server was too slow with %s calls at once: %s from now on", self.running, self.limit
            )
            return _Again(text, wait=0.2, counts=True, retry_after=SLOW_SERVER_RETRY_S)
        longest = SLOW_TIMEOUT_FACTOR * self.judge.timeout
        if self.patience < longest:
            self.patience = min(longest, 2 * self.patience)
            log.warning("the judge's server was too slow: a call may take %.0f s from now on", self.patience)
            return _Again(text, wait=0.2, counts=True, retry_after=SLOW_SERVER_RETRY_S)
        return _Again(text, wait=0.2, counts=True)

    async def _once(self, arguments: dict[str, Any], reserve: int, deadline: float) -> Answer:
        module = litellm()
        await self._turn(deadline)
        try:
            await self.budget.take(reserve, deadline)
            began = time.monotonic()
            usage = Usage(calls=1)
            try:
                with _asking():
                    async with asyncio.timeout(arguments["timeout"] + 5):
                        reply = await module.acompletion(**arguments)
                usage.seconds = time.monotonic() - began
                answer = _read(reply, usage)
            except Exception as error:
                raise self._explain(error, arguments) from error
            finally:
                self.budget.spend(reserve, usage.tokens, usage.cost)
        finally:
            self.running -= 1
            self._ended.set()
        self._quicken(usage.seconds)
        if self.out_of_quota is not None:
            log.warning("the judge's API has quota again; the judge goes on")
            self.out_of_quota = None
            self._quota.reset()
        if usage.cost is None and self.judge.dollars_per_day is not None and not self._price_warned:
            self._price_warned = True
            log.warning("LiteLLM knows no price for %s: judge.dollars_per_day cannot be enforced", self.model)
        m = self.metrics
        m.calls.labels("answered").inc()
        m.call_seconds.observe(usage.seconds)
        m.tokens.labels("prompt").inc(usage.prompt_tokens)
        m.tokens.labels("completion").inc(usage.completion_tokens)
        m.cost.inc(usage.cost or 0.0)
        return answer

    def _explain(self, error: Exception, arguments: dict[str, Any]) -> Exception:
        """What an error means: try again (``_Again``), or give the group up for now (``JudgeFailed``)."""
        m = litellm()
        text = f"{type(error).__name__}: {error}"[:500]
        count = self.metrics.calls.labels
        status, said = _status(error), _said(error)
        if 300 <= status < 400:
            count("error").inc()
            why = "which is never followed: set judge.api_base to the address that answers"
            return JudgeFailed(f"the judge's API redirects (status {status}), {why}", NOT_THE_GROUP)
        if isinstance(error, m.ContextWindowExceededError) or NO_ROOM.search(said):
            count("too_long").inc()
            return TooLong(text)
        if isinstance(error, m.ContentPolicyViolationError) or "content_policy_violation" in said:
            count("refused").inc()
            return PromptRefused(text)
        if status == 402 or NO_QUOTA.search(said):
            count("out_of_quota").inc()
            return self._note_quota(text)
        if isinstance(error, m.RateLimitError) or status in {429, 529}:
            count("rate_limited").inc()
            return self._slow_down(_headers(error), text)
        if isinstance(error, m.Timeout | TimeoutError):
            count("timeout").inc()
            return self._slower(text)
        if self._asks_less(said, arguments):
            return _Again(text)
        if status in {400, 422} and (name := self._refused_parameter(said, arguments)):
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
        away = status in {502, 503, 504}  # a server that loads its model says 503
        return _Again(text, wait=0.5, counts=True, retry_after=10.0 if away else None)

    def _asks_less(self, said: str, arguments: dict[str, Any]) -> bool:
        """Whether the server refused the form of the answer, or the system message. It is asked without, then."""
        low = said.lower()
        own = "response_format" in arguments and "response_format" not in self.judge.params
        if own and any(word in low for word in ABOUT_FORMAT):
            asked = arguments["response_format"]
            if asked.get("json_schema", {}).get("name", asked["type"]) == RESPONSE_FORMATS[self._format]:
                log.warning(
                    "the judge's model does not take response_format %s; going on without",
                    RESPONSE_FORMATS[self._format],
                )
                self._format += 1
            return True
        if len(arguments["messages"]) > 1 and NO_SYSTEM.search(low):
            self._dropped.add("system")
            return True
        return False

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
        if "priority" in low and "priority" in _mapping(arguments.get("extra_body")):
            return "priority"  # not every engine knows it
        return "temperature" if "temperature" in low and "temperature" in arguments else None


def bounded(schema: object) -> object:
    """The schema with an end to each text and number: a grammar then ends them, where the model would not."""
    if not isinstance(schema, dict):
        return schema
    ends = {"string": {"maxLength": LONGEST_REASON}, "number": {"minimum": 0, "maximum": 1}}
    kind = schema.get("type")
    return {k: bounded(v) for k, v in schema.items()} | (ends.get(kind, {}) if isinstance(kind, str) else {})


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


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
    return Answer(_text(message), refusal, choice.finish_reason, usage)


def _text(message: Any) -> str:
    """The answer. Some servers hold a grammar's whole answer for a thought: one that is JSON and nothing else."""
    text, thought = message.content or "", str(getattr(message, "reasoning_content", None) or "").strip()
    return thought if not text.strip() and thought[:1] == "{" and thought[-1:] == "}" else text
