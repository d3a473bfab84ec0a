"""An adapter's files, for engines and trainers that share no folder with the proxy."""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

from slipstream.contract import KeyScope, folder_of
from slipstream.shared.adapter_config import CONFIG_FILE_NAME, WEIGHTS_FILE_NAME
from slipstream.shared.files import sha256_of
from slipstream_proxy.control.api.http import Ctx, Routes
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import in_thread

API_ROUTES = Routes()
FILE_TYPE = "application/octet-stream"
HASH_HEADER, PATH_HEADER = "x-slipstream-sha256", "x-slipstream-path"
ADAPTER_FILE_PATH = "/adapters/{adapter:[A-Za-z0-9._~@%-]{1,160}}/files/{file:[A-Za-z0-9._-]{1,80}}"
_hashes: dict[tuple[str, int, int], str] = {}
"""(Path, time of change in ns, bytes) → its hash."""


@API_ROUTES.add("GET", ADAPTER_FILE_PATH, (KeyScope.TRAINER, KeyScope.VIEWER), result=FILE_TYPE, errors=(404,))
async def get_adapter_file(ctx: Ctx) -> web.StreamResponse:
    """adapter_config.json or adapter_model.safetensors of a version, with its SHA-256 in x-slipstream-sha256."""
    files, name, file = ctx.deps.rollout.registry.files, ctx.path("adapter"), ctx.path("file")
    if file not in (CONFIG_FILE_NAME, WEIGHTS_FILE_NAME):
        fix = f"one of {CONFIG_FILE_NAME}, {WEIGHTS_FILE_NAME}"
        raise Problem(404, f"an adapter has no file {file}", field="path.file", fix=fix)
    adapter = ctx.deps.rollout.registry.items.get(name)
    folder = ctx.deps.config.adapters_dir / folder_of(name)  # also what is tried out, and is no version
    path = folder / file
    if name in (".", "..") or folder.is_symlink() or path.is_symlink() or not path.is_file():
        fix = "the proxy that it was published at has them, or they were deleted (adapters.keep)"
        raise Problem(404, f"the files of {name} are not here", field="path.adapter", fix=fix)
    seen = str(ctx.deps.config.engine.adapters_dir or ctx.deps.config.adapters_dir)
    own = files.path_for_engine(adapter) if adapter is not None else str(Path(seen) / folder.name)
    headers = {HASH_HEADER: await in_thread(_hash_of, path), PATH_HEADER: own, "content-type": FILE_TYPE}
    return web.FileResponse(path, headers=headers)


def _hash_of(path: Path) -> str:
    found = path.stat()
    known = str(path), found.st_mtime_ns, found.st_size
    if known not in _hashes:
        if len(_hashes) > 256:
            _hashes.clear()
        _hashes[known] = sha256_of(path)
    return _hashes[known]
