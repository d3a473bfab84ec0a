"""What Slipstream asks of an inference engine. Each kind of engine is one subclass of ``Engine``. The
proxy, ``up`` and the doctor know this class only.

What takes several questions is a generator of steps: it yields an ``EngineQuestion`` and is sent the ``EngineAnswer``.
So the proxy asks in its event loop (``ask_in_loop``), and the doctor without one (``ask_now``). Where the engine does
not answer, ``EngineAway`` is raised at the ``yield``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from slipstream.errors import StartError

if TYPE_CHECKING:
    import httpx

    from slipstream.config import Config
    from slipstream.engines.findings import Finding

Json = Any
JsonDict = dict[str, Json]
Found = TypeVar("Found")
LOAD_ROUTE, UNLOAD_ROUTE = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
"""Routes for adapters, where an engine has them."""
NO_RIGHT = (401, 403)
NO_IDS = "an engine without token ids"
"""Why no call of such an engine can be trained on."""
NEUTRAL_SAMPLING: dict[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Every token as the model likes it."""


class EngineAway(Exception):
    """The engine did not answer."""


class EngineQuestion(NamedTuple):
    """A question to an engine. ``path`` begins with a slash; ``timeout`` is in seconds."""

    method: str
    path: str
    body: JsonDict | None = None
    timeout: float = 10.0


class EngineAnswer(NamedTuple):
    """``json``: the body, read; None: it is no JSON. ``text``: the body."""

    status: int
    json: Json
    text: str

    @property
    def object(self) -> JsonDict:
        """What a good answer says; empty where it is no object, or an error."""
        return self.json if self.status == 200 and isinstance(self.json, dict) else {}


Steps = Generator[EngineQuestion, EngineAnswer, Found]


def changed_on_the_way(direct: EngineAnswer, routed: EngineAnswer) -> str | None:
    """What a router made of ``Engine.telling_chat``, by the engine's own answer and by that through it. None: nothing,
    or it cannot be told.
    """
    prompt = direct.object.get("prompt_token_ids")
    if not prompt:
        return None
    if routed.status != 200:
        what = f"it answers {routed.status} to a chat that the engine answers"
        return f"{what}, and such calls go past it: {routed.text[:200]}"
    found = routed.object.get("prompt_token_ids")
    if not found:
        return "it drops return_token_ids, so that no call through it has token ids or can be trained on"
    if found != prompt:
        what = f"of a chat with tools the engine reads {len(found)} tokens in place of {len(prompt)}"
        return (
            f"it rewrites chat bodies: {what} (a tool's strict, a message's name, reasoning or unknown fields are lost)"
        )
    return None


def known(found: Found) -> Steps[Found]:
    """No question is needed."""
    return found
    yield


def ask_now(steps: Steps[Found], ask: Callable[[EngineQuestion], EngineAnswer]) -> Found:
    """What the steps find. ``ask`` may raise ``EngineAway``."""
    try:
        question = next(steps)
        while True:
            try:
                answer = ask(question)
            except EngineAway as e:
                question = steps.throw(e)
            else:
                question = steps.send(answer)
    except StopIteration as end:
        found: Found = end.value
        return found


def ask_over(http: httpx.Client, question: EngineQuestion) -> EngineAnswer:
    """Raises ``EngineAway``."""
    import httpx as client

    method, path, body, timeout = question
    try:
        reply = http.request(method, path, json=body, timeout=timeout)
    except (client.HTTPError, client.InvalidURL) as e:
        raise EngineAway(f"{path}: {type(e).__name__}") from e
    try:
        read = reply.json()
    except ValueError:
        read = None
    return EngineAnswer(reply.status_code, read, reply.text)


async def ask_in_loop(steps: Steps[Found], ask: Callable[[EngineQuestion], Awaitable[EngineAnswer]]) -> Found:
    """As ``ask_now``."""
    try:
        question = next(steps)
        while True:
            try:
                answer = await ask(question)
            except EngineAway as e:
                question = steps.throw(e)
            else:
                question = steps.send(answer)
    except StopIteration as end:
        found: Found = end.value
        return found


Reading = list[dict[str, float]]
"""For each prompt: token → its log-probability, as the next one."""


