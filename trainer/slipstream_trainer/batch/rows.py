"""Captured calls as token-exact training sequences.

A batch's rows are *samples*: a prompt's ids, the ids that the engine sampled after it and their log-probabilities.
A call that repeats an earlier one's prompt and reply token by token and goes on is an exact continuation: both lie
on one *chain*, which is computed once. Whatever is not a continuation (thinking stripped from the history, a
compaction, a sub-agent, a retry, a parallel sample) is a chain of its own. Every sampled token is scored once, by
the very tokens that stood before it when it was sampled.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from slipstream.shared.tables import lists_of, prompts_of

if TYPE_CHECKING:
    import pyarrow as pa

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

MISSING_LOGPROB = -9000.0
"""vLLM says -9999 for a log-probability that it does not have."""

COPIED_COLUMNS = ("group", "kind", "episode", "call", "number", "choice", "call_reward")
"""Columns that a sample has as they are."""
IF_NULL = {"reward": math.nan, "temperature": math.nan, "adapter": "", "staleness": 0, "key": "", "tags": ""}
"""Columns that a sample has as they are, and what stands for a null."""
LATE_COLUMNS = ("hint", "tags")
"""Columns that an older proxy does not send."""
PLAIN_COLUMNS = {*COPIED_COLUMNS, *IF_NULL, "trainable", "untrainable_reason", "filter"} - {*LATE_COLUMNS}
NO_FILTER = (0.0, 0.0, 1.0)
"""min_p, top_k and top_p that cut nothing off."""


@dataclass(slots=True, eq=False)
class Sample:
    """One sampled choice of one call (``contract.BATCH_COLUMNS``)."""

    group: str
    kind: str
    episode: str
    call: str
    number: int
    choice: int
    prompt_P: Ints
    completion_C: Ints
    logprobs_C: Floats
    """The engine's, under the temperature it sampled with."""
    reward: float
    temperature: float = 1.0
    call_reward: float | None = None
    adapter: str = ""
    staleness: int = 0
    trainable: bool = True
    reason: str | None = None
    """Why it is not trainable."""
    advantage: float = 0.0
    key: str = ""
    """The API key's id: two keys may use the same episode id."""
    filter: tuple[float, float, float] | None = None
    """min_p, top_k (0: all) and top_p that it was sampled with, if one of them cuts something off. Its recorded
    log-probabilities are of what was left."""
    own: bool = False
    """The weights that are trained sampled it: no step was taken since."""
    hint: str | None = None
    """What a user said about it. It is trained on towards what the model would have said with that in its prompt."""
    hinted_P: Ints | None = None
    """That prompt."""
    tags: str = ""
    """The run's tags, as one text."""

    @property
    def run(self) -> str:
        """The episode's identity, everywhere: ``<key>/<episode>``."""
        return f"{self.key}/{self.episode}" if self.key else self.episode


@dataclass(slots=True, eq=False)
class Chain:
    """Tokens to compute: all up to the one before the last scored token."""

    ids_L: Ints
    samples: list[int] = field(default_factory=list)
    """Indexes of the samples whose tokens are scored along it."""


def fault(s: Sample, vocab: int | None, *, imitate: bool = False) -> str | None:
    """Why a trainable sample is not trained on, or None. ``imitate``: only its tokens count, not how they came."""
    if not len(s.completion_C):
        return "empty"
    if not len(s.prompt_P):
        return "no_prompt"
    if not imitate and (why := _unknown(s)):
        return why
    if vocab is not None:
        low = min(s.prompt_P.min(), s.completion_C.min())
        if low < 0 or max(s.prompt_P.max(), s.completion_C.max()) >= vocab:
            return "unknown_token"
    return None


