"""Adapters' files over HTTP: multipart/form-data with a part ``adapter`` (JSON), ``adapter_config.json`` and
``adapter_model.safetensors``. A large weights file comes before that, in parts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, TypeVar

from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError
from pydantic import BaseModel, Field, StringConstraints, ValidationError

from slipstream import contract as c
from slipstream.contract import KeyScope
from slipstream.shared.adapter_config import CONFIG_BYTES, CONFIG_FILE_NAME, WEIGHTS_FILE_NAME
from slipstream.shared.files import open_to_engine, sha256_of, sync
from slipstream_proxy.control.adapters.files import has_weights, split_name
from slipstream_proxy.control.adapters.registrar import NEXT_NAME_ADVICE
from slipstream_proxy.control.api.http import Ctx, Query, Routes, explain, reply
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import in_thread
from slipstream_proxy.log.ids import new_id

UPLOAD_LIMIT = 16 * 2**30
BODY_BYTES = 64 * 2**20
"""Of what an upload says of the adapter: the episodes that it was trained on may be many."""
PART_AGE_LIMIT_S = 86_400.0
"""After which parts of a weights file that nobody registered go."""
PART_PREFIX = ".tmp-upload-"
PIECE_BYTES = 2**20
M = TypeVar("M", bound=BaseModel)


class AdapterPost(c.AdapterIn):
    path: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._~-]{1,120}@[1-9][0-9]{0,8}$")]
    """The folder's name right under ``adapters.dir``: ``<model>@<n>``."""


class PartQuery(Query):
    offset: int = Field(0, ge=0, le=UPLOAD_LIMIT, description="Where in the file these bytes begin.")


API_ROUTES = Routes()
UPLOAD_PATH = "/adapters/uploads/{sha256:[0-9a-f]{64}}"


@API_ROUTES.add("GET", UPLOAD_PATH, (KeyScope.TRAINER, KeyScope.VIEWER), result=c.UploadState)
async def upload_state(ctx: Ctx) -> web.StreamResponse:
    """How much of a weights file has come."""
    return reply(_state(_part(ctx)))


@API_ROUTES.add("PUT", UPLOAD_PATH, (KeyScope.TRAINER,), PartQuery, result=c.UploadState)
async def upload_part(ctx: Ctx) -> web.StreamResponse:
    """Send a part of a weights file. The reply says where the next one begins. Beyond the end of what is here nothing
    is written.
    """
    path, at = _part(ctx), ctx.query.offset
    await in_thread(_tidy, path.parent)
    if at > _state(path).bytes:
        return reply(_state(path))
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.seek(at)
        async for chunk in ctx.request.content.iter_chunked(PIECE_BYTES):
            at += len(chunk)
            if at > UPLOAD_LIMIT:
                raise Problem(413, f"{WEIGHTS_FILE_NAME} is too large", field="body")
            await in_thread(file.write, chunk)
    return reply(_state(path))


def _part(ctx: Ctx) -> Path:
    return _part_of(ctx, ctx.path("sha256"))


def _part_of(ctx: Ctx, sha256: str) -> Path:
    return ctx.deps.config.adapters_dir / f"{PART_PREFIX}{sha256}"


def _state(path: Path) -> c.UploadState:
    return c.UploadState(bytes=path.stat().st_size if path.exists() else 0)


