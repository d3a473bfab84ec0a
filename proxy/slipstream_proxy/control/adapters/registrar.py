"""Takes in new versions: checks name and files, and keeps what it refuses with the reason."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Sequence

from slipstream.contract import Adapter, AdapterIn, AdapterState
from slipstream_proxy.control.adapters.fleet import Fleet
from slipstream_proxy.control.adapters.journal import AdapterJournal, event
from slipstream_proxy.control.adapters.registry import AdapterRegistry
from slipstream_proxy.control.adapters.validation import BadAdapter, base_shapes, check_folder, split_name
from slipstream_proxy.control.problem import Problem
from slipstream_proxy.control.threads import in_thread

log = logging.getLogger(__name__)
S = AdapterState
NEXT = "names are never used again: take the next number"


class AdapterRegistrar:
    def __init__(self, registry: AdapterRegistry, journal: AdapterJournal, fleet: Fleet) -> None:
        self.registry, self.journal, self.fleet = registry, journal, fleet
        self.config = registry.config

    @functools.cached_property
    def base_shapes(self) -> dict[str, list[int]]:
        try:
            return base_shapes(self.config.engine.model)
        except (BadAdapter, OSError) as e:
            log.warning("the base model's shapes cannot be read, adapters are not compared with them: %s", e)
            return {}

    async def register(self, wanted: AdapterIn) -> Adapter:
        """A new version. Raises ``Problem`` 409 (name used), 404 (no such folder), 422 (vLLM would not take it)."""
        return await self.fleet.agree(lambda: self._register(wanted))

    async def _register(self, wanted: AdapterIn) -> Adapter:
        name = wanted.path.strip("/")
        model, version = self._split(wanted, name)
        folder = self.config.adapters_dir / name
        before = self.registry.items.get(name)
        if not folder.is_dir() or folder.is_symlink():
            if before:
                raise Problem(409, f"{name} is there already", field="body.path", fix=NEXT)
            fix = "write the files first, then register"
            raise Problem(404, f"no folder {name} in adapters.dir", field="body.path", fix=fix)
        try:
            digest = await in_thread(check_folder, folder, self.config.engine.max_lora_rank, self.base_shapes)
        except BadAdapter as e:
            if before is None:
                why = {"reason": str(e), "decided": time.time()}
                refused = _new(wanted, name, model, version, S.REFUSED).model_copy(update=why)
                await self.journal.change([refused], event("refused", adapter=name, reason=str(e)))
            raise Problem(422, str(e), field="body.path", fix="publish it again under the next number") from e
        if before is not None:
            if before.sha256 == digest:
                return before  # a trainer that was killed after registering asks again
            raise Problem(409, f"{name} is there already", field="body.path", fix=NEXT)
        adapter = _new(wanted, name, model, version, S.LOADING).model_copy(update={"sha256": digest})
        if self.journal.stores.shared:
            adapter = adapter.model_copy(update={"engine_path": self.registry.files.own_path(adapter)})
        self.registry.expect(adapter)
        note = event("adapter", adapter=name, state="loading", parent=wanted.parent, step=wanted.step)
        await self.journal.change([adapter], note)
        return adapter

    def _split(self, wanted: AdapterIn, name: str) -> tuple[str, int]:
        """Model and version. Raises ``Problem`` 422 or 404."""
        try:
            model, version = split_name(name)
        except BadAdapter as e:
            fix = "a folder right under adapters.dir, named <model>@<n>"
            raise Problem(422, str(e), field="body.path", fix=fix) from e
        if wanted.model not in (None, model) or model not in self.registry.models:
            fix = f"trained models: {', '.join(self.registry.models)}"
            raise Problem(404, f"{wanted.model or model!r} is no trained model", field="body.model", fix=fix)
        return model, version

    async def bring_in(self, found: Sequence[Adapter]) -> int:
        """Adapters of another store, with the states they had there. → How many were not here."""
        return await self.fleet.agree(lambda: self._bring_in(found))

    async def _bring_in(self, found: Sequence[Adapter]) -> int:
        new = [a for a in found if a.name not in self.registry.items]
        serving = {S.LIVE, S.CANDIDATE}
        live = {a.model for a in self.registry.in_state(*serving)}
        if any(a.model in live and a.state in serving for a in new):
            fix = "import before anything is trained"
            raise Problem(409, "an adapter is live here already", field="body.adapters", fix=fix)
        if new:
            await self.journal.change([a.model_copy(update={"loaded": False, "episodes": 0}) for a in new])
        return len(new)


def _new(wanted: AdapterIn, name: str, model: str, version: int, state: AdapterState) -> Adapter:
    given = wanted.model_dump(include={"parent", "step", "batches", "meta"})
    return Adapter(name=name, model=model, version=version, state=state, created=time.time(), path=name, **given)
