"""``episode()``: the tags of one run, for those who would rather write Python than headers.

    with slipstream.episode(task="find-invoice-17") as ep:
        client = openai.OpenAI(base_url=ep.base_url, default_headers=ep.headers)
        ...
        ep.reward(1.0)

At the end of the block the episode is said to be done; when the block raises, it is done too, without a reward.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import quote

from slipstream.client import Client
from slipstream.contract import PLAIN_ID_PATTERN, FeedbackIn, Headers, RewardIn, Split, name_of
from slipstream.errors import ApiError, ConfigError


@dataclass(slots=True)
class Run:
    """One run of an agent. ``headers`` tag its calls; ``base_url`` does too, for clients that can set nothing else."""

    id: str
    task: str | None
    split: Split
    tags: dict[str, str]
    client: Client = field(repr=False)

    @property
    def headers(self) -> dict[str, str]:
        tags = {f"{Headers.TAG}{k}": v for k, v in self.tags.items()}
        task = {Headers.TASK: _header(self.task)} if self.task else {}
        return {Headers.EPISODE: self.id, Headers.SPLIT: str(self.split), **task, **tags}

    @property
    def base_url(self) -> str:
        task = f"/t/{quote(self.task, safe='')}" if self.task else ""
        return f"{self.client.url}{task}/e/{self.id}/v1"

    def reward(self, value: float, *, name: str = "reward", source: str = "agent", reason: str | None = None) -> None:
        """Keep a reward. The episode ends with its block, so that calls may still come."""
        self.client.add_reward(self.id, RewardIn(value=value, name=name, source=source, reason=reason, done=False))

    def feedback(self, text: str | None = None, *, call: str | None = None, reply: str | None = None) -> None:
        """Say what was wrong, with the run or with one call (``x-slipstream-call``), or give a better reply."""
        self.client.add_feedback(self.id, FeedbackIn(text=text, call=call, reply=reply))


def _header(text: str) -> str:
    """The text where a header can carry it as it is, else its name, which is what the proxy would make of it."""
    plain = text.isascii() and text.isprintable() and text == text.strip()
    return text if plain else name_of(text)


@contextlib.contextmanager
def episode(
    task: str | None = None,
    *,
    id: str | None = None,
    split: Split | str = Split.TRAIN,
    tags: dict[str, str] | None = None,
    url: str | None = None,
    key: str | None = None,
) -> Iterator[Run]:
    """A new episode. ``task`` groups its runs; ``id`` None: a new one. Raises ``ConfigError`` for bad names."""
    if split not in (Split.TRAIN, Split.EVAL, Split.OFF):
        raise ConfigError(f"episode(split={split!r}): one of train, eval, off")
    for name, value in (tags or {}).items():
        if not PLAIN_ID_PATTERN.fullmatch(name) or not (value.isascii() and value.isprintable()):
            raise ConfigError(f"episode(tags={{{name!r}: {value!r}}}): no header can carry that")
    with Client(url, key) as client:
        run = Run(name_of(id) if id else uuid.uuid4().hex, task, Split(split), tags or {}, client)
        try:
            yield run
        finally:
            if run.split != Split.OFF:
                with contextlib.suppress(ApiError):  # no call arrived, or the proxy is away: nothing to end
                    client.done(run.id)