def _unknown(s: Sample) -> str | None:
    """What an importance weight lacks."""
    if len(s.logprobs_C) != len(s.completion_C):
        return "logprobs_missing"
    if not np.isfinite(s.logprobs_C).all() or not (np.isfinite(s.reward) or s.hint is not None):
        return "not_finite"
    if s.logprobs_C.min() <= MISSING_LOGPROB:
        return "logprobs_missing"
    if not (np.isfinite(s.temperature) and s.temperature > 0):
        return "temperature"
    return None


def read_samples(table: pa.Table, vocab: int | None = None) -> list[Sample]:
    """The samples of a leased batch, in the table's order. What cannot be trained on says why and stays as context.

    What is too old says so already: the proxy knows whether its age counts.

    ``vocab``: ids must be below it. Raises ``KeyError`` when a column is missing, ``ValueError`` for prompts in deltas
    that cannot be put together.
    """
    prompts, completions = prompts_of(table), lists_of(table, "completion_ids", np.int32)
    logprobs = lists_of(table, "logprobs", np.float32)
    late = [n for n in LATE_COLUMNS if n in table.column_names]
    plain = {n: table.column(n).to_pylist() for n in (*PLAIN_COLUMNS, *late)}
    samples = []
    for i in range(table.num_rows):
        p = {n: column[i] for n, column in plain.items()}
        given = {n: p[n] for n in COPIED_COLUMNS} | {
            n: x if (x := p.get(n)) is not None else y for n, y in IF_NULL.items()
        }
        s = Sample(
            **given,
            prompt_P=prompts[i],
            completion_C=completions[i],
            logprobs_C=logprobs[i],
            trainable=bool(p["trainable"]),
            reason=p["untrainable_reason"],
            filter=tuple(p["filter"]) if p["filter"] else None,
            hint=p.get("hint"),
        )
        if s.trainable and (why := fault(s, vocab)):
            s.trainable, s.reason = False, why
        samples.append(s)
    return samples


def untrainable(samples: Sequence[Sample]) -> dict[str, int]:
    """Reason → samples that are left out."""
    return dict(Counter(s.reason or "untrainable" for s in samples if not s.trainable))


def _key(s: Sample) -> bytes:
    """All that is computed for it: the last sampled token is predicted, never read."""
    return bytes(np.concatenate([s.prompt_P, s.completion_C[:-1]]).astype(np.int32).tobytes())


def merge_chains(samples: Sequence[Sample], *, per_call: bool = False) -> list[Chain]:
    """The fewest chains that hold every trainable sample's tokens, in lexicographic order of their ids (as bytes).

    In that order all sequences that begin with ``a`` stand right behind ``a``, so a sample lies on another's chain
    if, and only if, it is a prefix of its right neighbour. ``per_call``: a chain for every sample, as a trainer
    without merging would have.
    """
    keys = {i: _key(s) for i, s in enumerate(samples) if s.trainable}
    order = sorted(keys, key=keys.__getitem__)
    chains: list[Chain] = []
    right = b""
    for i in reversed(order):
        if not chains or per_call or not right.startswith(keys[i]):
            right = keys[i]
            chains.append(Chain(np.frombuffer(right, dtype=np.int32)))
        chains[-1].samples.append(i)
    for chain in chains:
        chain.samples.reverse()
    return chains[::-1]


def exact_continuations(samples: Sequence[Sample]) -> tuple[int, int]:
    """(calls whose prompt begins with an earlier call's prompt and reply, token by token; calls after their
    episode's first).

    Tool calls that a chat template renders differently from what was sampled break this, and with it the merging.
    """
    episodes: dict[str, dict[int, list[Sample]]] = {}
    for s in samples:
        episodes.setdefault(s.run, {}).setdefault(s.number, []).append(s)
    exact = later = 0
    for calls in episodes.values():
        before: list[bytes] = []
        for n in sorted(calls):
            prompt = calls[n][0].prompt_P.tobytes()
            later += bool(before)
            exact += any(prompt.startswith(b) for b in before)
            before += [s.prompt_P.tobytes() + s.completion_C.tobytes() for s in calls[n]]
    return exact, later
