"""A new version comes in: its name, its files, and what the engines would not take."""

from __future__ import annotations

import functools
import logging
import time
from pathlib import Path
from typing import Any

from slipstream.contract import Adapter, AdapterIn, AdapterState
from slipstream_proxy.control.agreeing import Agreeing, event
from slipstream_proxy.control.problem import Problem
from slipstream_proxy.control.threads import in_thread
from slipstream_proxy.control.validate import BadAdapter, base_shapes, check_folder, split_name

log = logging.getLogger(__name__)
S = AdapterState


class Registering(Agreeing):
    @property
    def models(self) -> list[str]:
        return sorted({self.config.model_name, *(r.trained for r in self.config.models.values() if r.trained)})

    @property
    def base(self) -> str:
        """The engine's own model: what answers while there is no adapter."""
        return self.config.model_name

    @functools.cached_property
    def base_shapes(self) -> dict[str, list[int]]:
        try:
            return base_shapes(self.config.engine.model)
        except (BadAdapter, OSError) as e:
            log.warning("the base model's shapes cannot be read, adapters are not compared with them: %s", e)
            return {}

    def own_path(self, adapter: Adapter) -> str:
        return str(Path(self.config.engine.adapters_dir or self.config.adapters_dir) / adapter.path)

    def has_own(self, adapter: Adapter) -> bool:
        return (self.config.adapters_dir / adapter.path).is_dir()

    def path_for_engine(self, adapter: Adapter) -> str:
        """Where vLLM sees its files; those of an adapter that came to another proxy may stand where that one said."""
        told = adapter.numbers.get("engine_path")
        return str(told) if isinstance(told, str) and not self.has_own(adapter) else self.own_path(adapter)

    def paths(self, adapter: Adapter) -> tuple[str, ...]:
        """Where an engine may have it from: this proxy's own place for it, and that of the proxy it came to."""
        told = adapter.numbers.get("engine_path")
        return (self.own_path(adapter), *((told,) if isinstance(told, str) else ()))

    def has_files(self, adapter: Adapter) -> bool:
        return self.has_own(adapter) or "engine_path" in adapter.numbers

    async def register(self, wanted: AdapterIn) -> Adapter:
        """A new version. Raises ``Problem`` 409 (name used), 404 (no such folder), 422 (vLLM would not take it)."""
        return await self.agree(lambda: self._register(wanted))

    async def _register(self, wanted: AdapterIn) -> Adapter:
        name = wanted.path.strip("/")
        try:
            model, version = split_name(name)
        except BadAdapter as e:
            raise Problem(
                422, str(e), field="body.path", fix="a folder right under adapters.dir, named <model>@<n>"
            ) from e
        if wanted.model not in (None, model) or model not in self.models:
            known = ", ".join(self.models)
            raise Problem(
                404,
                f"{wanted.model or model!r} is no trained model",
                field="body.model",
                fix=f"trained models: {known}",
            )
        folder = self.config.adapters_dir / name
        before = self.items.get(name)
        if not folder.is_dir() or folder.is_symlink():
            if before:
                raise Problem(
                    409,
                    f"{name} is there already",
                    field="body.path",
                    fix="names are never used again: take the next number",
                )
            raise Problem(
                404, f"no folder {name} in adapters.dir", field="body.path", fix="write the files first, then register"
            )
        try:
            digest = await in_thread(check_folder, folder, self.config.engine.max_lora_rank, self.base_shapes)
        except BadAdapter as e:
            if before is None:
                bad = self._new(wanted, name, model, version, S.REFUSED, None)
                bad = bad.model_copy(update={"reason": str(e), "decided": time.time()})
                await self.change([bad], event("refused", adapter=name, reason=str(e)))
            raise Problem(422, str(e), field="body.path", fix="publish it again under the next number") from e
        if before is not None:
            if before.numbers.get("sha256") == digest:
                return before  # a trainer that was killed after registering asks again
            raise Problem(
                409,
                f"{name} is there already",
                field="body.path",
                fix="names are never used again: take the next number",
            )
        adapter = self._new(wanted, name, model, version, S.LOADING, digest)
        if self.shared:
            adapter.numbers["engine_path"] = self.own_path(adapter)
        self.arrived[name] = time.monotonic()
        self.mine.add(name)
        await self.change(
            [adapter], event("adapter", adapter=name, state="loading", parent=wanted.parent, step=wanted.step)
        )
        return adapter

    def _new(
        self, wanted: AdapterIn, name: str, model: str, version: int, state: AdapterState, digest: str | None
    ) -> Adapter:
        numbers: dict[str, Any] = {"sha256": digest} if digest else {}
        if wanted.meta:
            numbers["meta"] = wanted.meta
        return Adapter(
            name=name, model=model, version=version, state=state, created=time.time(), path=name, parent=wanted.parent, step=wanted.step,
            batches=list(wanted.batches), numbers=numbers,
        )  # fmt: skip
