"""A trainer with tenants, beside control planes in memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.control import FakeControl, serve
from tests.support.tiny import make_config, make_trainer

from slipstream.client import Client
from slipstream.settings import TenantConfig
from slipstream.tenants import SETTINGS_TOLD_FILE_NAME, TENANT_STATES_FILE_NAME, tenant_config
from slipstream_trainer.run import tenants
from slipstream_trainer.run.tenants import TenantWorkers
from slipstream_trainer.run.worker import Worker


class TenantWorld:
    """A proxy with tenants, of which each has a control plane."""

    def __init__(
        self,
        tiny: Path,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        stack: ExitStack,
        names: list[str],
        declared: Mapping[str, TenantConfig] | None = None,
    ) -> None:
        """``names``: tenants that have keys from the start. ``declared``: that have settings."""
        self.config = make_config(tiny, folder)
        self.controls = {name: stack.enter_context(serve(FakeControl())) for name in ["", *names, "late"]}
        monkeypatch.setattr(tenants, "Client", lambda _url, _key, tenant: Client(self.controls[tenant].url))
        monkeypatch.setattr(tenants, "TENANTS_LOOK_S", 0.1)
        self.known = names
        self.tell()
        self.declare(declared or {})
        first = Worker(self.config, Client(self.controls[""].url), make_trainer(self.config, warm=False))
        self.all = TenantWorkers(first, "", None)
        self.thread = threading.Thread(target=self.all.run)

    def tell(self, *more: str) -> None:
        """As the proxy writes it."""
        self.known = [*self.known, *more]
        (self.config.root / TENANT_STATES_FILE_NAME).write_text(json.dumps(dict.fromkeys(self.known, "")))

    def declare(self, tenants: Mapping[str, TenantConfig]) -> None:
        """As the proxy writes it, of settings files that it has read."""
        told = {"tenants": {name: own.model_dump() for name, own in tenants.items()}}
        part = self.config.root / "told.part"
        part.write_text(json.dumps(told))
        part.replace(self.config.root / SETTINGS_TOLD_FILE_NAME)

    def checkpoint_folder(self, name: str) -> Path:
        return tenant_config(self.config, name).checkpoints_dir

    def checkpoints(self, name: str) -> list[Path]:
        return list(self.checkpoint_folder(name).glob("step-*"))

    def adapter(self, name: str, version: str) -> Path:
        return tenant_config(self.config, name).adapters_dir / version

    def __enter__(self) -> TenantWorld:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.all.first.stop.set()
        self.thread.join(60)
        assert not self.thread.is_alive()
