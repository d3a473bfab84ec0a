"""New versions on their way in: name and files are checked, and what is refused is kept with the reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from slipstream.contract import Adapter, AdapterIn, AdapterState, AdapterTrial, NameClaimIn, folder_of
from slipstream.shared.adapter_config import WEIGHTS_FILE_NAME, BadAdapter
from slipstream_proxy.control.adapters.changes import event, made_from
from slipstream_proxy.control.adapters.checks import AdapterChecks
from slipstream_proxy.control.adapters.files import has_weights, highest_folder, split_name
from slipstream_proxy.control.adapters.fleet import Fleet
from slipstream_proxy.control.adapters.journal import AdapterJournal
from slipstream_proxy.control.adapters.registry import AdapterRegistry
from slipstream_proxy.control.engines.replica import EngineRefused
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import in_thread
from slipstream_proxy.control.storage.access import away
from slipstream_proxy.store.tables.driver import is_store_fault

T = TypeVar("T")
S = AdapterState
LEARNER_FIELD = "body.learner"
NEXT_NAME_ADVICE = "names are never used again: take the next number"
MOST_AHEAD = 1_000_000
"""Versions that a new one may leave out."""


class AdapterRegistrar:
    def __init__(self, registry: AdapterRegistry, journal: AdapterJournal, fleet: Fleet, checks: AdapterChecks) -> None:
        self.registry, self.journal, self.fleet, self.checks = registry, journal, fleet, checks
        self.config = registry.config

    async def expect_learner(self, model: str, token: str | None, now: float) -> None:
        """Raises ``Problem`` 409 where another trainer than the one with this token learns for the model."""
        other = await self._ask(self.journal.stores.require().learners.other, model, token, now)
        if other is not None:
            text = f"another trainer learns for {model}: {other.worker} at {other.place}"
            fix = "stop one of the two: the other goes on once that one has ended, or was silent for half a minute"
            raise Problem(409, text, field=LEARNER_FIELD, fix=fix)

    async def claim(self, wanted: NameClaimIn) -> str:
        """The name of a version that nobody has or was given, as a folder of ``adapters.dir`` neither."""
        model = self.expect_model(wanted.model or self.config.model_name, "body.model")
        if wanted.learner is not None:
            await self.expect_learner(model, wanted.learner, time.time())
        seen = [a.version for a in self.registry.items.values() if a.model == model]
        above = max(wanted.above, *seen, await in_thread(highest_folder, self.config.adapters_dir, model), 0)
        return f"{model}@{await self._ask(self.journal.stores.require().learners.claim, model, above)}"

    @staticmethod
    async def _ask(question: Callable[..., T], *args: Any) -> T:
        """Of the store. Raises ``Problem`` 503 where it is away."""
        try:
            return await in_thread(question, *args)
        except Exception as e:
            raise (away() if is_store_fault(e) else e) from e

    async def register(self, wanted: AdapterIn) -> Adapter:
        """A new version. Raises ``Problem`` 409 (name used), 404 (no such folder), 422 (vLLM would not take it)."""
        return await self.fleet.agree(lambda: self._register(wanted))

    async def _register(self, wanted: AdapterIn) -> Adapter:
        model, version = self.expect_name(wanted)
        since = self.registry.revision  # who takes over after this look raises it
        if wanted.learner is not None:
            await self.expect_learner(model, wanted.learner, time.time())
        name = f"{model}@{version}"
        folder = self.config.adapters_dir / folder_of(name)
        before = self.registry.items.get(name)
        if before is not None and wanted.sha256 is not None and before.sha256 == wanted.sha256:
            return before  # a trainer that was killed after registering asks again
        if not folder.is_dir() or folder.is_symlink():
            if before:
                raise Problem(409, f"{name} is there already", field="body.path", fix=NEXT_NAME_ADVICE)
            fix = "write the files first, then register"
            raise Problem(404, f"no folder {name} in adapters.dir", field="body.path", fix=fix)
        await self._expect_weights(folder, wanted.sha256)
        try:
            digests = await self.checks.check(folder, wanted.sha256)
        except BadAdapter as e:
            if before is None:
                why = {"reason": str(e), "decided": time.time()}
                refused = _new(wanted, name, model, version, S.REFUSED).model_copy(update=why)
                await self.journal.change([refused], event("refused", adapter=name, reason=str(e)))
            raise Problem(422, str(e), field="body.path", fix="publish it again under the next number") from e
        if before is not None:
            if before.sha256 is not None and digests.of_same(before):
                return before  # a trainer that was killed after registering asks again
            raise Problem(409, f"{name} is there already", field="body.path", fix=NEXT_NAME_ADVICE)
        adapter = _new(wanted, name, model, version, S.LOADING).model_copy(update=asdict(digests))
        if self.journal.stores.shared:
            adapter = adapter.model_copy(update={"engine_path": self.registry.files.own_path(adapter)})
        if taken := self.registry.fallen(wanted.parent):
            late = {"state": S.RETIRED, "reason": made_from(taken), "decided": time.time()}
            adapter = adapter.model_copy(update=late)
        else:
            self.registry.expect(adapter)
        note = event("adapter", adapter=name, state=adapter.state.value, parent=wanted.parent, step=wanted.step)
        await self.journal.change([adapter], note, since=since)
        return adapter

    @staticmethod
    async def _expect_weights(folder: Path, sha256: str | None) -> None:
        """Raises ``Problem`` 409 for other weights than the writer's: another's, or they are not all here yet."""
        if sha256 is not None and not await in_thread(has_weights, folder, sha256):
            text = f"{folder.name}/{WEIGHTS_FILE_NAME} in adapters.dir is not the file with the hash that was sent"
            raise Problem(409, text, field="body.sha256", fix="upload the files")

    async def try_out(self, folder: str, sha256: str | None = None) -> AdapterTrial:
        """An adapter that is to be no version: do the engines take it, and answer otherwise with it? Raises ``Problem``
        404 and 409 where this proxy does not see the files.
        """
        engines, place = self.fleet.engines, self.config.adapters_dir / folder
        if not place.is_dir():
            fix = "share adapters.dir with this proxy, or upload the files"
            raise Problem(404, f"no folder {folder} in adapters.dir", field="body.path", fix=fix)
        if not engines.takers():
            return AdapterTrial(tried=False)
        await self._expect_weights(place, sha256)
        try:
            await self.checks.check(place, sha256)
        except BadAdapter as e:
            return AdapterTrial(tried=True, reason=str(e))
        seen = Path(self.config.engine.adapters_dir or self.config.adapters_dir) / folder
        errors = await engines.try_out(folder, str(seen), place)
        refused = next((e for e in errors if isinstance(e, EngineRefused)), None)
        if refused is None and (errors or not engines.takers()):
            return AdapterTrial(tried=False)
        return AdapterTrial(tried=True, reason=None if refused is None else str(refused))

    def expect_name(self, wanted: AdapterIn) -> tuple[str, int]:
        """Model and version. Raises ``Problem`` 422 or 404 where they cannot be a new version's."""
        name = wanted.path.strip("/")
        try:
            model, version = split_name(name)
            model = next((known for known in self.registry.models if folder_of(known) == model), model)
        except BadAdapter as e:
            fix = "a folder right under adapters.dir, named <model>@<n>"
            raise Problem(422, str(e), field="body.path", fix=fix) from e
        self.expect_model(model if wanted.model in (None, model) else str(wanted.model), "body.model")
        if wanted.model not in (None, model):
            raise Problem(404, f"{name} is no version of {wanted.model}", field="body.model", fix="leave it out")
        self._check_number(model, name, version, "body.path")
        return model, version

    def expect_model(self, model: str, field: str) -> str:
        """Raises ``Problem`` 404."""
        if model not in self.registry.models:
            fix = f"trained models: {', '.join(self.registry.models)}"
            raise Problem(404, f"{model!r} is no trained model", field=field, fix=fix)
        return model

    def _check_number(self, model: str, name: str, version: int, field: str) -> None:
        """Raises ``Problem`` 422 for a version after which there are soon no more."""
        highest = max((a.version for a in self.registry.items.values() if a.model == model), default=0)
        if version > highest + MOST_AHEAD:
            text = f"{name}: the highest version of {model} is {highest}, and so far ahead the numbers would run out"
            raise Problem(422, text, field=field, fix=f"name it {folder_of(model)}@{highest + 1}")

    async def bring_in(self, found: Sequence[Adapter]) -> int:
        """Adapters of another store, with the states they had there. → How many were not here."""
        return await self.fleet.agree(lambda: self._bring_in(found))

    async def _bring_in(self, found: Sequence[Adapter]) -> int:
        new = [a for a in found if a.name not in self.registry.items]
        for a in new:
            self._check_number(a.model, a.name, a.version, "body.adapters")
        serving = {S.LIVE, S.CANDIDATE}
        live = {a.model for a in self.registry.in_state(*serving)}
        if any(a.model in live and a.state in serving for a in new):
            fix = "import before anything is trained"
            raise Problem(409, "an adapter is live here already", field="body.adapters", fix=fix)
        if new:
            await self.journal.change([await self._arrived(a) for a in new])
        return len(new)

    async def _arrived(self, adapter: Adapter) -> Adapter:
        """An entry of another store's list, with what is true of its files here. Raises ``Problem`` 409 or 422."""
        files, field = self.registry.files, "body.adapters"
        here: dict[str, object] = {"loaded": False, "episodes": 0, "engine_path": None, "sha256": None}
        here["scales_sha256"] = None
        if files.leads_out(adapter):
            text = f"{adapter.name}: {files.folder(adapter)} is a link"
            raise Problem(422, text, field=field, fix="copy the folder to its place")
        if not files.has_own(adapter):
            return adapter.model_copy(update=here)
        try:
            digests = await self.checks.check(files.folder(adapter))
        except BadAdapter as e:
            fix = f"copy the files of {adapter.name} again, or take its folder away"
            raise Problem(422, f"{adapter.name}: {e}", field=field, fix=fix) from e
        if not digests.of_same(adapter):
            other = "weights" if adapter.sha256 not in (None, digests.sha256) else "scales (lora_alpha, r, use_rslora)"
            text = f"{adapter.name} has other {other} here than the list says"
            raise Problem(409, text, field=field, fix="copy the files that belong to the list")
        if self.journal.stores.shared:
            here["engine_path"] = files.own_path(adapter)
        return adapter.model_copy(update=here | asdict(digests))


def _new(wanted: AdapterIn, name: str, model: str, version: int, state: AdapterState) -> Adapter:
    given = wanted.model_dump(include={"parent", "step", "batches", "meta"})
    return Adapter(
        name=name, model=model, version=version, state=state, created=time.time(), path=folder_of(name), **given
    )
