"""What other proxies on the same store decide (their adapters are loaded into this proxy's engines, then served), and
new versions on their way in: name and files are checked, and what is refused is kept with the reason.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from slipstream.contract import SERVED_STATES, Adapter, AdapterIn, AdapterState, AdapterTrial, NameClaimIn, folder_of
from slipstream.shared.adapter_config import WEIGHTS_FILE_NAME, BadAdapter
from slipstream_proxy.control.adapters.changes import event, made_from
from slipstream_proxy.control.adapters.files import (
    AdapterDigests,
    base_shapes,
    check_folder,
    has_weights,
    highest_folder,
    split_name,
)
from slipstream_proxy.control.adapters.journal import AdapterJournal, ConcurrentChange
from slipstream_proxy.control.adapters.live_publisher import LivePublisher
from slipstream_proxy.control.adapters.registry import AdapterRegistry
from slipstream_proxy.control.engines.pool import EnginePool
from slipstream_proxy.control.engines.replica import EngineRefused
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import in_thread
from slipstream_proxy.control.storage.access import away
from slipstream_proxy.control.storage.store_handle import StoreHandle
from slipstream_proxy.store.tables.driver import is_store_fault

log = logging.getLogger(__name__)
T = TypeVar("T")
LOAD_ATTEMPTS = 5
TAKE_OVER = 10.0
"""Seconds after which this proxy decides on an adapter that another one is loading: that proxy may have died."""


class Fleet:
    """Without a shared store it does nothing."""

    def __init__(
        self, registry: AdapterRegistry, engines: EnginePool, publisher: LivePublisher, stores: StoreHandle
    ) -> None:
        self.registry, self.engines, self.publisher, self.stores = registry, engines, publisher, stores
        self.followed = time.monotonic()
        """When the store last answered."""
        self.behind: str | None = None
        """The adapter that another proxy made live and this one cannot serve, with the reason."""
        self.take_over = TAKE_OVER
        self._one = asyncio.Lock()

    async def agree(self, decide: Callable[[], Awaitable[T]]) -> T:
        """Decide on what is known now, and again if another proxy changed adapters first. Raises ``Problem`` 503."""
        for _ in range(LOAD_ATTEMPTS):
            await self.follow()
            try:
                return await decide()
            except ConcurrentChange:
                continue
        text = "other proxies change adapters just now, or made one live that this proxy's engines have not loaded yet"
        raise Problem(503, text, fix="ask again", headers={"retry-after": "1"})

    async def follow(self) -> None:
        """Take over what the store says, once this proxy's engines have every adapter that calls will be sent to."""
        store = self.stores.current
        if store is None or not store.shared:
            return
        async with self._one:
            before = self.registry.revision
            try:
                found = await in_thread(store.adapters.since, before)
            except Exception as e:
                log.warning("adapters' states cannot be read, keeping the known ones: %s", e)
                return
            self.followed = time.monotonic()
            if found is None:
                self.behind = None
                return
            revision, adapters = found
            if not all([await self._load(a) for a in self._coming(adapters)]):
                return
            if self.registry.revision != before:  # a change of our own came between: look again
                return
            for a in adapters:
                known = self.registry.items.get(a.name)
                if known is None or known.state != a.state:
                    log.info("the store says: %s is %s", a.name, a.state.value)
            self.registry.adopt(revision, adapters)
            self.behind = None
            self.publisher.publish()

    def _coming(self, found: list[Adapter]) -> list[Adapter]:
        """Those that calls will be sent to, and were not."""
        known = self.registry.items
        return [
            a
            for a in found
            if a.state in SERVED_STATES and (a.name not in known or known[a.name].state not in SERVED_STATES)
        ]

    async def _load(self, adapter: Adapter) -> bool:
        """Into every engine that takes adapters. False: one does not take this, and the old adapters keep serving."""
        errors = await self.engines.load_all(adapter.name, self.registry.files.path_for_engine(adapter))
        if errors and not self.engines.serves(adapter.name):
            behind = f"{adapter.name} is {adapter.state.value} and cannot be loaded here: {errors[0]}"
            if behind != self.behind:
                log.error("another proxy's %s", behind)
            self.behind = behind
            return False
        return True

    def mine(self, adapter: Adapter) -> bool:
        """Whether this proxy decides on an adapter that is loading."""
        waited = time.monotonic() - self.registry.arrived.get(adapter.name, 0.0)
        return not self.stores.shared or adapter.name in self.registry.mine or waited > self.take_over

    def may_refuse(self, adapter: Adapter) -> bool:
        """Whether an engine's refusal counts for the whole fleet: not if this proxy simply lacks the files."""
        return not self.stores.shared or self.registry.files.has_own(adapter)

    def up_to_date(self, seconds: float) -> bool:
        """Whether the store answered recently enough to unload adapters by what it said."""
        return not self.stores.shared or time.monotonic() - self.followed < seconds

    async def bring(self, name: str) -> None:
        """An episode of this adapter comes from another proxy: load it before the call is sent to an engine."""
        registry = self.registry
        if not self.stores.shared or name == registry.base:
            return
        if not registry.servable(name):
            await self.follow()
        if not registry.servable(name) or name in self.engines.loaded():
            return
        registry.pin(name)
        for error in await self.engines.load_all(name, registry.files.path_for_engine(registry.items[name])):
            if isinstance(error, EngineRefused):
                log.error("%s, which a running episode has, cannot be loaded here: %s", name, error)
        self.publisher.publish()


