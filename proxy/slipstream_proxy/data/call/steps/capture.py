"""What exact capture needs of the engine, and the client must not see."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from slipstream.contract import EXPLORE_TAG, filter_of
from slipstream.engines.engine import NEUTRAL_SAMPLING, NO_IDS
from slipstream_proxy.assignment import place
from slipstream_proxy.data.call.step import CallStep
from slipstream_proxy.data.episode.prompts import asking
from slipstream_proxy.data.wire.errors import RequestRefused
from slipstream_proxy.dialects.sampling import RAW_LOGPROBS, UNKNOWN_SAMPLING, untrainable
from slipstream_proxy.dialects.token_arrays import CAPTURE_FIELD, cut, cut_event
from slipstream_proxy.parse_weight import too_heavy

if TYPE_CHECKING:
    from slipstream_proxy.data.call.parts import Call
    from slipstream_proxy.data.engines.live import LiveView
    from slipstream_proxy.data.engines.models import ModelMap, ModelTarget
    from slipstream_proxy.data.episode.prompts import PromptMemory
    from slipstream_proxy.data.episode.running import RunningEpisode
    from slipstream_proxy.data.observe.metrics import WorkerMetrics
    from slipstream_proxy.dialects.base import Dialect, Injected
    from slipstream_proxy.json_types import JsonObject

_AS_THE_MODEL: Final = (None, 1, 0)
"""Temperatures at which log-probabilities before and after it are the same, or not trained on."""


class Capture(CallStep):
    """Maps the model, asks for token ids and log-probabilities, and hides them from a client that did not ask."""

    def __init__(self, models: ModelMap, live: LiveView, prompts: PromptMemory, metrics: WorkerMetrics) -> None:
        self._models = models
        self._live = live
        self._prompts = prompts
        self._metrics = metrics

    def request(self, call: Call) -> bool:
        payload, live = call.asked.payload, self._live
        asked = payload.get("model") if payload is not None else None
        model = asked if isinstance(asked, str) and asked else self._models.default
        target = self._models.of(model)
        if target.explored is not None and payload is not None and call.asked.split == "train" and live.gives_ids:
            target = self._explored(target, payload, call)
        call.asked.mean(model, target)
        call.route.name(target.model)
        if payload is None and call.asked.dialect.routeless:
            raise RequestRefused(400, "the body is no JSON object, or too heavy a one")
        if payload is None or (asked is not None and not isinstance(asked, str)):
            heavy = payload is None and too_heavy(call.route.body)
            call.route.ask(None, "too heavy a request" if heavy else "unreadable request")
        elif target.kind != "upstream" and live.gives_ids:
            self._ask_for_ids(call, payload)
        elif target.kind != "upstream" or call.asked.dialect.routeless:
            self._ask_for_text(call, payload)
        return False

    def _explored(self, target: ModelTarget, payload: JsonObject, call: Call) -> ModelTarget:
        """The target, or the one of explored episodes: where the call cannot be trained on as it is sampled, and can be
        when it is sampled so. Each worker decides alike for all calls of an episode.
        """
        explored, episode, dialect = target.explored, call.asked.episode, call.asked.dialect
        if explored is None or episode is None or not in_share(episode, target):
            return target
        sent = dialect.as_chat(payload).body if dialect.routeless else payload  # its fields have names of their own
        asked = dict(self._live.sampling) | {name: value for name, value in sent.items() if value is not None}
        asked.update(target.sampling)
        unknown = not self._live.sampling_known and any(name not in asked for name in NEUTRAL_SAMPLING)
        if not unknown and untrainable(asked, trust=False) is None:
            return target
        if untrainable(asked | dict(explored.sampling), trust=False) is not None:
            return target
        if EXPLORE_TAG not in episode.tags:
            episode.tags = {**episode.tags, EXPLORE_TAG: "temperature"}
        self._metrics.add("slipstream_explored_calls_total")
        return explored if asked.get("seed") is None else replace(explored, shown=_seedless(explored.shown))

    def _ask_for_ids(self, call: Call, payload: JsonObject) -> None:
        target, dialect, episode = call.asked.target, call.asked.dialect, call.asked.episode
        if target.explores and not dialect.routeless:  # others are written below: a format may have no such member
            payload.update((name, value) for name, value in target.sampling if name in payload or name == "temperature")
        elif target.sampling:
            payload.update(target.sampling)
        if dialect.name == "responses":  # its reply tells the caller what was sampled with
            self._say_sampling(payload, target)
        injected = self._inject(dialect, payload)
        if target.explores:
            for body in (payload, injected.body):
                body.pop("seed", None)  # with one seed all explored runs of a task are one reply
        if injected.back is None and dialect.routeless:
            raise RequestRefused(400, f"as a chat completion this cannot be asked: {injected.note}")
        why = self._say_sampling(injected.body, target, trust=target.trust)
        if injected.note is None:
            injected.note = why
        prefixes = None
        if injected.hide.packed and episode is not None:
            prefixes = self._prompts.of(episode)
            injected.body[CAPTURE_FIELD] = asking(prefixes)
        call.route.ask(injected.body, injected.note, injected.hide or None, injected.back, prefixes)

    def _ask_for_text(self, call: Call, payload: JsonObject) -> None:
        """Nothing is asked for beside what the client asks. A format that the engine has no route for is translated."""
        payload.update(call.asked.target.sampling)
        dialect, back = call.asked.dialect, None
        if dialect.routeless or dialect.path not in self._live.routes:
            asked = dialect.as_chat(payload)
            if asked.note is not None:
                why = f"the engine has no route {dialect.path}, and as a chat completion it cannot be asked"
                raise RequestRefused(400, f"{why}: {asked.note}")
            payload, back = asked.body, asked.back
        call.route.ask(payload, NO_IDS, back=back)

    def _say_sampling(self, body: JsonObject, target: ModelTarget, *, trust: bool = False) -> str | None:
        """Put the engine's own values where the caller sent none: the reply is the same, and the record says how it was
        sampled. → Why the call cannot be trained on all the same.
        """
        live = self._live
        for name, value in target.sampling if target.explores else live.sampling:
            if body.get(name) is None:
                body[name] = value
        if not live.sampling_known and not trust and any(body.get(name) is None for name in NEUTRAL_SAMPLING):
            return None if untrainable(body, trust=False) else UNKNOWN_SAMPLING  # what the call itself says comes first
        if not live.raw:
            return None
        return RAW_LOGPROBS if filter_of(body) is not None or body.get("temperature") not in _AS_THE_MODEL else None

    def _inject(self, dialect: Dialect, payload: JsonObject) -> Injected:
        if self._live.parses or dialect.name != "chat" or payload.get("include_reasoning") is not False:
            return dialect.inject(payload, packed=self._live.packed)
        del payload["include_reasoning"]  # without a parser the engine hides nothing, and gives ids all the same
        injected = dialect.inject(payload, packed=self._live.packed)
        injected.body["include_reasoning"] = False
        return injected

    def event(self, call: Call, event: bytes) -> bytes | None:
        hide = call.route.hide
        if hide is None or call.route.back is not None:
            return event  # a translator makes new events of it, and needs the length of the prompt
        if hide.packed:
            return cut_event(event)
        return (call.reply.hider or call.reply.hide_with(call.asked.dialect.hider(hide))).event(event)

    def response_body(self, call: Call, status: int, body: bytes) -> bytes:
        hide = call.route.hide
        if hide is None or call.route.back is not None or status != 200:
            return body
        return cut(body) if hide.packed else call.asked.dialect.whole(body, hide)


def _seedless(shown: str) -> str:
    return shown.replace(";", ", seed=none;")


def in_share(episode: RunningEpisode, target: ModelTarget) -> bool:
    """Whether the episode is one of those that explore. It follows from its name alone."""
    return place(f"explore {target.model}", episode.name[0], None, episode.id) < target.share
