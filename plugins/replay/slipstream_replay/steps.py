"""The recorded steps of a case, asked again of a side: another model, adapter, upstream, system prompt or sampling."""

from __future__ import annotations

import asyncio
import functools
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from slipstream.contract import CallRecord, EpisodeDetail, Headers
from slipstream.errors import ConfigError
from slipstream.shared.prefixes import whole_episode
from slipstream.shared.usage import tokens_of
from slipstream_replay.formats import CHAT_PATH, RESPONSES_PATH, replies_in, route_of, with_chat_reply

RECORDED_SIDE = "recorded"
RECORDED_PROMPT_NOTE = "the recorded prompt, asked anew"
STEP_ATTEMPTS = 3
NOT_SENT = ("stream", "stream_options", "n", "model", "messages", "input", "tools", "metadata", "user", "store")
"""Parameters of a recorded call that a replay sets itself or leaves out."""
SYSTEM_ROLES = ("system", "developer")
JsonObject = dict[str, Any]
Reply = JsonObject
"""``{"message": {...}, "finish_reason": ...}``: one sample, as a chat completion has it."""


@dataclass(frozen=True, slots=True)
class Side:
    """Who is asked, and what of a request is another than was recorded. ``base`` ends in ``/v1``."""

    name: str
    base: str
    model: str | None = None
    """None: each call's own."""
    system: str | None = None
    """The system prompt instead of the recorded one."""
    sampling: JsonObject = field(default_factory=dict)
    recorded: bool = False
    """Nothing is asked: the replies of the record are its samples."""
    ids: bool = False
    """It is a vLLM, so a prompt that is as it was recorded is sent as its recorded token ids."""

    def ids_of(self, call: CallRecord) -> list[int] | None:
        """The recorded prompt, where the side has the recorded call's model (or one of its adapters)."""
        of = (self.model or "").partition("@")[0]
        same = self.system is None and (not of or of in (call.trained, call.model, call.adapter))
        return call.prompt_ids or None if self.ids and same else None

    def body(self, call: CallRecord, samples: int, route: str = CHAT_PATH) -> JsonObject:
        sampling = {k: v for k, v in call.sampling.items() if k not in NOT_SENT and v is not None}
        messages = list(call.messages)
        if self.system is not None:
            at = next(
                (i for i, m in enumerate(messages) if isinstance(m, dict) and m.get("role") in SYSTEM_ROLES), None
            )
            role = messages[at]["role"] if at is not None else "system"
            messages[: at + 1 if at is not None else 0] = [
                *(messages[:at] if at is not None else []),
                {"role": role, "content": self.system},
            ]
        body: JsonObject = {"model": self.model or call.trained or call.model}
        if route == RESPONSES_PATH:
            body |= {"input": messages, "store": False}
            return body | ({"tools": call.tools} if call.tools else {}) | sampling | self.sampling
        body |= {"messages": messages, "n": samples}
        if (ids := self.ids_of(call)) is not None:
            # vLLM takes them instead of the messages from 0.32 on, and an older one leaves them: its answer tells which
            body |= {"kv_transfer_params": {"prompt_token_ids": ids}, "return_token_ids": True}
        return body | ({"tools": call.tools} if call.tools else {}) | sampling | self.sampling


def side_of(words: Sequence[str], base: str) -> Side:
    """A side by words: a base URL (``#MODEL`` behind it: that model there), a file with a system prompt, ``NAME=VALUE``
    (a parameter of sampling), ``recorded``, or the name of a model or an adapter. Raises ``ConfigError``.
    """
    model = system = None
    sampling: JsonObject = {}
    for word in words:
        name, equals, value = word.partition("=")
        if word.startswith(("http://", "https://")):
            url, _, there = word.partition("#")
            base = url.rstrip("/").removesuffix("/v1") + "/v1"
            model = there or model
        elif Path(word).suffix in (".txt", ".md", ".prompt") or Path(word).is_file():
            try:
                system = Path(word).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as e:
                raise ConfigError(f"{word}: {getattr(e, 'strerror', None) or e}") from e
            if not system:
                raise ConfigError(f"{word}: it is empty. Write the system prompt into it, or name another file")
        elif equals and name.isidentifier():
            try:
                sampling[name] = float(value) if "." in value else int(value)
            except ValueError:
                raise ConfigError(f"{word}: the value of {name} is no number") from None
        elif word != RECORDED_SIDE:
            model = word
    recorded = RECORDED_SIDE in words
    if recorded and len(words) > 1:
        raise ConfigError("recorded replies are as they are: give recorded alone")
    return Side(" ".join(words) or RECORDED_PROMPT_NOTE, base, model, system, sampling, recorded)


