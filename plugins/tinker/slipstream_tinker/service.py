"""The Tinker API as this learner uses it: each question with a deadline, each answer checked.

The client waits without end for a server that is gone, and asks again for minutes where the server fails. Servers check
nothing: an id outside the vocabulary makes NaN, a chain beyond the context is computed, short weights become zeros.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import os
import tarfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit
from uuid import uuid4

import httpx
import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ConfigError, SlipstreamError, StartError
from slipstream.shared.adapter_config import CONFIG_FILE_NAME, WEIGHT_NAME_PATTERN, WEIGHTS_FILE_NAME

CLIENT_ADVICE = "pip install 'tinker==0.24.1' (later ones do not speak to SkyRL 0.3.0)"
MAX_REDIRECTS = 4
KEY_HEADER, NO_KEY = "X-API-Key", "tml-none"
"""The client wants a key of this form; open servers look at none."""
CALIBRATION_TOKENS = 4
CALIBRATION_TOLERANCE = 0.02
Reals = NDArray[np.float64]


class ServiceFailed(SlipstreamError):
    """The service refused a request, or did not answer in time."""


@dataclass(frozen=True, slots=True, eq=False)
class ScoredChain:
    """``ids`` that are read, and what is scored: after ``source[i]`` comes ``target[i]``. No source stands twice."""

    ids: NDArray[np.int64]
    source: NDArray[np.int64]
    target: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Reduction:
    """By what the service divides a gradient: each chain's scored tokens, and the number of chains."""

    tokens: bool
    chains: bool

    def undo(self, scored: int, chains: int) -> float:
        """What a chain's slopes are multiplied by, so that their sum is what counts."""
        return float((scored if self.tokens else 1) * (chains if self.chains else 1))


REDUCTION_BY_NAME = {"mean": Reduction(tokens=True, chains=True), "sum": Reduction(tokens=False, chains=False)}


def _key() -> str:
    return os.environ.get("TINKER_API_KEY", "")


def import_client() -> Any:
    """The package ``tinker``. Raises ``StartError`` where it is not installed."""
    os.environ.setdefault("TINKER_TELEMETRY", "0")  # what fails here is nobody else's to know
    try:
        import tinker
    except ImportError as e:
        raise StartError(f"trainer.backend = 'tinker' needs its client: {CLIENT_ADVICE} ({e})") from e
    return tinker


class TinkerRun:
    """One LoRA at the service, with its optimiser. It is gone with the session."""

    def __init__(self, service: TinkerService, session: Any, client: Any) -> None:
        self.service, self.session, self.client = service, session, client

    @property
    def ended(self) -> bool:
        """A request has failed since. A service that was started again does not know this LoRA any more."""
        return self.session is not self.service.session

    def _datum(self, chain: ScoredChain, logprobs: Reals, advantages: Reals, weight: float = 1.0) -> Any:
        types = self.service.tinker.types

        def spread(values: Reals | float) -> NDArray[np.float32]:
            found = np.zeros(len(chain.ids), np.float32)
            found[chain.source] = values
            return found

        targets = np.append(chain.ids[1:], 0)
        targets[chain.source] = chain.target
        return types.Datum(
            model_input=types.ModelInput.from_ints(chain.ids.tolist()),
            loss_fn_inputs={
                "target_tokens": targets.astype(np.int64),
                "weights": spread(weight),
                "logprobs": spread(logprobs),
                "advantages": spread(advantages),
            },
        )

    def logprobs(self, chains: Sequence[ScoredChain]) -> list[Reals]:
        """Of each chain's targets, in nats."""
        self.service.check(chains)
        zeros = [np.zeros(len(c.source)) for c in chains]
        data = [self._datum(c, z, z) for c, z in zip(chains, zeros, strict=True)]
        answer = self.service.ask("forward", lambda: self.client.forward(data, "cross_entropy"))
        outputs = [np.asarray(o["logprobs"].data, np.float64) for o in answer.loss_fn_outputs]
        if [len(o) for o in outputs] != [len(c.ids) for c in chains]:
            raise ServiceFailed(f"{self.service.url} answered forward for other lengths than it was asked for")
        found = [o[c.source] for c, o in zip(chains, outputs, strict=True)]
        if not all(np.isfinite(f).all() for f in found):
            raise ServiceFailed(f"{self.service.url} answered forward with log-probabilities that are not finite")
        return found

    def backward(
        self, chains: Sequence[ScoredChain], logprobs: Sequence[Reals], slopes: Sequence[Reals], *, weight: float = 1.0
    ) -> None:
        """Add the gradient. ``importance_sampling`` at a ratio of 1 has the slope minus the advantage."""
        self.service.check(chains)
        data = [self._datum(c, lp, -slope, weight) for c, lp, slope in zip(chains, logprobs, slopes, strict=True)]
        self.service.ask("forward_backward", lambda: self.client.forward_backward(data, "importance_sampling"))

    def step(self, **adam: float) -> float | None:
        """→ The gradient's norm, if the service tells it."""
        params = self.service.tinker.types.AdamParams(**adam)
        metrics = self.service.ask("optim_step", lambda: self.client.optim_step(params)).metrics or {}
        return next((float(v) for k, v in metrics.items() if k.endswith("grad_norm")), None)

    def save(self) -> str:
        """Weights and optimiser → their address."""
        return str(self.service.ask("save_state", lambda: self.client.save_state(uuid4().hex)).path)

    def load(self, address: str) -> None:
        self.service.ask("load_state", lambda: self.client.load_state_with_optimizer(address))

    def publish(self) -> str:
        """The weights as an adapter that can be fetched → its address."""
        name = uuid4().hex
        answer = self.service.ask("save_weights", lambda: self.client.save_weights_for_sampler(name))
        return str(answer.path)


