"""Adapters without a shared folder: the engine fetches them from the proxy, and checks them by their hashes.

``SLIPSTREAM_ENGINE_ADAPTERS_FROM`` names the proxy, ``SLIPSTREAM_API_KEY`` has a key of scope trainer or viewer. The
proxy's loads name a folder that need not be here: each worker looks up its last part, ``m@N``. A call of a version
that this engine was not told of is resolved by vLLM's own ``LoRAResolver``: so an engine that starts later, or behind a
router, serves what the others serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import hashlib
import logging
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

from slipstream_vllm.versions import resolve

log = logging.getLogger("vllm.slipstream")
PROXY_VARIABLE = "SLIPSTREAM_ENGINE_ADAPTERS_FROM"
KEY_VARIABLE = "SLIPSTREAM_API_KEY"
CONFIG_FILE_NAME, WEIGHTS_FILE_NAME = "adapter_config.json", "adapter_model.safetensors"
HASH_HEADER, PATH_HEADER = "x-slipstream-sha256", "x-slipstream-path"
FETCH_TIMEOUT_S = 60.0
"""Seconds without a byte from the proxy."""
MAX_KEPT_FOLDERS = 16
CHUNK_BYTES = 2**20
SERVING_MODULE = "vllm.entrypoints.serve.engine.serving"


class NotFetched(Exception):
    """The proxy does not answer, has no such adapter, or sent other bytes than it said."""


class AdapterFetcher:
    """``cache``: a folder for what was fetched. It holds each adapter under its weights' hash, so that a name that
    another proxy used before is never taken for this one's.
    """

    def __init__(self, proxy: str, key: str | None, cache: Path) -> None:
        self.proxy, self.cache = proxy.rstrip("/"), cache
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def path_of(self, name: str) -> str:
        """Where the proxy says that engines see it. Raises ``NotFetched``."""
        with self._asked(name, CONFIG_FILE_NAME) as reply:
            return str(reply.headers.get(PATH_HEADER) or name)

    def folder(self, name: str) -> Path:
        """The adapter on this machine. Raises ``NotFetched``."""
        self.cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._asked(name, CONFIG_FILE_NAME) as reply:
            config = reply.read()
            self._check(name, reply, hashlib.sha256(config).hexdigest())
        with self._asked(name, WEIGHTS_FILE_NAME) as reply:
            digest = hashlib.sha256(config + str(reply.headers.get(HASH_HEADER)).encode()).hexdigest()
            found = self.cache / digest[:32] / PurePath(name).name
            with (self.cache / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # an engine has several workers
                if not found.is_dir():
                    self._receive(name, reply, config, found)
        os.utime(found.parent)
        return found

    def _receive(self, name: str, reply: Any, config: bytes, found: Path) -> None:
        made = Path(tempfile.mkdtemp(prefix=".tmp-", dir=self.cache))
        try:
            inner, digest = made / found.name, hashlib.sha256()
            inner.mkdir()
            with (inner / WEIGHTS_FILE_NAME).open("wb") as file:
                while part := reply.read(CHUNK_BYTES):
                    digest.update(part)
                    file.write(part)
            self._check(name, reply, digest.hexdigest())
            (inner / CONFIG_FILE_NAME).write_bytes(config)
            made.rename(found.parent)
        finally:
            shutil.rmtree(made, ignore_errors=True)
        log.info("%s was fetched from %s", name, self.proxy)
        kept = [p for p in self.cache.iterdir() if p.is_dir() and not p.name.startswith(".tmp-")]
        for old in sorted(kept, key=lambda p: p.stat().st_mtime)[:-MAX_KEPT_FOLDERS]:
            shutil.rmtree(old, ignore_errors=True)

    @staticmethod
    def _check(name: str, reply: Any, digest: str) -> None:
        if digest != reply.headers.get(HASH_HEADER):
            raise NotFetched(f"{name} came with other bytes than the proxy said: sha256 {digest}")

    @contextlib.contextmanager
    def _asked(self, name: str, file: str) -> Iterator[Any]:
        url = f"{self.proxy}/slipstream/v1/adapters/{quote(name, safe='@')}/files/{file}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            request = urllib.request.Request(url, headers=self._headers)  # noqa: S310  the operator names it
            with opener.open(request, timeout=FETCH_TIMEOUT_S) as reply:
                yield reply
        except urllib.error.HTTPError as e:
            raise NotFetched(f"{url} answered {e.code}: {e.read(300).decode('utf-8', 'replace')}") from e
        except (OSError, HTTPException, ValueError) as e:
            raise NotFetched(f"{url}: {e}") from e


def configured() -> AdapterFetcher | None:
    """None: the engine sees the proxy's folder."""
    proxy = os.environ.get(PROXY_VARIABLE)
    if not proxy:
        return None
    cache = Path(tempfile.gettempdir()) / f"slipstream-vllm-{os.getuid()}" / "adapters"
    return AdapterFetcher(proxy, os.environ.get(KEY_VARIABLE), cache)


def fetching(original: Callable[[str], str], fetcher: AdapterFetcher) -> Callable[[str], str]:
    """``get_adapter_absolute_path`` of vLLM's workers. If the proxy does not answer, a folder that is here is taken."""

    @functools.wraps(original)
    def path(lora_path: str) -> str:
        try:
            return str(fetcher.folder(PurePath(lora_path).name))
        except (NotFetched, OSError) as e:
            log.warning("an adapter cannot be fetched: %s", e)
            return original(lora_path)

    return path


class AlwaysResolving:
    """vLLM's ``envs``, for the question whether a model's name may be resolved."""

    VLLM_ALLOW_RUNTIME_LORA_UPDATING = True

    def __init__(self, envs: Any) -> None:
        self._envs = envs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._envs, name)


def install_worker() -> None:
    """Put this in vLLM's place, in a worker. Raises ``ImportError`` or ``AttributeError``: this vLLM has no such."""
    if (fetcher := configured()) is not None:
        manager = resolve("vllm.lora.worker_manager")
        manager.get_adapter_absolute_path = fetching(manager.get_adapter_absolute_path, fetcher)


def install_resolver() -> None:
    """Tell an API server of vLLM how names are resolved. Raises ``ImportError`` or ``AttributeError``."""
    if (fetcher := configured()) is not None:
        _register(fetcher)


def _register(fetcher: AdapterFetcher) -> None:
    from vllm.lora.request import LoRARequest
    from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry

    class ProxyResolver(LoRAResolver):  # type: ignore[misc]
        async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
            if "@" not in lora_name:
                return None
            try:
                path = await asyncio.to_thread(fetcher.path_of, lora_name)
            except NotFetched as e:
                log.warning("%s cannot be resolved: %s", lora_name, e)
                return None
            return LoRARequest(lora_name=lora_name, lora_int_id=1, lora_path=path)

    LoRAResolverRegistry.register_resolver("Slipstream", ProxyResolver())
    serving = resolve(SERVING_MODULE)
    serving.envs = AlwaysResolving(serving.envs)
