"""vLLM, with Slipstream's plugin or without."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from slipstream.engines.engine import (
    LOAD_ROUTE,
    UNLOAD_ROUTE,
    ChatTemplate,
    Engine,
    EngineAnswer,
    EngineAway,
    EngineCommand,
    EngineFacts,
    EngineQuestion,
    EngineSampling,
    JsonDict,
    NoAdapters,
    Steps,
)
from slipstream.engines.vllm.adapter_routes import (
    PROBE_ADAPTER_NAME,
    cause_of,
    fix_of,
    lacks_files,
)
from slipstream.engines.vllm.sampling import NO_CONFIG, find_sampling
from slipstream.errors import StartError
from slipstream.shared.hub import model_config
from slipstream.shared.machine import has_gpu, installed

if TYPE_CHECKING:
    import httpx

    from slipstream.config import Config
    from slipstream.engines.findings import Finding

PLUGIN_PATH, USE_PATH = "/slipstream", "/slipstream/adapters"
PACKED_VERSION = 1
"""``slipstream_vllm.packing.PACKING_VERSION`` that the dialects read."""
WORKER_LISTS = ("/list_workers", "/workers")
MIN_SERVER_ERROR_STATUS = 500
"""From this status on an answer says nothing about routes, where it names no cause."""
LOAD_TIMEOUT, UNLOAD_TIMEOUT = 120.0, 30.0
SLEEP_TIMEOUT = 300.0
"""The first time an engine has to pin the memory that its weights are copied to."""
_SAY: Final[JsonDict] = {"role": "user", "content": "t"}
_TELL: Final[JsonDict] = {"role": "system", "content": "t"}
_EFFORTS: Final[dict[str, JsonDict]] = {
    effort: {"reasoning_effort": effort, "enable_thinking": effort != "none"} for effort in ("none", "low")
}
_PROCESSED: Final = "start vLLM with --logprobs-mode processed_logprobs"
_REQUESTS: Final = re.compile(r"^vllm:num_requests_(running|waiting)(?:\{[^}]*\})? (\S+)", re.MULTILINE)
_REFUSES = (400, 404, 405, 422, 501)
"""Statuses of a server that does not know what it was asked, and is well."""


class Vllm(Engine):
    kind = "vllm"
    title = "vLLM"
    module = "vllm.entrypoints.openai.api_server"
    gives_ids = True
    health = "/health"
    neutral_fix = NO_CONFIG
    fixes: ClassVar[Mapping[str, str]] = {
        "no token ids": "start vLLM 0.25 or newer; `slipstream doctor` checks what the engine returns",
        "no log-probabilities": f"{_PROCESSED}; `slipstream doctor` checks it",
        "log-probabilities before temperature": f"{_PROCESSED}, or ask for temperature 1.0",
        "logprob -9999": "the engine cut this probability off: start it with --logprobs-mode processed_logprobs",
        "role system among": "upgrade vLLM to 0.32 or newer: its /v1/messages/count_tokens says where they go",
        "thinking disabled": "upgrade vLLM to 0.32 or newer, or leave thinking out",
    }

    def recognise(self, cards: list[JsonDict]) -> Steps[str | None]:
        version = (yield EngineQuestion("GET", "/version")).object.get("version")
        if version:
            return f"vLLM {version}"
        return "vLLM" if any(c.get("owned_by") == "vllm" for c in cards) else None

    def behaves(self, model: str) -> Steps[bool]:
        """Whether it gives the ids of one token: it may be behind a gateway that hides what it is."""
        body = {"model": model, "messages": [_SAY], "max_tokens": 1, "return_token_ids": True}
        answer = yield EngineQuestion("POST", "/v1/chat/completions", body, 60.0)
        if answer.status != 200 and answer.status not in _REFUSES:
            raise EngineAway(f"it does not say what it is: a call answered {answer.status}: {answer.text[:200]}")
        choices = answer.object.get("choices") or [{}]
        return isinstance(choices[0], dict) and bool(choices[0].get("token_ids"))

    def learn(self, *, fresh: bool, before: EngineFacts) -> Steps[EngineFacts]:
        said = yield from self._hello()
        packed = said.get("packed") == PACKED_VERSION
        parses = before.parses
        if fresh:
            parses = packed or (yield from self._parses())
        return EngineFacts(packed, parses, plugin=said)

    def _hello(self) -> Steps[JsonDict]:
        """What its plugin says of itself; empty: there is none."""
        return (yield EngineQuestion("GET", PLUGIN_PATH)).object

    def adapter_use(self, facts: EngineFacts) -> Steps[JsonDict]:
        if not facts.packed:
            return {}
        owners = (yield EngineQuestion("GET", USE_PATH)).object.get("owners")
        return owners if isinstance(owners, dict) else {}

    def _parses(self) -> Steps[bool]:
        """False only if it gives ids to a call that hides reasoning: it has no parser then. One token is sampled."""
        hidden = {"include_reasoning": False, "return_token_ids": True, "max_tokens": 1}
        body: JsonDict = {"messages": [{"role": "user", "content": "a"}], **hidden}
        try:
            answer = yield EngineQuestion("POST", "/v1/chat/completions", body)
        except EngineAway:
            return True  # it is slow to sample: that is for its health check to say
        choices = answer.object.get("choices")
        return not (choices and choices[0].get("token_ids"))

    def sampling(self, model: str, root: str | None, facts: EngineFacts) -> Steps[EngineSampling]:
        return find_sampling(model, root, facts.plugin)

    def takes_adapters(self, before: NoAdapters | None) -> Steps[NoAdapters | None]:
        """What the engine is too ill to answer changes nothing.

        An empty body shows whether there is the route. Only an adapter shows whether LoRA is on. vLLM logs an error for
        one that does not exist, so the probe names one only where LoRA was off.
        """
        path = f"/nonexistent/{PROBE_ADAPTER_NAME}"
        body: JsonDict = {"lora_name": PROBE_ADAPTER_NAME, "lora_path": path} if before is NoAdapters.NO_LORA else {}
        answer = yield EngineQuestion("POST", LOAD_ROUTE, body)
        cause = cause_of(answer.status, answer.text, (PROBE_ADAPTER_NAME, path))
        return before if cause is None and answer.status >= MIN_SERVER_ERROR_STATUS else cause

    def adapters_fix(self, cause: NoAdapters) -> Steps[str]:
        plugin = (yield from self._hello()).get("packed") == PACKED_VERSION
        answer = yield EngineQuestion("GET", "/version")
        version = str(answer.json.get("version", "")) if isinstance(answer.json, dict) else ""
        return fix_of(cause, plugin=plugin, version=version)

    def why_none(self, answer: EngineAnswer, asked: Sequence[str]) -> NoAdapters | None:
        return cause_of(answer.status, answer.text, asked)

    def telling_chat(self, model: str) -> EngineQuestion:
        """Templates write tools, names and reasoning as they come."""
        function = {"name": "f", "strict": True, "parameters": {"type": "object", "properties": {}, "b": 1, "a": 2}}
        called = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        messages: list[JsonDict] = [
            {**_SAY, "name": "n"},
            {"role": "assistant", "content": "a", "reasoning_content": "r", "tool_calls": [called]},
            {"role": "tool", "tool_call_id": "c", "name": "f", "content": "t", "x_unknown": "u"},
        ]
        body = {"model": model, "messages": messages, "tools": [{"type": "function", "function": function}]}
        return EngineQuestion("POST", "/v1/chat/completions", {**body, "max_tokens": 1, "return_token_ids": True}, 60.0)

    def lacks_files(self, answer: EngineAnswer, asked: Sequence[str]) -> bool:
        return lacks_files(answer.status, answer.text, asked)

    def replicas(self) -> Steps[tuple[str, ...]]:
        """Routers of vLLM's and SGLang's family list their workers."""
        for path in WORKER_LISTS:
            try:
                said = (yield EngineQuestion("GET", path, None, 3.0)).object
            except EngineAway:
                return ()
            found = said.get("urls") or [w.get("url") for w in said.get("workers") or () if isinstance(w, dict)]
            if isinstance(found, list) and found and all(isinstance(url, str) for url in found):
                return tuple(url.rstrip("/") for url in found)
        return ()

    def load(self, name: str, path: str) -> EngineQuestion:
        return EngineQuestion("POST", LOAD_ROUTE, {"lora_name": name, "lora_path": path}, LOAD_TIMEOUT)

    def unload(self, name: str) -> EngineQuestion:
        return EngineQuestion("POST", UNLOAD_ROUTE, {"lora_name": name}, UNLOAD_TIMEOUT)

    def sleep(self) -> EngineQuestion:
        """Weights to the host, KV cache dropped; running requests are frozen and go on after ``wake``."""
        return EngineQuestion("POST", "/sleep?level=1&mode=keep", None, SLEEP_TIMEOUT)

    def wake(self) -> EngineQuestion:
        return EngineQuestion("POST", "/wake_up", None, SLEEP_TIMEOUT)

    def is_asleep(self) -> EngineQuestion:
        return EngineQuestion("GET", "/is_sleeping")

    def context(self) -> Steps[int]:
        cards = (yield EngineQuestion("GET", "/v1/models")).json["data"]
        lengths = [int(c["max_model_len"]) for c in cards if isinstance(c.get("max_model_len"), int)]
        return lengths[0]

    def response_fields(self) -> Steps[dict[str, list[str]]]:
        told = (yield from self._hello()).get("responses") or {}
        return {kind: list(map(str, names)) for kind, names in told.items()}

    def template(self, model: str) -> Steps[ChatTemplate]:
        """Its own messages route counts the tokens of short requests, and these counts are compared with those of what
        the request may have been made into.
        """

        def asked(path: str, name: str, body: JsonDict) -> Steps[object]:
            answer = yield EngineQuestion("POST", path, {"model": model, "messages": [_SAY], **body})
            return answer.object.get(name)

        def count(body: JsonDict) -> Steps[object]:
            return asked("/v1/messages/count_tokens", "input_tokens", body)

        def ids(body: JsonDict) -> Steps[object]:
            return asked("/tokenize", "tokens", body)

        inline = yield from count({"messages": [_TELL, _SAY, _TELL, _SAY]})
        if inline is None:
            return ChatTemplate()
        merges: bool | None = inline == (yield from count({"messages": [_SAY, _SAY], "system": "tt"}))
        if merges:
            apart = yield from ids({"messages": [_TELL, _SAY, _TELL, _SAY]})
            if isinstance(apart, list) and len(apart) == inline:
                merges = None
        off = yield from count({"thinking": {"type": "disabled"}})
        fits = []
        for effort, body in _EFFORTS.items():
            found = yield from count({"chat_template_kwargs": body})
            if found is not None and found == off:
                fits.append(effort)
        if len(fits) > 1:
            # as many tokens: an effort that changes nothing turns nothing off, and the route asks for low
            none = yield from ids({"chat_template_kwargs": _EFFORTS["none"]})
            low = yield from ids({"chat_template_kwargs": _EFFORTS["low"]})
            fits = ["low" if none == low else "none"]
        return ChatTemplate(merges, fits[0] if fits else None)

    def sampled_tokens(self, metrics: str) -> float | None:
        lines = [line for line in metrics.splitlines() if line.startswith("vllm:generation_tokens_total")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def open_requests(self, metrics: str) -> tuple[float, float] | None:
        found: dict[str, float] = {}
        for state, value in _REQUESTS.findall(metrics):
            found[state] = found.get(state, 0.0) + float(value)
        return (found["running"], found.get("waiting", 0.0)) if "running" in found else None

    def check_installed(self) -> None:
        from slipstream.engines.vllm.command import missing_vllm

        if not installed("vllm"):
            raise StartError(missing_vllm(gpu=has_gpu()))

    def check_model(self, model: str) -> None:
        from slipstream.engines.vllm.command import check_model

        check_model(model)

    def parsers(self, config: Config) -> list[str]:
        from slipstream.engines.vllm.parsers import choose_parsers

        return choose_parsers(config, model_config(config.engine.model or "")).says

    def without_template(self, config: Config) -> Finding | None:
        from slipstream.engines.vllm.parsers import without_template

        return without_template(config)

    def command(self, config: Config) -> EngineCommand:
        from slipstream.engines.vllm.command import engine_command

        return engine_command(config)

    def examine(self, http: httpx.Client, config: Config, root: str | None) -> Iterator[Finding]:
        from slipstream.engines.vllm.examination import examine

        return examine(self, http, config, root)
