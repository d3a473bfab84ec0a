"""Whether an adapter's files are what an engine may load."""

from __future__ import annotations

import functools
import logging
from pathlib import Path

from slipstream.shared.adapter_config import BadAdapter
from slipstream_proxy.control.adapters.files import AdapterDigests, base_shapes, check_folder
from slipstream_proxy.control.adapters.registry import AdapterRegistry
from slipstream_proxy.control.shared.threads import in_thread

log = logging.getLogger(__name__)


class AdapterChecks:
    def __init__(self, registry: AdapterRegistry) -> None:
        self.registry, self.config = registry, registry.config
        self._checked: set[str] = set()
        """Adapters that came without a hash, and whose files are good."""

    @functools.cached_property
    def base_shapes(self) -> dict[str, list[int]]:
        try:
            return base_shapes(self.config.engine.model)
        except (BadAdapter, OSError) as e:
            log.warning("the base model's shapes cannot be read, adapters are not compared with them: %s", e)
            return {}

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
            await self.check(files.folder(adapter))
        except BadAdapter as e:
            return str(e)
        self._checked.add(name)
        return None

    async def check(self, folder: Path, sha256: str | None = None) -> AdapterDigests:
        """Raises ``BadAdapter``. ``sha256``: as ``check_folder`` takes it."""
        return await in_thread(check_folder, folder, self.config.engine.max_lora_rank, self.base_shapes, sha256)
