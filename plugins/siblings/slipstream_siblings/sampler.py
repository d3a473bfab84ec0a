"""More samples of steps that agents took, in the engine's idle time (``explore = "siblings"``).

The agent has had its answer and sees no other one. A step's samples have one prompt, the recorded token ids. Each is
written to the log as an episode of one call, in a split of its own. They are a group, which a judge scores and the
trainer learns from.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from slipstream.contract import EXPLORE_TAG, SIBLING_TAG, SIBLINGS_TAG, Split, sibling_of
from slipstream.engines.engine import NEUTRAL_SAMPLING, EngineAway
from slipstream.settings import ModelRoute
from slipstream.settings.proxy import route_of
from slipstream.shared.backoff import rest
from slipstream.shared.clock import DAY_S
from slipstream.shared.usage import tokens_of
from slipstream_proxy.assignment import place
from slipstream_proxy.control.adapters.registry import AdapterRegistry
from slipstream_proxy.control.adapters.rehearsal import RehearsalSlot
from slipstream_proxy.control.engines.pool import EnginePool
from slipstream_proxy.control.engines.replica import EngineReplica
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import end, in_thread
from slipstream_proxy.control.storage.access import StoreAccess
from slipstream_proxy.control.storage.spool_reader import Item
from slipstream_proxy.dialects.base import dumps
from slipstream_proxy.dialects.sampling import TOKEN_FILTERS, has_media
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.log.ids import new_id
from slipstream_proxy.log.records import CallHead, Kind, Parsed
from slipstream_proxy.log.spool import SpoolWriter
from slipstream_proxy.redaction import Redaction, make_texts, redaction_of
from slipstream_proxy.store.conversation.kinds import EpisodeKinds, Opening
from slipstream_proxy.store.values import RecordedCall
from slipstream_siblings.idle import IdleTurns, at_once, load_of
from slipstream_siblings.metrics import SiblingMetrics

log = logging.getLogger(__name__)

MAX_WAITING_STEPS = 256
"""Newest steps that wait for the engine."""
CONCURRENT_STEPS = 8
"""Steps that are sampled at once."""
NEXT_STEP_INTERVAL_S = 0.1
"""Seconds until the next look for a step, while others are sampled."""
SAMPLE_TIMEOUT_S = 300.0
"""Seconds for one sample."""
MAX_STEP_AGE_S = 3600.0
"""Seconds after which a step is not sampled any more."""
BLOCKED_RETRY_INTERVAL_S = 10.0
"""Seconds until the next look, where nothing can be sampled now."""
UNLIMITED_SAMPLE_TOKENS = 16_384
"""Tokens that a sample may have whose step named no limit: so many are set aside for it."""
KEPT_SAMPLING_FIELDS = ("stop", "stop_token_ids", "max_tokens", "max_completion_tokens")
"""Of the step's own settings: where a reply ends. Everything else is the policy's own."""


@dataclass(slots=True, frozen=True)
class LiveStep:
    head: CallHead
    parsed: Parsed
    route: ModelRoute

    def body(self) -> JsonObject:
        """The request of one more sample, without its model. A grammar, and what else shaped the reply, is left out,
        and so is what the engine would take by itself.
        """
        return {**self._asked(*KEPT_SAMPLING_FIELDS), **NEUTRAL_SAMPLING, "logprobs": True, "return_token_ids": True}

    def most(self) -> int:
        """Tokens that all its samples may have."""
        asked = [self.parsed.sampling.get(name) for name in ("max_completion_tokens", "max_tokens")]
        limit = next((n for n in asked if isinstance(n, int) and n > 0), UNLIMITED_SAMPLE_TOKENS)
        return self.route.explore_samples * limit

    def live(self) -> tuple[JsonObject, JsonObject] | None:
        """The answer that the agent had, as a request and its reply. None: it is not the policy's own sample."""
        parsed, choice = self.parsed, self.parsed.choices[0]
        if parsed.untrainable is not None or not choice.completion_ids:
            return None
        content = [{"token": "", "logprob": x} for x in choice.logprobs]
        made = {"index": 0, "message": choice.message, "finish_reason": choice.finish_reason}
        made |= {"token_ids": choice.completion_ids, "logprobs": {"content": content}}
        reply: JsonObject = {"choices": [made], "prompt_token_ids": parsed.prompt_ids}
        return self._asked(*KEPT_SAMPLING_FIELDS, "temperature", *TOKEN_FILTERS), reply

    def _asked(self, *settings: str) -> JsonObject:
        """The step's request, with these of its own settings."""
        parsed = self.parsed
        tools = {"tools": parsed.tools} if parsed.tools else {}
        asked = {name: value for name, value in parsed.sampling.items() if name in settings}
        return {"messages": parsed.messages, **tools, **asked}


