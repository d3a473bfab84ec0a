"""Plug-ins in the control plane: their routes, tables, background jobs, metrics and views of the page.

A ``ControlPlugin`` is what a plug-in writes. ``ControlPlugins`` holds those of this process and keeps their faults away
from all else: what fails in one is logged, counted (``slipstream_plugin_errors_total``) and told by ``status``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from pydantic import BaseModel

from slipstream import plugins as door
from slipstream.contract import API_PREFIX
from slipstream.errors import ConfigError
from slipstream.shared.functions import load_object
from slipstream_proxy.control.shared.threads import end
from slipstream_proxy.redaction import FREE_TEXT_FIELDS

if TYPE_CHECKING:
    from slipstream.contract.funnel import FunnelLine
    from slipstream.contract.plugins import PluginView
    from slipstream_proxy.control.api.http import Route
    from slipstream_proxy.control.deps import Deps
    from slipstream_proxy.control.storage.spool_reader import Item
    from slipstream_proxy.json_types import JsonObject
    from slipstream_proxy.store.read.status import FunnelCounts
    from slipstream_proxy.store.store import Store
    from slipstream_proxy.store.tables.extensions import Extension


class ControlPlugin:
    """Base of a plug-in's part in the control plane. It is made once, before anything runs.

    ``deps`` is what the core's own handlers have: the store, the configuration, ``deps.metrics.registry`` for metrics.
    All methods run in the event loop: whatever blocks goes through ``deps.ask`` or ``in_thread``.
    """

    routes: ClassVar[Sequence[Route]] = ()
    """Below ``API_PREFIX``. A handler finds this object with ``routes.plugins.plugin_of(ctx, Class)``."""
    extension: ClassVar[Extension | None] = None
    """Its tables."""
    free_texts: ClassVar[Mapping[type[BaseModel], str]] = {}
    """Bodies in which people write → what ``proxy.redact`` knows their fields by."""
    views: ClassVar[Mapping[str, str]] = {}
    """Views of the page: name → title."""

    def __init__(self, deps: Deps, settings: Any) -> None:
        """``settings``: an object of the class that ``Plugin.settings`` names; None if it names none."""
        self.deps = deps
        self.settings = settings
        self.jobs: list[tuple[float, Callable[[], Awaitable[None]]]] = []

    def every(self, seconds: float, job: Callable[[], Awaitable[None]]) -> None:
        """Run ``job`` so often, from ``start`` to ``stop``. One that raises is told, and runs again."""
        self.jobs.append((seconds, job))

    async def start(self) -> None:
        """The store is open, as far as it can be."""

    async def stop(self) -> None:
        """The store is still open."""

    def committed(self, items: Sequence[Item]) -> None:
        """The store has these now."""

    async def funnel(self, counts: FunnelCounts, *, judged: bool) -> Sequence[FunnelLine]:
        """What ``status`` is to say of it. ``judged``: a judge is expected."""
        return ()

    async def view(self, name: str) -> PluginView:
        """What one of ``views`` shows now."""
        raise NotImplementedError(name)

    async def keep(self, op: str, data: JsonObject) -> bool:
        """Accept a change durably: a record of the kind ``op``, one of the extension's ``mutations``. → Whether the
        store has it already. Raises ``Problem`` 503 where it cannot be written.
        """
        return await self.deps.mutate(op, data)


def control_parts() -> list[type[ControlPlugin]]:
    """The classes of all plug-ins that are installed. Raises ``ConfigError`` for one that cannot be imported."""
    found = [(plugin.name, plugin.control) for plugin in door.installed().found.values() if plugin.control]
    return [cast("type[ControlPlugin]", load_object(f"the plug-in {name}", spec, "class")) for name, spec in found]


P = TypeVar("P", bound=ControlPlugin)


class ControlPlugins:
    """``core``: the core's routes, which no plug-in may take."""

    def __init__(self, deps: Deps, core: Sequence[Route]) -> None:
        self.board = deps.plugins
        self.parts: dict[str, ControlPlugin] = {}
        self.routes: list[Route] = []
        self._taken = {(route.method, route.path) for route in core}
        self._tasks: list[asyncio.Task[None]] = []
        for plugin in door.used(deps.config.plugins):
            if plugin.control is not None:
                with self._guarded(plugin.name):
                    self._make(deps, plugin, plugin.control)

    def _make(self, deps: Deps, plugin: door.Plugin, spec: str) -> None:
        kind = load_object(f"the plug-in {plugin.name}", spec, "class")
        if not (isinstance(kind, type) and issubclass(kind, ControlPlugin)):
            raise ConfigError(f"{spec} is no ControlPlugin")
        for route in kind.routes:
            if not route.path.startswith(API_PREFIX):
                raise ConfigError(f"its route {route.path} does not lie below {API_PREFIX}")
            if (route.method, route.path) in self._taken:
                raise ConfigError(f"its route {route.method} {route.path} is taken")
        made = self.parts[plugin.name] = kind(deps, door.settings_of(deps.config.plugins, plugin))
        self.board.tellers[plugin.name] = made.funnel
        FREE_TEXT_FIELDS.update(kind.free_texts)
        self.board.shows(plugin.name, dict(kind.views))
        self._taken.update((route.method, route.path) for route in kind.routes)
        self.routes.extend(kind.routes)

    @contextlib.contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """A stranger's code may fail in any way, and ends nothing of ours."""
        try:
            yield
        except Exception as e:
            self.board.failed(name, e)

    def extend(self, store: Store) -> None:
        """Give the store the plug-ins' tables. It blocks."""
        for name, part in self.parts.items():
            if part.extension is not None:
                with self._guarded(name):
                    store.extend(part.extension)

    async def start(self) -> None:
        for name, part in self.parts.items():
            with self._guarded(name):
                await part.start()
                for seconds, job in part.jobs:
                    self._tasks.append(asyncio.create_task(self._every(name, seconds, job), name=f"plug-in {name}"))

    async def _every(self, name: str, seconds: float, job: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            with self._guarded(name):
                await job()

    async def stop(self) -> None:
        await end(self._tasks)
        for name, part in self.parts.items():
            with self._guarded(name):
                await part.stop()

    def committed(self, items: Sequence[Item]) -> None:
        for name, part in self.parts.items():
            with self._guarded(name):
                part.committed(items)

    def of(self, kind: type[P]) -> P:
        """The object of a class. Raises ``LookupError``: it is not used."""
        for part in self.parts.values():
            if isinstance(part, kind):
                return part
        raise LookupError(kind.__name__)