def reading(answer: Json) -> Reading | None:
    """What a completion of one token after each prompt says. None: there are no log-probabilities in it."""
    try:
        choices = sorted(answer["choices"], key=lambda c: c["index"])
        found = [
            {str(t): float(x) for t, x in c["logprobs"]["top_logprobs"][0].items() if x is not None} for c in choices
        ]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        return None
    return found if found and all(found) else None


@dataclass(frozen=True, slots=True)
class EngineSampling:
    """``values``: those that are not neutral. ``known`` False: there may be others. ``raw``: log-probabilities are
    those before temperature, so that a call at another temperature than 1 has none that it was sampled by.
    """

    values: dict[str, float] = field(default_factory=dict)
    known: bool = True
    raw: bool = False

    @property
    def cuts(self) -> bool:
        """Whether tokens are sampled in a way that the trainer cannot compute again: penalties, or nobody knows."""
        return not self.known or bool(self.values.keys() - {"temperature", "top_p", "top_k", "min_p"})

    def said(self) -> str:
        """``temperature 0.7, top_k 20``."""
        said = ", ".join(f"{name} {value:g}" for name, value in self.values.items())
        return said if self.known else " and ".join(filter(None, (said, "others that it does not tell")))


class NoAdapters(StrEnum):
    """Why an engine takes no adapters: a label in metrics."""

    NO_ROUTES = "no_adapter_routes"
    NO_LORA = "lora_off"
    NO_RIGHT = "adapters_forbidden"
    NO_IDS = "no_token_ids"

    @property
    def what(self) -> str:
        """After "it takes no adapters: "."""
        return {
            NoAdapters.NO_ROUTES: f"it has no route {LOAD_ROUTE}",
            NoAdapters.NO_LORA: "LoRA is off there",
            NoAdapters.NO_RIGHT: f"it refuses the key for {LOAD_ROUTE}",
            NoAdapters.NO_IDS: "it gives no token ids, so that nothing can be trained for it",
        }[self]


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine can do, as it says. It may differ after a restart."""

    packed: bool = False
    """It has Slipstream's plugin, which packs ids and log-probabilities."""
    parses: bool = True
    """It has a reasoning or a tool parser, as far as is known. Without one it hides neither reasoning nor ids."""
    routes: tuple[str, ...] = ()
    """Paths of other formats than chat completions that an engine without token ids has."""
    plugin: JsonDict = field(default_factory=dict)
    """What the plugin says of itself."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """What the messages route of an engine does for its model's template. None: that cannot be told."""

    merges: bool | None = None
    """Whether system messages among the others go into the first one."""
    quiet: str | None = None
    """The reasoning effort that turns thinking off."""


@dataclass(slots=True)
class EngineCommand:
    argv: list[str]
    env: dict[str, str]
    url: str
    says: list[str]
    """What was chosen, for the person who started it."""