class TinkerService:
    def __init__(self, url: str, model: str, *, vocab: int, context: int, deadline: float) -> None:
        """``vocab``, ``context``: of the model; ids and chains beyond are refused here."""
        self.url, self.model, self.vocab, self.context, self.deadline = url.rstrip("/"), model, vocab, context, deadline
        self.session: Any = None
        """The client's. It ends with the first request that fails."""

    @functools.cached_property
    def tinker(self) -> Any:
        """The client's package."""
        return import_client()

    def check(self, chains: Sequence[ScoredChain]) -> None:
        """Raises ``ValueError`` for what the service would compute wrongly without a word."""
        for c in chains:
            if not 0 < len(c.ids) <= self.context:
                raise ValueError(f"a chain has {len(c.ids)} tokens, and the model's context {self.context}")
            ids = np.concatenate([c.ids, c.target])
            if ids.min() < 0 or ids.max() >= self.vocab:
                raise ValueError(f"a chain has the ids {ids.min()} to {ids.max()}, and the model {self.vocab}")
            if len(c.source) != len(c.target) or len(np.unique(c.source)) != len(c.source):
                raise ValueError("a chain scores a place twice, or has more places than targets")

    def ask(self, what: str, send: Callable[[], Any]) -> Any:
        """The answer. ``send`` may block: it runs in a thread that is left behind at the deadline."""
        answer: Future[Any] = Future()

        def wait() -> None:
            try:
                sent = send()
                answer.set_result(sent.result(self.deadline) if hasattr(sent, "result") else sent)
            except BaseException as e:  # the client's errors are many, and all are told
                answer.set_exception(e)

        threading.Thread(target=wait, name=f"tinker-{what}", daemon=True).start()
        try:
            return answer.result(self.deadline)
        except TimeoutError as e:
            self.end()
            raise ServiceFailed(
                f"{self.url} did not answer {what} in {self.deadline:g} s: is it running? (plugins.tinker.deadline)"
            ) from e
        except Exception as e:
            self.end()
            raise ServiceFailed(f"{self.url} refused {what}: {type(e).__name__}: {e}") from e

    def run(self, rank: int, seed: int) -> TinkerRun:
        """A new LoRA, as the seed makes it: the policy is the base model."""

        def create() -> Any:
            self.session = self.session or self.tinker.ServiceClient(base_url=self.url, api_key=_key() or NO_KEY)
            return self.session.create_lora_training_client(base_model=self.model, rank=rank, seed=seed)

        client = self.ask("create_lora_training_client", create)
        return TinkerRun(self, self.session, client)

    def end(self) -> None:
        """The next run is of a new session. The service keeps this one's memory until it has been silent a while."""
        with contextlib.suppress(Exception):
            self.session.holder.close()
        self.session = None

    def fetch(self, address: str, folder: Path, base: str) -> None:
        """PEFT's files of a published adapter, with the names that PEFT and vLLM read from them."""
        run, name = address.removeprefix("tinker://").split("/")[0], address.rsplit("/", 1)[1]
        archive = self._download(f"{self.url}/api/v1/training_runs/{run}/checkpoints/{name}/archive")
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            for member in files.getmembers():
                part = Path(member.name).name
                if part in (CONFIG_FILE_NAME, WEIGHTS_FILE_NAME) and (file := files.extractfile(member)) is not None:
                    (folder / part).write_bytes(file.read())
        from safetensors import safe_open

        try:
            config = json.loads((folder / CONFIG_FILE_NAME).read_text())
            with safe_open(folder / WEIGHTS_FILE_NAME, "np") as weights:
                found = [WEIGHT_NAME_PATTERN.match(n) for n in weights.keys()]  # noqa: SIM118 - no mapping
        except OSError as e:
            raise ServiceFailed(f"{self.url} gave an archive without {CONFIG_FILE_NAME} and {WEIGHTS_FILE_NAME}") from e
        names = sorted({part["module"].rpartition(".")[2] for part in found if part})
        config |= {"target_modules": names, "task_type": "CAUSAL_LM", "base_model_name_or_path": base}
        (folder / CONFIG_FILE_NAME).write_text(json.dumps(config, indent=1))

    def _download(self, url: str) -> bytes:
        """The key goes to the service alone, and not to where it sends us."""
        key, home = _key(), urlsplit(self.url).netloc
        try:
            for _ in range(MAX_REDIRECTS):
                headers = {KEY_HEADER: key} if key and urlsplit(url).netloc == home else {}
                reply = httpx.get(url, headers=headers, timeout=self.deadline)
                if not reply.is_redirect:
                    return reply.raise_for_status().content
                url = urljoin(url, reply.headers["location"])
        except httpx.HTTPError as e:
            raise ServiceFailed(f"{self.url} did not give an adapter: {type(e).__name__}: {e}") from e
        raise ServiceFailed(f"{self.url} did not give an adapter: it sent us on {MAX_REDIRECTS} times")