def _tidy(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for path in root.glob(f"{PART_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > PART_AGE_LIMIT_S:
                path.unlink()


async def upload_version(ctx: Ctx) -> c.AdapterIn:
    """A rename makes the version's folder appear. One that has the same weights already stays as it is."""
    root, registry = ctx.deps.config.adapters_dir, ctx.deps.rollout.registry
    temp = root / f".tmp-{new_id()}"
    try:
        wanted = await _receive(ctx, temp, AdapterPost)
        if wanted.learner is not None:
            model = _name_of(ctx, wanted.path).rpartition("@")[0]
            await ctx.deps.rollout.registrar.expect_learner(model, wanted.learner, ctx.deps.now())
        if wanted.sha256 is not None and (root / wanted.path).is_dir():
            known = registry.items.get(_name_of(ctx, wanted.path))
            if (known is not None and known.sha256 == wanted.sha256) or await in_thread(
                has_weights, root / wanted.path, wanted.sha256
            ):
                return wanted
        if (root / wanted.path).exists() or _name_of(ctx, wanted.path) in registry.items:
            raise Problem(409, f"{wanted.path} is there already", field="body.adapter.path", fix=NEXT_NAME_ADVICE)
        ctx.deps.rollout.registrar.expect_name(wanted)  # else its files would stay, under a name that is then taken
        await in_thread(_publish, temp, root / wanted.path)
        return wanted
    finally:
        shutil.rmtree(temp, ignore_errors=True)


def _name_of(ctx: Ctx, folder: str) -> str:
    """The name of the version that a folder is."""
    model, version = split_name(folder)
    models = {c.folder_of(known): known for known in ctx.deps.rollout.registry.models}
    return f"{models.get(model, model)}@{version}"


@contextlib.asynccontextmanager
async def uploaded_trial(ctx: Ctx) -> AsyncIterator[str]:
    """The name of a folder with an adapter that is to be no version, as long as the block lasts."""
    root = ctx.deps.config.adapters_dir
    temp = root / f".tmp-trial-{new_id()}"
    try:
        await _receive(ctx, temp, c.AdapterTrialIn)
        await in_thread(open_to_engine, temp)
        yield temp.name
    finally:
        shutil.rmtree(temp, ignore_errors=True)


async def _receive(ctx: Ctx, temp: Path, kind: type[M]) -> M:
    """The files into a new folder, and what is said of them. Raises ``Problem``."""
    wanted: M | None = None
    temp.mkdir(parents=True)
    try:
        async for part in await ctx.request.multipart():
            if not isinstance(part, BodyPartReader):
                raise Problem(422, "nested multipart is not taken", field="body")
            name = part.filename or part.name or ""
            if part.name == "adapter":
                try:
                    wanted = await in_thread(kind.model_validate_json, await _said(part))
                except ValidationError as e:
                    raise explain(e, "body.adapter", kind) from e
            elif name in (CONFIG_FILE_NAME, WEIGHTS_FILE_NAME):
                await _receive_file(part, temp / name)
            else:
                fix = f"send adapter (JSON), {CONFIG_FILE_NAME} and {WEIGHTS_FILE_NAME}"
                raise Problem(422, f"part {name[:80]!r} is not known", field="body", fix=fix)
    except (ValueError, HttpProcessingError) as e:
        text = f"the multipart body cannot be read: {ascii(str(e))[1:-1][:200]}"
        raise Problem(400, text, field="body", fix="send it as an HTTP client writes it") from e
    if wanted is None:
        fix = f"send {kind.__name__} as JSON in a part of that name"
        raise Problem(422, "the part adapter is missing", field="body.adapter", fix=fix)
    if (sha256 := getattr(wanted, "sha256", None)) is not None:
        await in_thread(_check_weights, temp / WEIGHTS_FILE_NAME, _part_of(ctx, sha256), sha256)
    return wanted


def _check_weights(weights: Path, parts: Path, sha256: str) -> None:
    """They are those with this hash. If the body had none, they came in parts. Raises ``Problem`` 422."""
    whole = parts if not weights.exists() else weights
    if whole.exists() and sha256_of(whole) == sha256:
        if whole is parts:
            parts.rename(weights)
        sync(weights)
        return
    parts.unlink(missing_ok=True)
    text = (
        f"{WEIGHTS_FILE_NAME} came with another hash than the one that was sent"
        if whole.exists()
        else (f"{WEIGHTS_FILE_NAME} has not come")
    )
    raise Problem(422, text, field="body.adapter.sha256", fix="send the file again")


async def _said(part: BodyPartReader) -> bytes:
    raw = bytearray()
    while chunk := await part.read_chunk(PIECE_BYTES):
        raw += chunk
        if len(raw) > BODY_BYTES:
            raise Problem(413, "the part adapter is too large", field="body.adapter")
    return bytes(raw)


async def _receive_file(part: BodyPartReader, path: Path) -> None:
    size, limit = 0, CONFIG_BYTES if path.name == CONFIG_FILE_NAME else UPLOAD_LIMIT
    with path.open("wb") as file:
        while chunk := await part.read_chunk(PIECE_BYTES):
            size += len(chunk)
            if size > limit:
                raise Problem(413, f"{path.name} is too large", field=f"body.{path.name}")
            await in_thread(file.write, chunk)
        file.flush()
        await in_thread(os.fsync, file.fileno())


def _publish(temp: Path, folder: Path) -> None:
    open_to_engine(temp)
    temp.rename(folder)
    sync(folder.parent)