S = AdapterState
LEARNER_FIELD = "body.learner"
NEXT_NAME_ADVICE = "names are never used again: take the next number"
MOST_AHEAD = 1_000_000
"""Versions that a new one may leave out."""


class AdapterRegistrar:
    def __init__(self, registry: AdapterRegistry, journal: AdapterJournal, fleet: Fleet) -> None:
        self.registry, self.journal, self.fleet = registry, journal, fleet
        self.config = registry.config
        self._checked: set[str] = set()
        """Adapters that came without a hash, and whose files are good."""

    @functools.cached_property
    def base_shapes(self) -> dict[str, list[int]]:
        try:
            return base_shapes(self.config.engine.model)
        except (BadAdapter, OSError) as e:
            log.warning("the base model's shapes cannot be read, adapters are not compared with them: %s", e)
            return {}

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
        model, version = self._split(wanted, wanted.path.strip("/"))
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
            digests = await self._check(folder, wanted.sha256)
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
        await self._expect_weights(place, sha256)
        try:
            await self._check(place, sha256)
        except BadAdapter as e:
            return AdapterTrial(tried=True, reason=str(e))
        if not engines.takers():
            return AdapterTrial(tried=False)
        seen = Path(self.config.engine.adapters_dir or self.config.adapters_dir) / folder
        errors = await engines.try_out(folder, str(seen), place)
        refused = next((e for e in errors if isinstance(e, EngineRefused)), None)
        if refused is None and (errors or not engines.takers()):
            return AdapterTrial(tried=False)
        return AdapterTrial(tried=True, reason=None if refused is None else str(refused))

    async def unfit(self, name: str) -> str | None:
        """Why no engine is to load an adapter from its folder here. None: it may, or the folder is not here.

        One that came in as a list's entry, before its files, is checked when it is to be loaded.
        """
        adapter, files = self.registry.items.get(name), self.registry.files
        if adapter is None:
            return None
        if files.leads_out(adapter):
            return f"{files.folder(adapter)} is a link: copy the folder to its place"
        if adapter.sha256 is not None or name in self._checked or not files.has_own(adapter):
            return None
        try:
            await self._check(files.folder(adapter))
        except BadAdapter as e:
            return str(e)
        self._checked.add(name)
        return None

    async def _check(self, folder: Path, sha256: str | None = None) -> AdapterDigests:
        """Raises ``BadAdapter``. ``sha256``: as ``check_folder`` takes it."""
        return await in_thread(check_folder, folder, self.config.engine.max_lora_rank, self.base_shapes, sha256)

    def _split(self, wanted: AdapterIn, name: str) -> tuple[str, int]:
        """Model and version. Raises ``Problem`` 422 or 404."""
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
            digests = await self._check(files.folder(adapter))
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
