"""The control API's plumbing: routes as data, checked parameters and bodies, one error shape, who may do what.

A ``Route`` says all that is to be known of a call; the same data make the handler's checks and
``/slipstream/openapi.json``.

Which rewards a caller may write. A reward's source says who gave it, so each source belongs to scopes.

======== ============== =========================================================
source   scopes         who that is
======== ============== =========================================================
judge    judge          the judge; only such a key may use the judge's reward names
human    grade          people: they may correct the judge, so they may use its names
others   the route's    agents and services, under names of their own
======== ============== =========================================================

``admin`` may write all of them. ``Judge`` is the source ``judge`` too: people would read it so. ``grade``, ``judge``
and ``admin`` may score episodes of other keys.
"""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from slipstream.contract import API_PREFIX, SCOPE_OF_SOURCE, TEACHER_SCOPES, Error, KeyScope, Model
from slipstream.models import StrictModel
from slipstream_proxy.control.shared.precedence import ANSWERS_FIRST
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.shares import CHANGES_LINE, READS_LINE, SEARCHES_LINE, WaitingLine
from slipstream_proxy.control.shared.threads import in_thread
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.redaction import redacted_body, redaction_of

if TYPE_CHECKING:
    from slipstream_proxy.control.deps import Deps

AUTH_HEADER = "x-slipstream-auth"
"""Set by the data plane after it has checked the key; the socket is readable by its owner only, so it is trusted."""
OWN_AUTH = {AUTH_HEADER: json.dumps({"key": "-", "scopes": [KeyScope.ADMIN]})}
"""Headers with which one control plane asks another of the same proxy, on its socket."""
WRITE_HEADER = "x-slipstream-write"
BEGUN_HEADER = "x-slipstream-begun"
"""Names a reward or an end mark. The data plane makes the name once, and keeps it when it sends the request again."""
F = TypeVar("F")
JSON_TYPE, OPENAPI_PATH = "application/json", "/slipstream/openapi.json"
MAX_JSON_INTEGER = 2**53
ENDLESS_MARK: JsonObject = {"x-endless": True}
"""Marks a query parameter that makes the reply endless. OpenAPI tools try every parameter: it is told in words."""
AUDITED_FIELDS = ("reason", "text", "group")
"""Fields of a body that its audit entry holds."""
EVERY_SCOPE = tuple(KeyScope)


class Query(StrictModel):
    """Base of query parameters."""


@dataclass(frozen=True, slots=True)
class Caller:
    key: str
    scopes: frozenset[str]
    made: float = 0.0
    """When its secret was made. A key whose secret was changed has had several."""

    @property
    def admin(self) -> bool:
        return KeyScope.ADMIN in self.scopes

    @property
    def sees_all(self) -> bool:
        """Whether it may read what belongs to other keys."""
        return self.admin or KeyScope.VIEWER in self.scopes

    def may(self, scopes: tuple[str, ...]) -> bool:
        return self.admin or any(s in self.scopes for s in scopes)

    def only(self, scope: str) -> bool:
        """Whether it has this scope and none that writes rewards of other sources."""
        return scope in self.scopes and not self.may(
            tuple({KeyScope.INFERENCE, KeyScope.REWARD, KeyScope.GRADE}.difference({scope}))
        )


@dataclass(slots=True)
class Ctx:
    """What a handler gets: everything about the request has been checked by then."""

    deps: Deps
    request: web.Request
    caller: Caller
    query: Any = None
    body: Any = None
    tags: dict[str, str] = field(default_factory=dict)
    target: str | None = None
    """What the audit log names; None: the path's parameter."""
    detail: JsonObject = field(default_factory=dict)
    """What else its entry says."""

    def path(self, name: str) -> str:
        return self.request.match_info[name]

    @property
    def write(self) -> str | None:
        """The identity of this write. None: it is sent once only."""
        return self.request.headers.get(WRITE_HEADER)

    @property
    def begun(self) -> bool:
        """Whether the data plane knows a call of the episode in the path."""
        return BEGUN_HEADER in self.request.headers

    def owner(self, named: str | None) -> str:
        """The key whose episode is meant: one's own; an admin may name another's."""
        if named is not None and named != self.caller.key and not self.caller.admin:
            text = "only an admin key may name another key's episode"
            raise Problem(403, text, field="query.key", fix="leave ?key= out")
        return self.caller.key if named is None else named

    def reads_on(self) -> AbstractContextManager[None]:
        """Around a reply that goes on until its reader leaves. It ends when the key is revoked, too."""
        known = self.deps.audit.name_of(self.caller.key) is not None
        return self.deps.endless.one((self.caller.key, self.caller.made) if known else None)

    def visible(self, named: str | None = None) -> str | None:
        """The key whose episodes may be read: ``owner``'s, or for who sees all the one that is named (None: any)."""
        return named if self.caller.sees_all else self.owner(named)


