"""The control API in memory: what the judge's and the trainer's workers talk to in their tests."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from aiohttp import web
from tests.support.served import Served

from slipstream.contract import API_PREFIX, Episode, Group, Headers

Json = dict[str, Any]


@dataclass
class WaitingGroup:
    """A group that the judge may lease. ``until``: when its lease ends; ``not_before``: when it may be leased again."""

    group: Group
    lease: str | None = None
    until: float = 0.0
    not_before: float = 0.0
    at: float = field(default_factory=time.time)
    """When the group was complete. The newest is leased first."""
    _text: str = ""

    def text(self) -> str:
        if not self._text or self.group.attempts:
            self._text = self.group.model_dump_json()
        return self._text


@dataclass
class FakeControl:
    """Groups for judges, batches for trainers, and a record of all that they posted."""

    model: str = "tiny"
    max_attempts: int = 4
    lost_after: float = float("inf")
    """Seconds after which a group is too old to train on, and is not leased."""
    url: str = ""
    broken: int = 0
    """How many of the next requests are answered 503."""
    broken_path: str = ""
    """Only requests whose path ends so count for ``broken``."""

    waiting: dict[str, WaitingGroup] = field(default_factory=dict)
    parked: dict[str, Group] = field(default_factory=dict)
    scored: dict[str, list[Json]] = field(default_factory=dict)
    posts: list[tuple[str, Json]] = field(default_factory=list)
    leases: list[Json] = field(default_factory=list)
    reports: list[Json] = field(default_factory=list)
    reruns: list[Json] = field(default_factory=list)
    cache: Json = field(default_factory=dict)
    cached: list[Json] = field(default_factory=list)
    rewards: list[tuple[str, Json]] = field(default_factory=list)
    scored_keys: list[str | None] = field(default_factory=list)
    episodes: dict[str, Json] = field(default_factory=dict)
    queries: list[dict[str, str]] = field(default_factory=list)

    batches: dict[str, pa.Table] = field(default_factory=dict)
    """Not leased yet, by batch id. A leased one comes back when its worker releases it."""
    leased: dict[str, tuple[str, str]] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)
    """Batches of groups that somebody asked to train on again."""
    all: dict[str, pa.Table] = field(default_factory=dict)
    acks: list[tuple[str, Json]] = field(default_factory=list)
    gaps: dict[str, Json] = field(default_factory=dict)
    done: dict[str, str] = field(default_factory=dict)
    adapters: dict[str, Json] = field(default_factory=dict)
    registered: list[Json] = field(default_factory=list)
    live: str = ""
    forgotten: list[str] = field(default_factory=list)
    """Batches of which an episode was forgotten."""
    room: bool = True
    """Whether a new version would be loaded at once."""
    held: str | None = None
    """Who has the engine."""
    holds: list[str] = field(default_factory=list)
    """``hold``, ``busy`` and ``release``, as they were asked for."""
    falling: int = 0
    """Requests for a hold that are answered "not yet" before the next good one."""

    learner_token: str = ""
    """Of the trainer that learns; empty: there is none."""
    learner_name: str = ""
    epoch: int = 0
    claimed: int = 0
    """The highest version whose name was given to a writer."""

    events: list[Json] = field(default_factory=list)
    released: list[str] = field(default_factory=list)

    tenants: dict[str, FakeControl] = field(default_factory=dict)
    """Who answers what is asked in a tenant's place."""

    def __post_init__(self) -> None:
        self.live = self.live or self.model

    def add(self, batch: str, table: pa.Table) -> None:
        self.all[batch] = self.batches[batch] = table

    def add_groups(self, *groups: Group) -> None:
        for group in groups:
            self.waiting[group.id] = WaitingGroup(group)
            self.waiting[group.id].text()

    def of_kind(self, kind: str) -> list[Json]:
        return [e["data"] for e in self.events if e["kind"] == kind]

    def roll_back(self, name: str, live: str) -> None:
        self.adapters[name]["state"] = "rolled_back"
        self.live = live
        if live in self.adapters:
            self.adapters[live]["state"] = "live"

    def app(self) -> web.Application:
        @web.middleware
        async def faults(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            if (tenant := self.tenants.get(request.headers.get(Headers.TENANT, ""))) is not None:
                answer: web.Response = await getattr(tenant, handler.__name__)(request)
                return answer
            if self.broken and request.path.endswith(self.broken_path):
                self.broken -= 1
                return _error(503, "not now")
            return await handler(request)

        app = web.Application(client_max_size=2**28, middlewares=[faults])
        app.add_routes(
            [
                web.post(f"{API_PREFIX}/groups/lease", self.lease_groups),
                web.post(API_PREFIX + "/groups/{id}/scores", self.scores),
                web.post(f"{API_PREFIX}/judge/report", self.report),
                web.post(f"{API_PREFIX}/judge/reruns", self.rerun),
                web.get(API_PREFIX + "/judge/cache/{key}", self.cache_get),
                web.put(API_PREFIX + "/judge/cache/{key}", self.cache_put),
                web.get(f"{API_PREFIX}/episodes", self.list_episodes),
                web.post(f"{API_PREFIX}/sql", self.sql),
                web.get(API_PREFIX + "/episodes/{id}", self.episode),
                web.post(API_PREFIX + "/episodes/{id}/rewards", self.reward),
                web.post(f"{API_PREFIX}/batches/lease", self.lease_batch),
                web.post(API_PREFIX + "/batches/{id}/ack", self.ack),
                web.post(API_PREFIX + "/batches/{id}/gaps", self.take_gaps),
                web.post(f"{API_PREFIX}/engine/hold", self.hold),
                web.post(f"{API_PREFIX}/engine/release", self.give_back),
                web.post(f"{API_PREFIX}/learner", self.learner),
                web.post(f"{API_PREFIX}/adapters/claim", self.claim),
                web.get(f"{API_PREFIX}/adapters", self.list_adapters),
                web.post(f"{API_PREFIX}/adapters", self.register),
                web.get(f"{API_PREFIX}/training/events", self.list_events),
                web.post(f"{API_PREFIX}/training/events", self.event),
                web.post(f"{API_PREFIX}/leases/release", self.release),
            ]
        )
        return app

    # the judge's work

    async def lease_groups(self, request: web.Request) -> web.Response:
        wanted = await request.json()
        self.leases.append(wanted)
        now = time.time()
        if wanted["groups"]:
            for name in wanted["groups"]:
                self.waiting[name] = WaitingGroup(self._stored(name))
            free = [self.waiting[name] for name in wanted["groups"]]
            return self._leased(free, now + wanted["seconds"])
        free = [
            w for w in self.waiting.values() if w.until < now and w.not_before < now and w.at > now - self.lost_after
        ]
        free = free[::-1][: wanted["limit"]]
        return self._leased(free, now + wanted["seconds"]) if free else web.Response(status=204)

    def _stored(self, group: str) -> Group:
        """A group of stored episodes, whole."""
        found = [e for e in self.episodes.values() if e.get("group") == group]
        plain = [{k: v for k, v in e.items() if k in Episode.model_fields} for e in found]
        runs = [
            {"episode": p, "calls": e["call_list"], "rewards": e["rewards"]} for p, e in zip(plain, found, strict=True)
        ]
        shared = {name: plain[0][name] for name in ("key", "task", "split", "model")}
        return Group.model_validate({"id": group, "kind": "task", "episodes": runs, **shared})

    async def rerun(self, request: web.Request) -> web.Response:
        self.reruns.append(await request.json())
        return web.json_response({"stored": True})

    def _leased(self, free: list[WaitingGroup], until: float) -> web.Response:
        lease = uuid.uuid4().hex
        for w in free:
            w.lease, w.until = lease, until
        groups = ",".join(w.text() for w in free)
        return web.Response(
            text=f'{{"lease": "{lease}", "until": {until}, "groups": [{groups}]}}', content_type="application/json"
        )

    async def scores(self, request: web.Request) -> web.Response:
        name, body = request.match_info["id"], await request.json()
        self.posts.append((name, body))
        waiting = self.waiting.get(name)
        if waiting is None or waiting.lease != body["lease"]:
            return _error(409, "the lease has run out")
        if body["failed"] is None:
            self.scored[name] = body["scores"]
            del self.waiting[name]
            return web.json_response({})
        waiting.until = 0.0
        waiting.not_before = time.time() + (body["retry_after"] or 0.0)
        if body["retry_after"] is None:
            waiting.group.attempts += 1
            if waiting.group.attempts >= self.max_attempts:
                self.parked[name] = self.waiting.pop(name).group
        return web.json_response({})

    async def report(self, request: web.Request) -> web.Response:
        self.reports.append(await request.json())
        oldest = min((w.at for w in self.waiting.values()), default=None)
        age = None if oldest is None else time.time() - oldest
        return web.json_response({"groups": len(self.waiting), "oldest_seconds": age})

    async def cache_get(self, request: web.Request) -> web.Response:
        key = request.match_info["key"]
        if key not in self.cache:
            return _error(404, "not there")
        return web.json_response({"key": key, "value": self.cache[key], "at": 0.0})

    async def cache_put(self, request: web.Request) -> web.Response:
        self.cached.append(await request.json())
        self.cache[request.match_info["key"]] = self.cached[-1]["value"]
        return web.json_response({})

    async def list_episodes(self, request: web.Request) -> web.Response:
        self.queries.append(dict(request.query))
        all_ = [{k: v for k, v in e.items() if k in Episode.model_fields} for e in self.episodes.values()]
        start = int(request.query.get("cursor", 0))
        more = str(start + 3) if start + 3 < len(all_) else None
        return web.json_response({"episodes": all_[start : start + 3], "next": more})

    async def sql(self, request: web.Request) -> web.Response:
        """The episodes of the group that the query names."""
        group = (await request.json())["query"].split("'")[1]
        rows = [[e["id"], e["key"]] for e in self.episodes.values() if e.get("group") == group]
        return web.json_response({"columns": ["id", "key"], "rows": rows, "truncated": False})

    async def episode(self, request: web.Request) -> web.Response:
        """An id that several keys have is kept as ``key/id``."""
        name = request.match_info["id"]
        return web.json_response(self.episodes.get(f"{request.query.get('key')}/{name}") or self.episodes[name])

    async def reward(self, request: web.Request) -> web.Response:
        self.rewards.append((request.match_info["id"], await request.json()))
        self.scored_keys.append(request.query.get("key"))
        return web.json_response({"stored": True, "known": True})

    # the trainer's work

    async def lease_batch(self, request: web.Request) -> web.Response:
        wanted = await request.json()
        batch = next((b for b in self.batches if not wanted["stored"] or b in self.stored), None)
        if batch is None:
            return web.Response(status=204)
        table = self.batches.pop(batch)
        lease = f"lease{len(self.released)}-{batch}"
        self.leased[batch] = (lease, wanted["worker"])
        headers = {
            "x-slipstream-batch": batch,
            "x-slipstream-lease": lease,
            "x-slipstream-until": str(time.time() + wanted["seconds"]),
        }
        return web.Response(body=ipc(table), headers=headers)

    async def ack(self, request: web.Request) -> web.Response:
        batch, body = request.match_info["id"], await request.json()
        if (no := self._fence(body)) is not None:
            return no
        if self.done.get(batch, body["outcome"]) != body["outcome"]:
            return _error(409, "the lease is lost")
        self.acks.append((batch, body))
        self.done[batch] = body["outcome"]
        self.batches.pop(batch, None)
        self.leased.pop(batch, None)
        return web.json_response({})

    async def take_gaps(self, request: web.Request) -> web.Response:
        self.gaps[request.match_info["id"]] = await request.json()
        return web.json_response({"kept": 0})

    async def hold(self, request: web.Request) -> web.Response:
        body = await request.json()
        ready = self.falling == 0
        self.falling = max(0, self.falling - 1)
        self.held = body["worker"]
        self.holds.append("hold" if ready else "busy")
        until = time.time() + body["seconds"]
        return web.json_response({"worker": body["worker"], "until": until, "ready": ready, "sleep_seconds": 0.5})

    async def give_back(self, request: web.Request) -> web.Response:
        was, self.held = self.held == (await request.json())["worker"], None
        self.holds.append("release")
        return web.json_response({"held": was, "wake_seconds": 0.25})

    async def learner(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["seconds"] and self.learner_token in ("", body["token"], *body["known"]):
            self.learner_token, self.learner_name = body["token"], body["worker"]
        held = self.learner_token == body["token"] and body["seconds"] > 0
        if self.learner_token == body["token"] and not held:
            self.learner_token = ""
        told = {"model": self.model, "worker": self.learner_name, "place": "here", "since": 0.0, "until": 0.0}
        return web.json_response(told | {"held": held, "epoch": self.epoch})

    def _fence(self, body: Json) -> web.Response | None:
        if self.learner_token in ("", body.get("learner")):
            return None
        return _error(409, "another trainer learns", field="body.learner")

    async def claim(self, request: web.Request) -> web.Response:
        body = await request.json()
        if (no := self._fence(body)) is not None:
            return no
        self.claimed = 1 + max(self.claimed, body["above"], *(a["version"] for a in self.adapters.values()), 0)
        return web.json_response({"name": f"{self.model}@{self.claimed}"})

    async def register(self, request: web.Request) -> web.Response:
        body = await request.json()
        if (no := self._fence(body)) is not None:
            return no
        name = body["path"]
        self.registered.append(body)
        made = {"name": name, "model": self.model, "version": int(name.rpartition("@")[2]), "state": "live"}
        made |= {"created": 1.0, "path": name, "parent": body["parent"], "step": body["step"], "meta": body["meta"]}
        adapter = self.adapters.setdefault(name, made | {"batches": body["batches"]})
        self.live = name
        return web.json_response(adapter, status=201)

    async def list_adapters(self, request: web.Request) -> web.Response:
        listed = {"adapters": list(self.adapters.values()), "live": {self.model: self.live}}
        return web.json_response(listed | {"room": {self.model: self.room}, "forgotten": self.forgotten})

    # both

    async def event(self, request: web.Request) -> web.Response:
        self.events.append(await request.json() | {"id": len(self.events) + 1})
        return web.json_response({})

    async def list_events(self, request: web.Request) -> web.Response:
        return web.Response(text="\n".join(json.dumps(e) for e in self.events))

    async def release(self, request: web.Request) -> web.Response:
        worker = (await request.json())["worker"]
        self.released.append(worker)
        for w in self.waiting.values():
            w.until = 0.0
        back = [i for i, (_, holder) in self.leased.items() if holder == worker]
        for batch in back:
            del self.leased[batch]
        self.batches = {i: table for i, table in self.all.items() if i in self.batches or i in back}
        return web.json_response({"released": 1})


def ipc(table: pa.Table) -> bytes:
    """The table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@contextmanager
def serve(control: FakeControl, host: str = "127.0.0.1") -> Iterator[FakeControl]:
    """The control API on a free port; ``control.url`` says where."""
    with Served(control.app(), host=host) as url:
        control.url = url
        yield control


def _error(status: int, message: str, field: str | None = None) -> web.Response:
    return web.json_response(
        {"error": {"type": "error", "message": message, "field": field, "fix": None}}, status=status
    )