class Engine:
    """One kind of engine. What a method of this class says or does is right for a server that only relays text."""

    kind = ""
    """The value of ``engine.kind``."""
    title = ""
    """What people call it."""
    gives_ids = False
    """Replies have token ids and log-probabilities where they are asked for, so that calls can be trained on."""
    health = "/v1/models"
    """Answers 200 when the engine is up."""
    module = ""
    """What the process imports that ``slipstream up`` starts; empty: it starts none."""
    neutral_fix = ""
    """What to do so that it samples as the model likes where a call says nothing."""
    fixes: ClassVar[Mapping[str, str]] = {}
    """Reason why a call cannot be trained on, or the beginning of one → its fix, where it lies in this engine."""

    def recognise(self, cards: list[JsonDict]) -> Steps[str | None]:
        """→ How the server calls itself, if it says that it is of this kind. ``cards``: the models that it lists."""
        raise NotImplementedError

    def behaves(self, model: str) -> Steps[bool]:
        """Whether a server that does not say what it is answers as this kind does. ``model``: one that it serves.
        Raises ``EngineAway`` if that cannot be told now.
        """
        return known(False)

    def learn(self, *, fresh: bool, before: EngineFacts) -> Steps[EngineFacts]:
        """``fresh``: the engine may have been started again; else what is dear to find out is as ``before``."""
        return known(before)

    def adapter_use(self, facts: EngineFacts) -> Steps[JsonDict]:
        """Tenant → the fields of ``AdapterUse``. Empty: it counts nothing."""
        return known({})

    def sampling(self, model: str, root: str | None, facts: EngineFacts) -> Steps[EngineSampling]:
        """What it samples with where a call says nothing. ``root``: where it has its model from."""
        return known(EngineSampling())

    def takes_adapters(self, before: NoAdapters | None) -> Steps[NoAdapters | None]:
        """Why it takes none now; None: nothing is known against it. ``before``: what was known."""
        return known(NoAdapters.NO_IDS)

    def adapters_fix(self, cause: NoAdapters) -> Steps[str]:
        """What to do so that it takes adapters."""
        return known("serve the model with vLLM to train it")

    def why_none(self, answer: EngineAnswer, asked: Sequence[str]) -> NoAdapters | None:
        """What the answer to a load says of the engine; None: nothing. ``asked``: the adapter's name and path."""
        return NoAdapters.NO_IDS

    def lacks_files(self, answer: EngineAnswer, asked: Sequence[str]) -> bool:
        """Whether the answer to a load says that this engine cannot read the files. ``asked``: as above."""
        return answer.status == 404

    def replicas(self) -> Steps[tuple[str, ...]]:
        """The engines behind it, where it says that it is a router. Empty: it says nothing of the kind."""
        return known(())

    def telling_chat(self, model: str) -> EngineQuestion | None:
        """A chat whose prompt shows whether somebody on the way changes requests. None: there is no such."""
        return None

    def load(self, name: str, path: str) -> EngineQuestion:
        """Make the adapter in ``path`` (as the engine sees it) a model called ``name``."""
        raise NotImplementedError

    def unload(self, name: str) -> EngineQuestion:
        raise NotImplementedError

    def completion(self, model: str | None, body: JsonDict) -> EngineQuestion:
        """A text completion. None: of the engine's own model."""
        return EngineQuestion("POST", "/v1/completions", {**({"model": model} if model else {}), **body}, 120.0)

    def sleep(self) -> EngineQuestion | None:
        """Give the GPU's memory back; 404: it cannot. None: no engine of this kind can."""
        return None

    def wake(self) -> EngineQuestion | None:
        """None: it does not sleep."""
        return None

    def is_asleep(self) -> EngineQuestion | None:
        """Its answer has ``is_sleeping``. None: it does not sleep."""
        return None

    def context(self) -> Steps[int]:
        """Tokens of its context; 0: it did not say."""
        return known(0)

    def template(self, model: str) -> Steps[ChatTemplate]:
        """``model``: a name that the engine serves."""
        return known(ChatTemplate())

    def response_fields(self) -> Steps[dict[str, list[str]]]:
        """The fields of tools and calls, by kind, as its responses route says them back. Empty: it did not say."""
        return known({})

    def sampled_tokens(self, metrics: str) -> float | None:
        """How many tokens it has sampled, by the text of its ``/metrics``."""
        return None

    def open_requests(self, metrics: str) -> tuple[float, float] | None:
        """How many requests run and how many wait, by the text of its ``/metrics``. None: it does not say."""
        return None

    def check_installed(self) -> None:
        """Raises ``StartError`` where ``slipstream up`` cannot start an engine of this kind on this machine."""
        raise StartError(f"`slipstream up` starts no {self.title}: start it, and give --engine its URL")

    def check_model(self, model: str) -> None:
        """Raises ``StartError`` for a folder or hub name that cannot be served on this machine."""

    def parsers(self, config: Config) -> list[str]:
        """What reads tool calls and thoughts out of the configured model's text, for people. Raises ``StartError``."""
        return []

    def without_template(self, config: Config) -> Finding | None:
        """Why the configured model refuses chat completions, and the setting that mends it. None: it takes them."""
        return None

    def command(self, config: Config) -> EngineCommand:
        """How it is started. Raises ``StartError`` for a model that cannot be served."""
        raise NotImplementedError

    def examine(self, http: httpx.Client, config: Config, root: str | None) -> Iterator[Finding]:
        """The doctor's look at one that serves the trained model. ``root``: where it has its model from."""
        return iter(())