async def knowing(side: Side, key: str | None) -> Side:
    """The side, with what its server says of itself."""
    if side.recorded:
        return side
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        async with httpx.AsyncClient(timeout=10.0, trust_env=False, headers=headers) as http:
            listed = (await http.get(f"{side.base}/models")).json()["data"]
        vllm = any(m.get("owned_by") == "vllm" for m in listed)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError, AttributeError):
        vllm = False
    return replace(side, ids=vllm)


@dataclass(slots=True)
class ReplayBudget:
    """What a replay may spend. None: no limit."""

    tokens: int | None = None
    seconds: float | None = None
    spent: int = 0
    began: float = field(default_factory=time.monotonic)

    def over(self) -> str | None:
        """Why no further case begins."""
        if self.tokens is not None and self.spent >= self.tokens:
            return f"the budget of {self.tokens} tokens is spent"
        if self.seconds is not None and time.monotonic() - self.began >= self.seconds:
            return f"the budget of {self.seconds:g} seconds is spent"
        return None

    async def begin(
        self, cases: Sequence[ReplayCase], concurrency: int, play: Callable[[ReplayCase], Awaitable[None]]
    ) -> tuple[list[ReplayCase], str | None]:
        """Play them, so many at once. → Those that were begun before it was spent, in their order; why not all were."""
        waiting, begun, stopped = iter(cases), list[ReplayCase](), list[str]()

        async def work() -> None:
            for case in waiting:
                if why := self.over():
                    stopped.append(why)
                    return
                begun.append(case)
                await play(case)

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
        return begun, stopped[-1] if stopped else None


@dataclass(slots=True)
class ReplayStep:
    """One recorded call, and both sides' samples."""

    call: CallRecord
    """Its replies are chat messages, whatever its format."""
    candidate: list[Reply] = field(default_factory=list)
    control: list[Reply] = field(default_factory=list)
    exact: bool = True
    """The engine said that its prompt was the recorded token ids, of each sample that was asked for."""
    route: str = CHAT_PATH
    judged: list[tuple[list[float], list[float]]] = field(default_factory=list)
    """A judge's scores of the candidate's and of the control's samples, in parts that it saw together."""


@dataclass(slots=True)
class ReplayCase:
    episode: EpisodeDetail
    steps: list[ReplayStep]
    skipped: int = 0
    """Calls that are not asked again: of a wire format that a replay does not ask, or without a good reply."""
    error: str | None = None
    """Why it is not compared."""

    def unasked(self) -> ReplayCase:
        """The same case without answers, to be asked once more."""
        return replace(self, steps=[ReplayStep(step.call, route=step.route) for step in self.steps])


def case_of(episode: EpisodeDetail, most: int | None = None) -> ReplayCase:
    """``most``: calls that are asked again, evenly chosen from the first to the last; None: all."""
    whole = whole_episode(episode)
    good = [c for c in whole.call_list if route_of(c) is not None]
    skipped = len(whole.call_list) - len(good)
    if most is not None and len(good) > most:
        good = [good[round(i * (len(good) - 1) / max(most - 1, 1))] for i in range(most)]
    return ReplayCase(whole, [ReplayStep(with_chat_reply(c), route=route_of(c) or CHAT_PATH) for c in good], skipped)


Told = Callable[[int], None]
Turn = Callable[[], AbstractAsyncContextManager[Told | None]]
"""Around each request. It raises ``TimeoutError`` where the request has to give way; it is then sent again. It may want
to be told how many tokens the answer has.
"""