def calibrate(run: TinkerRun) -> Reduction:
    """How gradients are divided: by the norms of one chain, of the same twice, and of the same with double weights.

    No weight moves: the rate is zero. Raises ``ConfigError`` where the norms do not tell.
    """
    ids = np.arange(2 * CALIBRATION_TOKENS, dtype=np.int64) % run.service.vocab
    source = np.arange(CALIBRATION_TOKENS, 2 * CALIBRATION_TOKENS)
    chain = ScoredChain(ids, source, (ids[source] + 1) % run.service.vocab)
    logprobs = run.logprobs([chain])
    slopes = [np.ones(CALIBRATION_TOKENS)]

    def norm(times: int, weight: float) -> float:
        run.backward([chain] * times, logprobs * times, slopes * times, weight=weight)
        found = run.step(learning_rate=0.0, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0)
        return math.nan if found is None else found

    one, twice, heavy = norm(1, 1.0), norm(2, 1.0), norm(1, 2.0)

    def divides(other: float) -> bool:
        for answer, ratio in ((True, 1.0), (False, 2.0)):
            if one > 0 and abs(other / one - ratio) < CALIBRATION_TOLERANCE:
                return answer
        raise ConfigError(
            f"the service at {run.service.url} does not tell how it divides gradients (norms {one:.4g}, {twice:.4g}, "
            f"{heavy:.4g}): set plugins.tinker.reduction to mean or sum, as its documentation says"
        )

    return Reduction(tokens=divides(heavy), chains=divides(twice))
