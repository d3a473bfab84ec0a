"""Where an adapter's files are: for this proxy, and for the engine."""

from __future__ import annotations

from pathlib import Path

from slipstream.config import Config
from slipstream.contract import Adapter


class AdapterFiles:
    def __init__(self, config: Config) -> None:
        self.config = config

    def folder(self, adapter: Adapter) -> Path:
        """As this proxy sees it."""
        return self.config.adapters_dir / adapter.path

    def own_path(self, adapter: Adapter) -> str:
        """As vLLM sees the folder of this proxy (``engine.adapters_dir``)."""
        return str(Path(self.config.engine.adapters_dir or self.config.adapters_dir) / adapter.path)

    def has_own(self, adapter: Adapter) -> bool:
        return self.folder(adapter).is_dir()

    def exist(self, adapter: Adapter) -> bool:
        """Whether any proxy has them."""
        return self.has_own(adapter) or adapter.engine_path is not None

    def path_for_engine(self, adapter: Adapter) -> str:
        """Where vLLM sees the files. If they are not here, the proxy that took the adapter in knows the path."""
        if adapter.engine_path is not None and not self.has_own(adapter):
            return adapter.engine_path
        return self.own_path(adapter)

    def engine_paths(self, adapter: Adapter) -> tuple[str, ...]:
        """All paths that an engine may have it from: this proxy's, and that of the proxy that took it in."""
        return (self.own_path(adapter), *((adapter.engine_path,) if adapter.engine_path is not None else ()))