@dataclass(slots=True, frozen=True)
class SiblingReply:
    adapter: str
    upstream: str
    request: JsonObject
    reply: JsonObject
    at: float
    seconds: float


class SiblingSampler:
    def __init__(
        self,
        access: StoreAccess,
        writer: SpoolWriter,
        registry: AdapterRegistry,
        engines: EnginePool,
        rehearsals: RehearsalSlot,
        metrics: SiblingMetrics,
    ) -> None:
        self.access, self.writer, self.registry, self.engines = access, writer, registry, engines
        self.rehearsals, self.metrics = rehearsals, metrics
        self.waiting: deque[LiveStep] = deque(maxlen=MAX_WAITING_STEPS)
        self._day = 0.0
        self._spent: dict[str, int] = {}
        """Model → tokens that were sampled since the day began. Those that were thrown away are in no store."""
        self._reserved: Counter[str] = Counter()
        """Model → tokens that its steps may still have which are being sampled."""
        self.busy = 0
        """Steps that are being sampled."""
        self._routes = any(r.explore == "siblings" for r in access.config.models.values())
        self._untrained = frozenset(access.config.identity.untrained_kinds)
        self._turns = IdleTurns(
            lambda: load_of(self.engines, self._engine), engines.awake, at_once=lambda: at_once(engines)
        )
        self._engine: EngineReplica | None = None
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        if self._routes:
            self._tasks = [asyncio.create_task(self._run(), name="siblings")]

    async def stop(self) -> None:
        await end(self._tasks)

    async def today(self) -> dict[str, int]:
        """Model → tokens that were sampled today."""
        routes = [r for r in self.access.config.models.values() if r.explore == "siblings"]
        return {m: await self._spent_today(m) for m in {r.trained or self.access.config.model_name for r in routes}}

    async def _spent_today(self, model: str) -> int:
        day = self.access.now() // DAY_S * DAY_S
        stored = await self.access.ask(self.access.store.episodes.sampled, model, day)
        if day != self._day:
            self._day, self._spent = day, {}
        self._spent[model] = max(self._spent.get(model, 0), stored)  # more is stored where other proxies sample, too
        return self._spent[model]

    def agents_came(self) -> None:
        self._turns.agents_came()

    def saw(self, items: Sequence[Item]) -> None:
        """The store has these. The newest steps come first, and the oldest are given up."""
        if not self._routes:
            return
        for item in items:
            if isinstance(item, RecordedCall) and (step := self._step(item)) is not None:
                self.waiting.append(step)
                self._wake.set()

    def _step(self, call: RecordedCall) -> LiveStep | None:
        head, parsed = call.head, call.parsed
        route = route_of(self.access.config.models, head.model)
        if route is None or route.explore != "siblings" or head.trained is None or head.split != Split.TRAIN:
            return None
        if head.at < self.access.now() - MAX_STEP_AGE_S:  # the store is filled again
            return None
        as_chat = head.dialect == "chat" or head.extra.get("route") == "chat"
        whole = head.outcome == "ok" and head.status == 200 and not head.note and not has_media(parsed.messages)
        if not (as_chat and whole and parsed.prompt_ids and parsed.choices):
            return None
        opening = Opening(parsed.messages, tools=bool(parsed.tools))
        if EpisodeKinds().of(opening, None, head.kind) in self._untrained:
            return None
        return LiveStep(head, parsed, route) if place("siblings", "", None, head.id) < route.explore_share else None

    # the task

    async def _run(self) -> None:
        while True:
            await rest(BLOCKED_RETRY_INTERVAL_S, self._wake)
            self._wake.clear()
            if not self.waiting or self.rehearsals.current.running is not None:
                continue
            try:
                await self._session()
            except* Problem:
                log.warning("no steps are sampled while the store does not answer")
            except* Exception:
                log.exception("sampling steps failed; it goes on with others")

    async def _session(self) -> None:
        """While steps wait and may be sampled."""
        turns = self._turns
        turns.agents_came()  # nothing is known yet of the engine's load
        watch = asyncio.create_task(turns.watch(), name="idle time for siblings")
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(CONCURRENT_STEPS):
                    group.create_task(self._work(turns))
        finally:
            await end([watch])
            self._engine = None

    async def _work(self, turns: IdleTurns) -> None:
        """One step after another. Steps can come while others are sampled, so it stays as long as those are."""
        while (self.waiting or self.busy) and self.rehearsals.current.running is None:
            if not self.waiting:
                await asyncio.sleep(NEXT_STEP_INTERVAL_S)
                continue
            step = self.waiting.pop()
            self.busy += 1
            try:
                if not await self._step_sampled(step, turns):
                    return
            finally:
                self.busy -= 1

    async def _step_sampled(self, step: LiveStep, turns: IdleTurns) -> bool:
        """False: no engine has the live adapter."""
        model = str(step.head.trained)
        spent = await self._spent_today(model)
        if spent >= step.route.explore_tokens:
            self.metrics.siblings.labels("budget").inc()
            return True
        if spent + self._reserved[model] >= step.route.explore_tokens:
            self.waiting.append(step)  # until it is known what the others took
            await asyncio.sleep(NEXT_STEP_INTERVAL_S)
            return True
        self._reserved[model] += step.most()
        try:
            return await self._sampled(step, model, turns)
        finally:
            self._reserved[model] -= step.most()

    async def _sampled(self, step: LiveStep, model: str, turns: IdleTurns) -> bool:
        first = sibling_of(step.head.id, 1)
        if await self.access.ask(self.access.store.episodes.known, step.head.key, [first]):
            return True  # before the store was filled again
        adapter = self.registry.live(model)
        able = [e for e in self.engines.healthy() if adapter in e.loaded or adapter == self.registry.base]
        if not able:
            self.waiting.append(step)
            return False
        self._engine = engine = self._engine if self._engine in able else able[-1]
        asked = [self._sample(step, adapter, engine, turns) for _ in range(step.route.explore_samples)]
        found = await asyncio.gather(*asked)
        await self._record(step, [one for one in found if one is not None])
        return True

    async def _sample(
        self, step: LiveStep, adapter: str, engine: EngineReplica, turns: IdleTurns
    ) -> SiblingReply | None:
        """One more sample. It gives way to agents, and is then asked for again."""
        request = {"model": self.engines.name_at(adapter), **step.body()}
        ids = step.parsed.prompt_ids
        # an older engine leaves the ids and makes them of the messages: its answer tells which they were
        body = request | {"kv_transfer_params": {"prompt_token_ids": ids}}
        while self.rehearsals.current.running is None:
            at = self.access.now()
            try:
                async with turns.turn() as told:
                    url = f"{engine.url}/v1/chat/completions"
                    status, answer, _ = await self.engines.ask("POST", url, body, SAMPLE_TIMEOUT_S)
                    if status == 200 and isinstance(answer, dict):
                        told(tokens := _tokens(answer))
                        model = str(step.head.trained)
                        self._spent[model] = self._spent.get(model, 0) + tokens
                break
            except TimeoutError:
                continue  # an agent's call goes first
            except EngineAway:
                status, answer = 0, None
                break
        else:
            return None
        good = status == 200 and isinstance(answer, dict) and answer.get("choices")
        outcome = "failed" if not good else "sampled" if answer.get("prompt_token_ids") == ids else "other_prompt"
        self.metrics.siblings.labels(outcome).inc()
        return (
            SiblingReply(adapter, engine.url, request, answer, at, self.access.now() - at)
            if outcome == "sampled"
            else None
        )

    async def _record(self, step: LiveStep, found: Sequence[SiblingReply]) -> None:
        """Into the log, each with how many they are."""
        live, head = step.live(), step.head
        made = list(enumerate(found, 1))
        if (redaction := redaction_of(self.access.config)) is not None:
            made = [(number, one) for number, one in made if not await in_thread(_redacted, redaction, one)]
        self.metrics.siblings.labels("redacted").inc(len(found) - len(made))
        if live is not None:
            made.append((0, SiblingReply(str(head.adapter), head.upstream, *live, head.at, head.seconds)))
        if len(made) < 2:
            return
        own = {EXPLORE_TAG: "siblings", SIBLING_TAG: head.episode, SIBLINGS_TAG: str(len(made))}
        for number, one in made:
            record = replace(
                head,
                id=new_id(),
                episode=sibling_of(head.id, number),
                split=Split.SIBLING,
                tags=head.tags | own,
                adapter=one.adapter,
                arm="live",
                chances="",
                pin="sole",
                dialect="chat",
                stream=False,
                at=one.at,
                seconds=one.seconds,
                upstream=one.upstream,
                origin="header",
                grouped=True,
                done=True,
                attempt=0,
                idempotency_key=None,
                trust_sampling=False,
                kind="sibling",
                extra={},
            )
            await self.writer.put(Kind.CALL, record, dumps(one.request), dumps(one.reply))
        if self.access.ingester is not None:
            self.access.ingester.hurry()


def _redacted(redaction: Redaction, one: SiblingReply) -> bool:
    """Whether ``proxy.redact`` changes it, or fails: then it can't be trained on."""
    *_, why = make_texts(redaction, dumps(one.request), dumps(one.reply))
    return why is not None


def _tokens(answer: JsonObject) -> int:
    """How many were sampled."""
    choices = [c for c in answer.get("choices") or () if isinstance(c, dict)]
    return tokens_of(answer, "completion_tokens") or sum(len(c.get("token_ids") or ()) for c in choices)
