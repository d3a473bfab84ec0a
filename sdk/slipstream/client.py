"""The control API's client, sync and async: what users have, and what judge and trainer use.

``Client`` and ``AsyncClient`` have the same methods. Each method says what it sends in one ``_Ask`` (below), so the two differ in nothing but ``await``.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from slipstream import contract as c
from slipstream.errors import ApiError, ConfigError, Unavailable

if TYPE_CHECKING:
    import pyarrow as pa

M = TypeVar("M", bound=BaseModel)
DEFAULT_URL = "http://127.0.0.1:8100"
Params = dict[str, str | int | float | bool]


@dataclass(slots=True)
class LeasedBatch:
    """The trainer's work: ``table`` has ``contract.BATCH_COLUMNS``, a row per sampled choice. Hold it until ``until``."""

    id: str
    lease: str
    until: float
    table: pa.Table


@dataclass(slots=True)
class _Ask:
    method: str
    path: str
    body: BaseModel | dict[str, Any] | None = None
    params: Params | None = None

    def request(self, client: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        body = self.body.model_dump_json() if isinstance(self.body, BaseModel) else self.body
        if isinstance(body, str):
            return client.build_request(
                self.method,
                c.API + self.path,
                content=body,
                headers={"content-type": "application/json"},
                params=self.params,
            )
        return client.build_request(self.method, c.API + self.path, json=body, params=self.params)


def _raise(response: httpx.Response) -> None:
    if response.is_success:
        return
    try:
        detail = c.Error.model_validate_json(response.content).error
    except ValidationError:
        raise ApiError(
            response.status_code, f"{response.status_code} from {response.url}: {response.text[:500]}"
        ) from None
    raise ApiError(response.status_code, detail.message, field=detail.field, fix=detail.fix)


def _model(kind: type[M], response: httpx.Response) -> M:
    try:
        return kind.model_validate_json(response.content)
    except ValidationError as e:
        raise ApiError(
            response.status_code, f"{response.url} answered with something that is no {kind.__name__}: {e}"
        ) from e


def _batch(response: httpx.Response) -> LeasedBatch | None:
    if response.status_code == httpx.codes.NO_CONTENT:
        return None
    import pyarrow as pa

    try:
        table = pa.ipc.open_stream(response.content).read_all()
        h = response.headers
        return LeasedBatch(h["x-slipstream-batch"], h["x-slipstream-lease"], float(h["x-slipstream-until"]), table)
    except (KeyError, ValueError, IndexError, OSError, pa.ArrowException) as e:
        raise Unavailable(f"{response.url} answered with a broken batch: {e!r}") from e


def _lease(response: httpx.Response) -> c.GroupLease | None:
    return None if response.status_code == httpx.codes.NO_CONTENT else _model(c.GroupLease, response)


class _Parked(BaseModel):
    groups: list[c.Group]


def _parked(response: httpx.Response) -> list[c.Group]:
    return _model(_Parked, response).groups


def _events(response: httpx.Response) -> list[c.Event]:
    try:
        # only \n ends a line of NDJSON: U+2028 and such may stand in a string
        return [c.Event.model_validate_json(line) for line in response.content.split(b"\n") if line.strip()]
    except ValidationError as e:
        raise ApiError(response.status_code, f"{response.url} answered with something that is no event: {e}") from e


def _part(id: str) -> str:
    """An id as one part of a path, whatever is in it."""
    return quote(id, safe="@~")


def _clean(params: dict[str, Any]) -> Params:
    flat = {k: v for k, v in params.items() if v is not None and k != "tags"}
    return flat | {f"tag.{k}": v for k, v in (params.get("tags") or {}).items()}


def _settings(url: str | None, key: str | None) -> tuple[str, dict[str, str]]:
    base = (
        (url or os.environ.get("SLIPSTREAM_URL") or os.environ.get("OPENAI_BASE_URL") or DEFAULT_URL)
        .rstrip("/")
        .removesuffix("/v1")
    )
    try:
        httpx.URL(base)
    except httpx.InvalidURL as e:
        raise ConfigError(f"{base} is no URL: {e}") from e
    key = (key or os.environ.get("SLIPSTREAM_API_KEY") or "").strip()
    return base, {"authorization": f"Bearer {key}"} if key else {}


LONG = httpx.Timeout(60.0, connect=10.0)


class Client:
    """Sync. ``url`` is the proxy's (``SLIPSTREAM_URL``, ``OPENAI_BASE_URL``), ``key`` an API key with the needed scope (``SLIPSTREAM_API_KEY``).

    Raises ``ApiError`` for what the proxy refuses, ``Unavailable`` when it does not answer, ``ConfigError`` for a ``url`` that is none.
    """

    def __init__(
        self, url: str | None = None, key: str | None = None, *, timeout: httpx.Timeout | float = LONG
    ) -> None:
        self.url, headers = _settings(url, key)
        self.http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout, trust_env=False)

    def _do(self, ask: _Ask) -> httpx.Response:
        try:
            response = self.http.send(ask.request(self.http))
        except (httpx.RequestError, httpx.InvalidURL) as e:
            raise Unavailable(f"{self.url} does not answer: {e!r}") from e
        _raise(response)
        return response

    def close(self) -> None:
        self.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # episodes
    def episodes(self, **filters: Any) -> c.EpisodePage:
        """Filters: task, split, adapter, state, model, tags, reward_min, reward_max, since, until, cursor, limit."""
        return _model(c.EpisodePage, self._do(_Ask("GET", "/episodes", params=_clean(filters))))

    def all_episodes(self, **filters: Any) -> Iterator[c.Episode]:
        while True:
            page = self.episodes(**filters)
            yield from page.episodes
            if page.next is None:
                return
            filters["cursor"] = page.next

    def episode(self, id: str, *, tokens: bool = False) -> c.EpisodeDetail:
        return _model(c.EpisodeDetail, self._do(_Ask("GET", f"/episodes/{_part(id)}", params={"tokens": int(tokens)})))

    def add_reward(self, episode: str, reward: c.RewardIn) -> c.RewardAck:
        return _model(c.RewardAck, self._do(_Ask("POST", f"/episodes/{_part(episode)}/rewards", reward)))

    def done(self, episode: str) -> None:
        self._do(_Ask("POST", f"/episodes/{_part(episode)}/done", c.DoneIn()))

    def delete(self, episode: str) -> c.Deleted:
        return _model(c.Deleted, self._do(_Ask("DELETE", f"/episodes/{_part(episode)}")))

    # the judge's work
    def lease_groups(self, wanted: c.GroupLeaseIn) -> c.GroupLease | None:
        return _lease(self._do(_Ask("POST", "/groups/lease", wanted)))

    def post_scores(self, group: str, scores: c.ScoresIn) -> None:
        self._do(_Ask("POST", f"/groups/{_part(group)}/scores", scores))

    def parked(self) -> list[c.Group]:
        return _parked(self._do(_Ask("GET", "/groups/parked")))

    def retry_group(self, group: str) -> None:
        self._do(_Ask("POST", f"/groups/{_part(group)}/retry"))

    def cache_get(self, key: str) -> dict[str, Any] | None:
        try:
            return _model(c.CacheEntry, self._do(_Ask("GET", f"/judge/cache/{_part(key)}"))).value
        except ApiError as e:
            if e.status == httpx.codes.NOT_FOUND:
                return None
            raise

    def cache_put(self, key: str, value: dict[str, Any]) -> None:
        self._do(_Ask("PUT", f"/judge/cache/{_part(key)}", c.CacheEntry(key=key, value=value)))

    # the trainer's work
    def lease_batch(self, wanted: c.BatchLeaseIn) -> LeasedBatch | None:
        return _batch(self._do(_Ask("POST", "/batches/lease", wanted)))

    def ack_batch(self, batch: str, ack: c.BatchAck) -> None:
        self._do(_Ask("POST", f"/batches/{_part(batch)}/ack", ack))

    def release(self, worker: str) -> None:
        self._do(_Ask("POST", "/leases/release", {"worker": worker}))

    def hold_engine(self, hold: c.HoldIn) -> c.Hold:
        return _model(c.Hold, self._do(_Ask("POST", "/engine/hold", hold)))

    def release_engine(self, worker: str) -> c.EngineReleased:
        return _model(c.EngineReleased, self._do(_Ask("POST", "/engine/release", c.EngineReleaseIn(worker=worker))))

    # adapters
    def add_adapter(self, adapter: c.AdapterIn) -> c.Adapter:
        return _model(c.Adapter, self._do(_Ask("POST", "/adapters", adapter)))

    def adapters(self) -> c.Adapters:
        return _model(c.Adapters, self._do(_Ask("GET", "/adapters")))

    def promote(self, adapter: str, reason: str | None = None) -> c.Adapter:
        return _model(c.Adapter, self._do(_Ask("POST", f"/adapters/{_part(adapter)}/promote", c.GateIn(reason=reason))))

    def rollback(self, adapter: str, reason: str | None = None) -> c.Adapter:
        return _model(
            c.Adapter, self._do(_Ask("POST", f"/adapters/{_part(adapter)}/rollback", c.GateIn(reason=reason)))
        )

    # events and looking
    def post_event(self, event: c.Event) -> None:
        self._do(_Ask("POST", "/training/events", event))

    def events(self, after: int = 0) -> list[c.Event]:
        return _events(self._do(_Ask("GET", "/training/events", params={"after": after})))

    def status(self) -> c.Status:
        return _model(c.Status, self._do(_Ask("GET", "/status")))

    def sql(self, query: str, limit: int = 1000) -> c.SqlResult:
        return _model(c.SqlResult, self._do(_Ask("POST", "/sql", c.Sql(query=query, limit=limit))))

    def import_episode(self, episode: dict[str, Any]) -> None:
        """One conversation of a log: id, task, split, model, messages, tools, reward, tags. It has text and no tokens."""
        self._do(_Ask("POST", "/import", episode))

    def restore_episode(self, episode: dict[str, Any]) -> None:
        """An episode as ``export("jsonl")`` wrote it, put back whole, with its ids and log-probabilities. Admin."""
        self._do(_Ask("POST", "/import/episode", episode))

    def restore_adapters(self, adapters: dict[str, Any]) -> None:
        """Adapters and their states, as ``adapters()`` tells them. Admin."""
        self._do(_Ask("POST", "/import/adapters", adapters))

    def export(self, format: str, **filters: Any) -> Iterator[bytes]:
        """The dataset's bytes, as they come."""
        request = _Ask("GET", "/export", params=_clean(filters) | {"format": format}).request(self.http)
        try:
            response = self.http.send(request, stream=True)
            if not response.is_success:
                response.read()
            _raise(response)
            yield from response.iter_bytes()
        except httpx.RequestError as e:
            raise Unavailable(f"{self.url} broke off: {e!r}") from e


