"""``Client`` and ``AsyncClient``: the same methods (requests.py), one with ``await``."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

import httpx

from slipstream import contract as c
from slipstream.client import requests
from slipstream.client.ask import Ask, check
from slipstream.errors import ConfigError, Unavailable
from slipstream.shared.prefixes import joined, whole_episode
from slipstream.shared.tenant_names import check_tenant_name

T = TypeVar("T")
P = ParamSpec("P")
DEFAULT_URL = "http://127.0.0.1:8100"
LONG_REQUEST_TIMEOUT = httpx.Timeout(60.0, connect=10.0)


def _settings(
    url: str | None, key: str | None, tenant: str | None
) -> tuple[str, dict[str, str], ssl.SSLContext | bool]:
    """(The URL, headers, the trusted certificates). None are read for http: that takes longer than a call."""
    base = (
        (url or os.environ.get("SLIPSTREAM_URL") or os.environ.get("OPENAI_BASE_URL") or DEFAULT_URL)
        .rstrip("/")
        .removesuffix("/v1")
    )
    if "://" not in base:  # host:port
        base = f"http://{base}"
    try:
        tls = httpx.URL(base).scheme == "https" and httpx.create_ssl_context()
    except httpx.InvalidURL as e:
        raise ConfigError(f"{base} is no URL: {e}") from e
    key = (key or os.environ.get("SLIPSTREAM_API_KEY") or "").strip()
    headers = {"authorization": f"Bearer {key}"} if key else {}
    if tenant is None:
        tenant = os.environ.get("SLIPSTREAM_TENANT")
    if tenant:
        check_tenant_name(tenant)
        headers[c.Headers.TENANT] = tenant
    return base, headers, tls


class SyncSession:
    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        tenant: str | None = None,
        timeout: httpx.Timeout | float = LONG_REQUEST_TIMEOUT,
    ) -> None:
        self.url, headers, tls = _settings(url, key, tenant)
        self.http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout, trust_env=False, verify=tls)

    def ask(self, ask: Ask[T]) -> T:
        try:
            response = self.http.send(ask.request(self.http))
        except (httpx.RequestError, httpx.InvalidURL) as e:
            raise Unavailable(f"{self.url} does not answer: {e or type(e).__name__}") from e
        return ask.result(response)

    def close(self) -> None:
        self.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncSession:
    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        tenant: str | None = None,
        timeout: httpx.Timeout | float = LONG_REQUEST_TIMEOUT,
    ) -> None:
        self.url, headers, tls = _settings(url, key, tenant)
        self.http = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=timeout, trust_env=False, verify=tls)

    async def ask(self, ask: Ask[T]) -> T:
        try:
            response = await self.http.send(ask.request(self.http))
        except (httpx.RequestError, httpx.InvalidURL) as e:
            raise Unavailable(f"{self.url} does not answer: {e or type(e).__name__}") from e
        return ask.result(response)

    async def close(self) -> None:
        await self.http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Method(Generic[P, T]):
    """A function of requests.py as a method. A ``Client`` returns the result, an ``AsyncClient`` a coroutine of it."""

    def __init__(self, make: Callable[P, Ask[T]]) -> None:
        self.make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, client: None, kind: type | None = None) -> Self: ...
    @overload
    def __get__(self, client: SyncSession, kind: type | None = None) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncSession, kind: type | None = None) -> Callable[P, Coroutine[None, None, T]]: ...
    def __get__(self, client: SyncSession | AsyncSession | None, kind: type | None = None) -> object:
        if client is None:
            return self

        def method(*args: P.args, **kwargs: P.kwargs) -> T | Coroutine[None, None, T]:
            return client.ask(self.make(*args, **kwargs))

        return update_wrapper(method, self.make)


class Methods:
    episodes = Method(requests.episodes)
    episode_page = Method(requests.episode_page)
    add_reward = Method(requests.add_reward)
    add_feedback = Method(requests.add_feedback)
    done = Method(requests.done)
    delete = Method(requests.delete)
    forget = Method(requests.forget)
    case_sets = Method(requests.case_sets)
    case_page = Method(requests.case_page)
    add_cases = Method(requests.add_cases)
    import_cases = Method(requests.import_cases)
    remove_cases = Method(requests.remove_cases)
    drop_cases = Method(requests.drop_cases)
    lease_groups = Method(requests.lease_groups)
    post_scores = Method(requests.post_scores)
    begin_rerun = Method(requests.begin_rerun)
    report_judge = Method(requests.report_judge)
    parked = Method(requests.parked)
    retry_group = Method(requests.retry_group)
    cache_get = Method(requests.cache_get)
    cache_put = Method(requests.cache_put)
    lease_batch = Method(requests.lease_batch)
    train_again = Method(requests.train_again)
    train_anew = Method(requests.train_anew)
    stop_training_again = Method(requests.stop_training_again)
    ack_batch = Method(requests.ack_batch)
    tell_gaps = Method(requests.tell_gaps)
    release = Method(requests.release)
    hold_engine = Method(requests.hold_engine)
    release_engine = Method(requests.release_engine)
    be_learner = Method(requests.be_learner)
    claim_name = Method(requests.claim_name)
    add_adapter = Method(requests.add_adapter)
    upload_adapter = Method(requests.upload_adapter)
    upload_trial = Method(requests.upload_trial)
    upload_state = Method(requests.upload_state)
    upload_part = Method(requests.upload_part)
    try_adapter = Method(requests.try_adapter)
    adapter_file = Method(requests.adapter_file)
    adapters = Method(requests.adapters)
    batch = Method(requests.batch)
    replay_of = Method(requests.replay_of)
    keep_adapter = Method(requests.keep_adapter)
    promote = Method(requests.promote)
    demote = rollback = Method(requests.demote)
    freeze = Method(requests.freeze)
    unfreeze = Method(requests.unfreeze)
    adapter_effect = Method(requests.adapter_effect)
    post_event = Method(requests.post_event)
    events = Method(requests.events)
    learning = Method(requests.learning)
    cost = Method(requests.cost)
    status = Method(requests.status)
    tenants = Method(requests.tenants)
    sql = Method(requests.sql)
    restore_episode = Method(requests.restore_episode)
    restore_episodes = Method(requests.restore_episodes)
    restore_adapters = Method(requests.restore_adapters)
    audit = Method(requests.audit)
    pause_training = Method(requests.pause_training)
    resume_training = Method(requests.resume_training)
    annotate = Method(requests.annotate)


class Client(Methods, SyncSession):
    """Sync. ``url`` is the proxy's (``SLIPSTREAM_URL``, ``OPENAI_BASE_URL``), ``key`` an API key with the needed scope
    (``SLIPSTREAM_API_KEY``). With an operator's key ``tenant`` says in whose place it asks
    (``SLIPSTREAM_TENANT``); empty: in its own.

    Raises ``ApiError`` for what the proxy refuses, ``Unavailable`` when it does not answer, ``ConfigError`` for a
    ``url`` that is none.
    """

    def all_episodes(self, **filters: Any) -> Iterator[c.Episode]:
        while True:
            page = self.episodes(**filters)
            yield from page.episodes
            if page.next is None:
                return
            filters["cursor"] = page.next

    def episode(self, id: str, *, tokens: bool = False, of_key: str | None = None) -> c.EpisodeDetail:
        """An episode with all its calls, each whole. ``of_key``: the key that made it; None: the newest of this id."""
        found = self.episode_page(id, tokens=tokens, form="deltas", of_key=of_key)
        while found.next_call is not None:
            first = found.next_call
            more = self.episode_page(id, tokens=tokens, form="deltas", calls_from=first, of_key=of_key)
            found = joined(found, more)
        return whole_episode(found)

    def export(self, format: str, **filters: Any) -> Iterator[bytes]:
        """The dataset's bytes, as they come."""
        yield from self._bytes(requests.export(format, filters))

    def backup(self) -> Iterator[bytes]:
        """A tar file with store, spool, adapters, keys and checkpoints, as it comes."""
        yield from self._bytes(requests.backup())

    def _bytes(self, ask: Ask[None]) -> Iterator[bytes]:
        try:
            response = self.http.send(ask.request(self.http), stream=True)
            if not response.is_success:
                response.read()
            check(response)
            yield from response.iter_bytes()
        except httpx.RequestError as e:
            raise Unavailable(f"the connection to {self.url} was lost: {e!r}") from e