Handler = Callable[[Ctx], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class Route:
    method: str
    path: str
    """aiohttp's form, with ``{name}`` or ``{name:pattern}``."""
    handler: Handler
    summary: str
    scopes: tuple[str, ...] = EVERY_SCOPE
    query: type[Query] | None = None
    body: type[BaseModel] | None = None
    body_required: bool = True
    tags: bool = False
    """Takes ``?tag.<name>=value`` filters."""
    responses: dict[int, type[BaseModel] | str | None] = field(default_factory=dict)
    """Status → model (JSON), a content type, or None (no body)."""
    errors: tuple[int, ...] = ()
    """More error statuses than every route has."""
    multipart: bool = False
    audit: str | None = None
    """What the audit log calls it, where it is a change by hand; its target is the path's parameter, or what
    the path names (``training``)."""
    at_once: bool = False
    """Does not wait for rewards that the store does not have yet: it reads none, or its sender asks again soon."""
    endless: bool = False
    """The reply goes on until the client leaves: said in the OpenAPI document as ``x-endless``."""


class Routes(list[Route]):
    """A module's routes: a decorator above each handler. The first part of the handler's docstring is the summary."""

    def add(
        self,
        method: str,
        path: str,
        scopes: tuple[str, ...] = EVERY_SCOPE,
        query: type[Query] | None = None,
        body: type[BaseModel] | None = None,
        *,
        result: type[BaseModel] | str | None = None,
        **more: Any,
    ) -> Callable[[Handler], Handler]:
        """``path``: below ``API_PREFIX``. ``result``: what a reply 200 is. ``more``: other fields of ``Route``."""
        more.setdefault("responses", {200: result})

        def keep(handler: Handler) -> Handler:
            summary = " ".join((handler.__doc__ or "").partition("\n\n")[0].split()).removesuffix(".")
            self.append(Route(method, API_PREFIX + path, handler, summary, scopes, query, body, **more))
            return handler

        return keep


def json_of(model: BaseModel) -> bytes:
    try:
        return model.model_dump_json().encode()
    except Exception:
        # a transcript may hold lone surrogates (a client's broken text), which UTF-8 has no bytes for; JSON escapes do
        return json.dumps(model.model_dump(mode="python"), ensure_ascii=True, default=str).encode()


def reply(model: BaseModel, status: int = 200) -> web.Response:
    return web.Response(body=json_of(model), status=status, content_type=JSON_TYPE)


async def paged(ctx: Ctx, read: Callable[[F], BaseModel], wanted: F) -> web.Response:
    """A page of what the store holds. Raises ``Problem`` 404 for a cursor that no page gave."""
    try:
        return reply(await ctx.deps.ask(read, wanted))
    except ValueError as e:
        fix = "pass `next` of the page before as it is"
        raise Problem(404, f"no such page: {e}", field="query.cursor", fix=fix) from e


def problem_response(p: Problem) -> web.Response:
    body = Error(error=Error.Detail(type=p.type, message=p.message, field=p.field, fix=p.fix))
    return web.Response(body=json_of(body), status=p.status, content_type=JSON_TYPE, headers=p.headers)


def explain(error: ValidationError, place: str, kind: type[BaseModel]) -> Problem:
    """The first mistake, with its field and, for a misspelt name, the nearest known one. What is missing comes after a
    name that is not known, which may be it.
    """
    e = min(error.errors(include_url=False, include_context=False), key=lambda e: e["type"] == "missing")
    where = ".".join(str(p) for p in e["loc"])
    name = f"{place}.{where}" if where else place
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if e["type"] == "extra_forbidden":
        said = str(e["loc"][-1])
        near = [kind.known_as[said]] if issubclass(kind, Model) and said in kind.known_as else []
        near = near or difflib.get_close_matches(said, list(kind.model_fields), 1, 0.5)
        fix = f"did you mean {near[0]}?" if near else f"known are: {', '.join(kind.model_fields) or 'none'}"
        return Problem(422, f"{name} is not known{more}", field=name, fix=fix)
    if e["type"] == "json_invalid":
        return Problem(400, f"the body is not JSON: {e['msg']}", field=place, fix="send a JSON object")
    if e["type"] == "value_error":  # ours: what is wrong, and after a semicolon what to do
        text, _, fix = e["msg"].removeprefix("Value error, ").partition("; ")
        return Problem(422, f"{name}: {text}{more}", field=name, fix=fix or f"see {kind.__name__} in {OPENAPI_PATH}")
    fix = "it is required" if e["type"] == "missing" else f"see {kind.__name__} in {OPENAPI_PATH}"
    return Problem(422, f"{name}: {e['msg']}{more}", field=name, fix=fix)


def caller_of(request: web.Request) -> Caller:
    raw = request.headers.get(AUTH_HEADER)
    if raw is None:
        fix = "send your request to the proxy's port, with its API key"
        raise Problem(401, "no caller: the control plane is asked through the proxy", fix=fix)
    try:
        read = json.loads(raw)
        return Caller(str(read["key"]), frozenset(str(s) for s in read["scopes"]), float(read.get("made", 0.0)))
    except (ValueError, KeyError, TypeError) as e:
        raise Problem(401, f"the caller cannot be read: {e}", fix="send your request to the proxy's port") from e


def _one_by_one(request: web.Request, route: Route) -> tuple[dict[str, str], dict[str, str]]:
    """Query parameters, and the ``tag.…`` ones among them. A name given twice is refused: which one is meant?"""
    plain: dict[str, str] = {}
    tags: dict[str, str] = {}
    for name, value in request.query.items():
        into, short = (tags, name[4:]) if route.tags and name.startswith("tag.") and len(name) > 4 else (plain, name)
        if short in into:
            raise Problem(422, f"query.{name} is given twice", field=f"query.{name}", fix="give it once")
        into[short] = value
    return plain, tags


def _whole(error: Any) -> bool:
    return error["type"] == "int_type" and isinstance(error["input"], float) and error["input"].is_integer()


def _parsed(kind: type[BaseModel], raw: bytes) -> BaseModel:
    """Strictly: ``true`` is no number and ``"1"`` neither; but 3.0 is an integer in JSON Schema."""
    try:
        return kind.model_validate_json(raw, strict=True)
    except ValidationError as e:
        first = e.errors(include_url=False)[0]
        if first["type"] == "json_invalid" and (b"\\ud" in raw.lower() or "recursion" in first["msg"]):
            return _as_recorded(kind, raw, e)
        if not all(_whole(error) for error in e.errors(include_url=False)):
            raise explain(e, "body", kind) from e
    try:
        return kind.model_validate_json(raw)
    except ValidationError as e:
        raise explain(e, "body", kind) from e


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


def _as_recorded(kind: type[BaseModel], raw: bytes, error: ValidationError) -> BaseModel:
    """A transcript may hold half a surrogate pair, or be nested over 200 deep, which pydantic's parser refuses."""
    try:
        return kind.model_validate(json.loads(raw, parse_constant=_no_number))
    except ValidationError as e:
        raise explain(e, "body", kind) from e
    except (ValueError, RecursionError) as e:
        raise explain(error, "body", kind) from e


def _within(body: BaseModel) -> BaseModel:
    """Counts beyond 2^53 mean "as many as there are": what stores and other languages can hold of them."""
    far = {
        k: max(-MAX_JSON_INTEGER, min(MAX_JSON_INTEGER, v))
        for k, v in body
        if isinstance(v, int) and not -MAX_JSON_INTEGER <= v <= MAX_JSON_INTEGER
    }
    return body.model_copy(update=far) if far else body


async def read_body(request: web.Request, route: Route) -> BaseModel | None:
    kind = route.body
    if kind is None or (route.multipart and request.content_type.startswith("multipart/")):
        return None
    raw = await request.read()
    if not raw.strip() and not route.body_required:
        return kind()
    try:
        return _within(_parsed(kind, raw))
    except Problem as p:
        # a body that reads as JSON counts as JSON, whatever its type: curl calls all bodies forms unless told otherwise
        if p.status == 400 and not _is_json(request.content_type):
            text = f"content-type {request.content_type} is not taken here, and the body does not read as JSON"
            raise Problem(415, text, field="header.content-type", fix=f"send a JSON object as {JSON_TYPE}") from p
        raise


def _is_json(content_type: str) -> bool:
    return content_type in (JSON_TYPE, "application/octet-stream") or content_type.endswith("+json")


IN_TEXT = ("q", "outcome", "trainable", "kind")
"""Filters of episodes that look into their calls."""


def _line(route: Route, caller: Caller, query: BaseModel) -> WaitingLine | None:
    """Where a caller's request waits for its turn; None: nowhere."""
    if route.endless or caller.may((KeyScope.JUDGE, KeyScope.TRAINER, KeyScope.VIEWER)):
        return None
    if route.method != "GET":
        return CHANGES_LINE
    return SEARCHES_LINE if any(getattr(query, name, None) is not None for name in IN_TEXT) else READS_LINE


async def checked(deps: Deps, request: web.Request, route: Route) -> web.StreamResponse:
    """Run a route: scope, query, body, handler."""
    caller = caller_of(request)
    if not caller.may(route.scopes):
        need = " or ".join(dict.fromkeys((*route.scopes, KeyScope.ADMIN)))
        text = f"the key lacks the scope for {request.method} {request.path}"
        raise Problem(403, text, field="header.authorization", fix=f"use a key with {need}")
    plain, tags = _one_by_one(request, route)
    kind = route.query or Query
    try:
        query = kind.model_validate(plain)
    except ValidationError as e:
        raise explain(e, "query", kind) from e
    body = await read_body(request, route)
    ctx = Ctx(deps, request, caller, query, await _redacted_body(deps, body), tags)
    line = _line(route, caller, query)
    async with deps.shares.turn(caller.key, line) if line else contextlib.nullcontext():
        if not route.at_once:
            await deps.mutations.settled()
        with ANSWERS_FIRST.first() if line is CHANGES_LINE and route.at_once else contextlib.nullcontext():
            response = await route.handler(ctx)
    if route.audit is not None:
        target = ctx.target or next(iter(request.match_info.values()), route.path.split("/")[3])
        said = {name: getattr(ctx.body, name, None) for name in AUDITED_FIELDS}
        detail = {k: v for k, v in said.items() if v is not None} | ctx.detail
        await deps.audit.note(caller.key, route.audit, target, detail, write=ctx.write)
    return response


def check_teacher(ctx: Ctx) -> None:
    """Raises ``Problem`` 403: the key may call the model, and not say what is learned."""
    if ctx.caller.may(TEACHER_SCOPES) or ctx.deps.config.reward.by_agents:
        return
    text = (
        "a key with the scope inference alone may not post rewards or feedback, nor forget runs: both change the policy"
    )
    fix = "give the agent a key with the scope reward (`slipstream keys add NAME`), or set reward.by_agents = true"
    raise Problem(403, text, field="header.authorization", fix=fix)


def check_source(caller: Caller, source: str, field: str) -> None:
    """Raises ``Problem`` 403: the source belongs to another scope."""
    needed = SCOPE_OF_SOURCE.get(source.lower())
    if needed is not None and not caller.may((needed,)):
        fix = f"use a key with the scope {needed}, or leave `source` out"
        raise Problem(403, f"this key may not write rewards with the source {source!r}", field=field, fix=fix)
    if needed is None and caller.only(KeyScope.JUDGE):
        fix = 'use the source "judge", or a key with the scope reward'
        raise Problem(403, f"a judge's key may not write rewards with the source {source!r}", field=field, fix=fix)


async def _redacted_body(deps: Deps, body: BaseModel | None) -> BaseModel | None:
    """What ``proxy.redact`` leaves of the texts that somebody wrote. Raises ``Problem`` 422 where it fails."""
    redaction = redaction_of(deps.config)
    if redaction is None or body is None:
        return body
    with redaction_problems():
        return await in_thread(redacted_body, redaction, body)


@contextmanager
def redaction_problems() -> Iterator[None]:
    """The block asks ``proxy.redact``. Raises ``Problem`` 422 where it fails: what is not redacted is not stored."""
    try:
        yield
    except Exception as e:
        text = f"proxy.redact raised {type(e).__name__}, so nothing of this is stored"
        fix = "mend the function: it gets a dict of str, and returns one with request and reply in it"
        raise Problem(422, text, field="body", fix=fix) from e


def check_reward(caller: Caller, name: str, source: str, judge_names: Collection[str]) -> None:
    """Raises ``Problem`` 403: the key may not use this source, or not a name of the judge's under it.

    ``judge_names``: reward names that the judge writes.
    """
    check_source(caller, source, "body.source")
    if name.lower() in {n.lower() for n in judge_names} and source.lower() not in SCOPE_OF_SOURCE and not caller.admin:
        fix = "choose a name of your own and give it a weight in reward.weights"
        raise Problem(403, f"{name!r} is a reward name of the judge's", field="body.name", fix=fix)