class Replayer:
    """Asks two sides. No call of a replay is stored or trained on by a Slipstream that it goes through."""

    def __init__(
        self, candidate: Side, control: Side, *, samples: int, concurrency: int, budget: ReplayBudget,
        key: str | None = None, each: int | None = None, turn: Turn | None = None,
        headers: Mapping[str, str] | None = None,
        after: Callable[[ReplayCase], Awaitable[None]] | None = None,
    ) -> None:  # fmt: skip
        """``each``: samples of one request; None: all of a step. ``after``: called with each case that was answered."""
        self.candidate, self.control = candidate, control
        self.samples, self.budget, self.each = samples, budget, each or samples
        self.stopped: str | None = None
        """Why not all cases were begun."""
        gate = asyncio.Semaphore(concurrency)
        self._turn: Turn = turn or (lambda: gate)
        self._after = after
        self._concurrency = concurrency
        self._headers = {Headers.SPLIT: "off"} | ({"authorization": f"Bearer {key}"} if key else {})
        self._headers |= headers or {}
        self._run = uuid.uuid4().hex[:16]

    async def run(self, cases: Sequence[ReplayCase]) -> list[ReplayCase]:
        """→ Those that were begun before the budget was spent, in their order."""
        limits = httpx.Limits(max_connections=None)
        timeout = httpx.Timeout(300.0, connect=10.0)
        # reading the certificates would hold up an event loop that also answers agents
        tls = any(side.base.startswith("https:") for side in (self.candidate, self.control))
        async with httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False, verify=tls) as http:
            play = functools.partial(self._case, http)
            begun, self.stopped = await self.budget.begin(cases, self._concurrency, play)
        return begun

    async def _case(self, http: httpx.AsyncClient, case: ReplayCase) -> None:
        try:
            for step in case.steps:
                sides = (self._ask(http, self.candidate, step), self._ask(http, self.control, step))
                candidate, control = await asyncio.gather(*sides, return_exceptions=True)
                # where one side alone breaks, that is an answer, too: a bad one
                if isinstance(candidate, BrokenSide) and not isinstance(control, BaseException):
                    candidate = [BROKEN_REPLY]
                elif isinstance(control, BrokenSide) and not isinstance(candidate, BaseException):
                    control = [BROKEN_REPLY]
                for found in (candidate, control):
                    if isinstance(found, BaseException):
                        raise found
                step.candidate, step.control = candidate, control  # type: ignore[assignment]
            if self._after is not None:
                await self._after(case)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as e:
            case.error = f"{type(e).__name__}: {e}"

    async def _ask(self, http: httpx.AsyncClient, side: Side, step: ReplayStep) -> list[Reply]:
        call = step.call
        if side.recorded:
            return [{"message": m, "finish_reason": call.finish_reason} for m in call.reply]
        name = f"{'candidate' if side is self.candidate else 'control'}-{call.id}"[:120]
        found: list[Reply] = []
        while (left := self.samples - len(found)) > 0:  # some upstreams give one sample whatever n says
            count = min(self.each, left) if step.route == CHAT_PATH else 1
            parts = -(-left // count)
            sizes = [min(count, left - n * count) for n in range(parts)]
            bodies = [side.body(call, n, step.route) for n in sizes]
            answers = await asyncio.gather(*(self._once(http, side, name, body, step.route) for body in bodies))
            ids = side.ids_of(call)
            for answer in answers:
                step.exact = step.exact and ids is not None and answer.get("prompt_token_ids") == ids
                found += replies_in(answer, step.route)
        return found[: self.samples]

    async def _once(self, http: httpx.AsyncClient, side: Side, name: str, body: JsonObject, route: str) -> JsonObject:
        """An answer with a choice at least."""
        # a run of its own: the recorded prompt must not be taken for the next call of the run that it was recorded of
        headers = self._headers | {Headers.EPISODE: f"replay-{self._run}-{name}"}
        attempt = 1
        while True:
            try:
                async with self._turn() as told:
                    response = await http.post(f"{side.base}/{route}", json=body, headers=headers)
                if (response.status_code < 500 and response.status_code != 429) or attempt == STEP_ATTEMPTS:
                    break
            except TimeoutError:
                continue  # somebody else's call goes first
            except httpx.TransportError:
                if attempt == STEP_ATTEMPTS:
                    raise
            await asyncio.sleep(0.5 * attempt)
            attempt += 1
        if not response.is_success:
            kind = BrokenSide if response.status_code >= 500 else ValueError
            raise kind(f"{side.name} answered {response.status_code}: {response.text[:200]}")
        answer: JsonObject = response.json()
        if told is not None:
            told(tokens_of(answer, "completion_tokens" if route == CHAT_PATH else "output_tokens"))
        self.budget.spent += tokens_of(answer, "total_tokens")
        if not replies_in(answer, route):
            raise ValueError(f"{side.name} answered without a choice")
        return answer


class BrokenSide(ValueError):
    """It answers 5xx to this prompt, however often it is asked."""


BROKEN_REPLY: Reply = {"message": {}, "finish_reason": "error"}