class AsyncClient(Methods, AsyncSession):
    """``Client`` with ``await``."""

    async def all_episodes(self, **filters: Any) -> AsyncIterator[c.Episode]:
        while True:
            page = await self.episodes(**filters)
            for episode in page.episodes:
                yield episode
            if page.next is None:
                return
            filters["cursor"] = page.next

    async def episode(self, id: str, *, tokens: bool = False, of_key: str | None = None) -> c.EpisodeDetail:
        """An episode with all its calls, each whole. ``of_key``: the key that made it; None: the newest of this id."""
        found = await self.episode_page(id, tokens=tokens, form="deltas", of_key=of_key)
        while found.next_call is not None:
            first = found.next_call
            more = await self.episode_page(id, tokens=tokens, form="deltas", calls_from=first, of_key=of_key)
            found = joined(found, more)
        return whole_episode(found)

    async def export(self, format: str, **filters: Any) -> AsyncIterator[bytes]:
        """The dataset's bytes, as they come."""
        async for chunk in self._bytes(requests.export(format, filters)):
            yield chunk

    async def backup(self) -> AsyncIterator[bytes]:
        """A tar file with store, spool, adapters, keys and checkpoints, as it comes."""
        async for chunk in self._bytes(requests.backup()):
            yield chunk

    async def _bytes(self, ask: Ask[None]) -> AsyncIterator[bytes]:
        try:
            response = await self.http.send(ask.request(self.http), stream=True)
            if not response.is_success:
                await response.aread()
            check(response)
            async for chunk in response.aiter_bytes():
                yield chunk
        except httpx.RequestError as e:
            raise Unavailable(f"the connection to {self.url} was lost: {e!r}") from e