class AsyncClient:
    """``Client``'s twin with ``await``."""

    def __init__(
        self, url: str | None = None, key: str | None = None, *, timeout: httpx.Timeout | float = LONG
    ) -> None:
        self.url, headers = _settings(url, key)
        self.http = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=timeout, trust_env=False)

    async def _do(self, ask: _Ask) -> httpx.Response:
        try:
            response = await self.http.send(ask.request(self.http))
        except (httpx.RequestError, httpx.InvalidURL) as e:
            raise Unavailable(f"{self.url} does not answer: {e!r}") from e
        _raise(response)
        return response

    async def close(self) -> None:
        await self.http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # episodes
    async def episodes(self, **filters: Any) -> c.EpisodePage:
        """Filters: task, split, adapter, state, model, tags, reward_min, reward_max, since, until, cursor, limit."""
        return _model(c.EpisodePage, await self._do(_Ask("GET", "/episodes", params=_clean(filters))))

    async def all_episodes(self, **filters: Any) -> AsyncIterator[c.Episode]:
        while True:
            page = await self.episodes(**filters)
            for episode in page.episodes:
                yield episode
            if page.next is None:
                return
            filters["cursor"] = page.next

    async def episode(self, id: str, *, tokens: bool = False) -> c.EpisodeDetail:
        return _model(
            c.EpisodeDetail, await self._do(_Ask("GET", f"/episodes/{_part(id)}", params={"tokens": int(tokens)}))
        )

    async def add_reward(self, episode: str, reward: c.RewardIn) -> c.RewardAck:
        return _model(c.RewardAck, await self._do(_Ask("POST", f"/episodes/{_part(episode)}/rewards", reward)))

    async def done(self, episode: str) -> None:
        await self._do(_Ask("POST", f"/episodes/{_part(episode)}/done", c.DoneIn()))

    async def delete(self, episode: str) -> c.Deleted:
        return _model(c.Deleted, await self._do(_Ask("DELETE", f"/episodes/{_part(episode)}")))

    # the judge's work
    async def lease_groups(self, wanted: c.GroupLeaseIn) -> c.GroupLease | None:
        return _lease(await self._do(_Ask("POST", "/groups/lease", wanted)))

    async def post_scores(self, group: str, scores: c.ScoresIn) -> None:
        await self._do(_Ask("POST", f"/groups/{_part(group)}/scores", scores))

    async def parked(self) -> list[c.Group]:
        return _parked(await self._do(_Ask("GET", "/groups/parked")))

    async def retry_group(self, group: str) -> None:
        await self._do(_Ask("POST", f"/groups/{_part(group)}/retry"))

    async def cache_get(self, key: str) -> dict[str, Any] | None:
        try:
            return _model(c.CacheEntry, await self._do(_Ask("GET", f"/judge/cache/{_part(key)}"))).value
        except ApiError as e:
            if e.status == httpx.codes.NOT_FOUND:
                return None
            raise

    async def cache_put(self, key: str, value: dict[str, Any]) -> None:
        await self._do(_Ask("PUT", f"/judge/cache/{_part(key)}", c.CacheEntry(key=key, value=value)))

    # the trainer's work
    async def lease_batch(self, wanted: c.BatchLeaseIn) -> LeasedBatch | None:
        return _batch(await self._do(_Ask("POST", "/batches/lease", wanted)))

    async def ack_batch(self, batch: str, ack: c.BatchAck) -> None:
        await self._do(_Ask("POST", f"/batches/{_part(batch)}/ack", ack))

    async def release(self, worker: str) -> None:
        await self._do(_Ask("POST", "/leases/release", {"worker": worker}))

    async def hold_engine(self, hold: c.HoldIn) -> c.Hold:
        return _model(c.Hold, await self._do(_Ask("POST", "/engine/hold", hold)))

    async def release_engine(self, worker: str) -> c.EngineReleased:
        return _model(
            c.EngineReleased, await self._do(_Ask("POST", "/engine/release", c.EngineReleaseIn(worker=worker)))
        )

    # adapters
    async def add_adapter(self, adapter: c.AdapterIn) -> c.Adapter:
        return _model(c.Adapter, await self._do(_Ask("POST", "/adapters", adapter)))

    async def adapters(self) -> c.Adapters:
        return _model(c.Adapters, await self._do(_Ask("GET", "/adapters")))

    async def promote(self, adapter: str, reason: str | None = None) -> c.Adapter:
        return _model(
            c.Adapter, await self._do(_Ask("POST", f"/adapters/{_part(adapter)}/promote", c.GateIn(reason=reason)))
        )

    async def rollback(self, adapter: str, reason: str | None = None) -> c.Adapter:
        return _model(
            c.Adapter, await self._do(_Ask("POST", f"/adapters/{_part(adapter)}/rollback", c.GateIn(reason=reason)))
        )

    # events and looking
    async def post_event(self, event: c.Event) -> None:
        await self._do(_Ask("POST", "/training/events", event))

    async def events(self, after: int = 0) -> list[c.Event]:
        return _events(await self._do(_Ask("GET", "/training/events", params={"after": after})))

    async def status(self) -> c.Status:
        return _model(c.Status, await self._do(_Ask("GET", "/status")))

    async def sql(self, query: str, limit: int = 1000) -> c.SqlResult:
        return _model(c.SqlResult, await self._do(_Ask("POST", "/sql", c.Sql(query=query, limit=limit))))

    async def import_episode(self, episode: dict[str, Any]) -> None:
        """One conversation of a log: id, task, split, model, messages, tools, reward, tags. It has text and no tokens."""
        await self._do(_Ask("POST", "/import", episode))

    async def restore_episode(self, episode: dict[str, Any]) -> None:
        """An episode as ``export("jsonl")`` wrote it, put back whole, with its ids and log-probabilities. Admin."""
        await self._do(_Ask("POST", "/import/episode", episode))

    async def restore_adapters(self, adapters: dict[str, Any]) -> None:
        """Adapters and their states, as ``adapters()`` tells them. Admin."""
        await self._do(_Ask("POST", "/import/adapters", adapters))

    async def export(self, format: str, **filters: Any) -> AsyncIterator[bytes]:
        """The dataset's bytes, as they come."""
        request = _Ask("GET", "/export", params=_clean(filters) | {"format": format}).request(self.http)
        try:
            response = await self.http.send(request, stream=True)
            if not response.is_success:
                await response.aread()
            _raise(response)
            async for part in response.aiter_bytes():
                yield part
        except httpx.RequestError as e:
            raise Unavailable(f"{self.url} broke off: {e!r}") from e
