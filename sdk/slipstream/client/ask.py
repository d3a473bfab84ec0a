"""One question to the control API: what is sent, and how its answer is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from slipstream import contract as c
from slipstream.errors import ApiError
from slipstream.models import M, read_model

T = TypeVar("T")
Params = dict[str, str | int | float | bool]


@dataclass(slots=True)
class Ask(Generic[T]):
    """``read`` turns a response that the proxy did not refuse into the method's result."""

    method: str
    path: str
    read: Callable[[httpx.Response], T]
    body: BaseModel | dict[str, Any] | None = None
    params: Params | None = None
    default: Callable[[], T] | None = None
    """What a 404 stands for; None: a 404 is an error like any other."""
    files: Mapping[str, Path] | None = None
    """Sent as multipart/form-data by their names, after ``body`` in a part ``adapter``."""
    content: bytes | None = None
    """The body as it is."""

    def request(self, client: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        where = c.API_PREFIX + self.path
        if self.body is None:
            return client.build_request(self.method, where, params=self.params, content=self.content)
        # in ASCII: a transcript may hold half a surrogate pair, which UTF-8 has no bytes for
        body = (
            self.body.model_dump_json() if isinstance(self.body, BaseModel) else json.dumps(self.body, allow_nan=False)
        )
        if self.files is not None:
            sent: dict[str, tuple[str | None, bytes, str]] = {"adapter": (None, body.encode(), "application/json")}
            for name, path in self.files.items():
                sent[name] = name, path.read_bytes(), "application/octet-stream"
            return client.build_request(self.method, where, files=sent, params=self.params)
        return client.build_request(
            self.method, where, content=body, headers={"content-type": "application/json"}, params=self.params
        )

    def result(self, response: httpx.Response) -> T:
        """Raises ``ApiError`` for a refusal, and for an answer that does not fit the contract."""
        if self.default is not None and response.status_code == httpx.codes.NOT_FOUND:
            return self.default()
        check(response)
        return self.read(response)


def check(response: httpx.Response) -> None:
    """Raises ``ApiError`` for a refusal."""
    if response.is_success:
        return
    try:
        detail = c.Error.model_validate_json(response.content).error
    except ValidationError:
        raise ApiError(
            response.status_code, f"{response.status_code} from {response.url}: {response.text[:500]}"
        ) from None
    raise ApiError(response.status_code, detail.message, field=detail.field, fix=detail.fix)


def model(kind: type[M]) -> Callable[[httpx.Response], M]:
    def read(response: httpx.Response) -> M:
        try:
            return read_model(kind, response.content)
        except ValidationError as e:
            message = f"{response.url} returned something that is not a valid {kind.__name__}: {e}"
            raise ApiError(response.status_code, message) from e

    return read


def nothing(_: httpx.Response) -> None:
    """For routes whose answer says no more than that it is done."""


def part(id: str) -> str:
    """An id as one part of a path, whatever is in it."""
    if id in (".", ".."):
        return id.replace(".", "%2E")  # else clients and servers read it as a folder
    return quote(id, safe="@~")


def query(filters: Mapping[str, Any]) -> Params:
    """Filters as query parameters: those that are None are left out, ``tags={"a": "b"}`` becomes ``tag.a=b``."""
    flat = {k: v for k, v in filters.items() if v is not None and k != "tags"}
    return flat | {f"tag.{k}": v for k, v in (filters.get("tags") or {}).items()}
