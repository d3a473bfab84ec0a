"""Tenants' parts of an operator's backup. Each tenant's control plane makes its own, as nobody else can copy a store
that it has open.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import tarfile
from collections.abc import Mapping
from pathlib import Path

from slipstream.config import Config
from slipstream.contract import API_PREFIX
from slipstream.errors import ConfigError
from slipstream.shared.tenant_names import TENANTS_FOLDER_NAME
from slipstream.tenants import known_tenants, tenant_config
from slipstream_proxy.control.api.http import OWN_AUTH
from slipstream_proxy.store.tables.driver import StoreError

TENANT_TIMEOUT_S = 600.0
"""Seconds for which a tenant's part may stand still. Its store is copied before its first byte."""


class _ControlConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TENANT_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def served_tenants(config: Config) -> dict[str, Path]:
    """Tenant → socket of its control plane. Raises ``StoreError``: one of them has none that answers."""
    if config.tenant or not (config.root / TENANTS_FOLDER_NAME).is_dir():
        return {}
    declared, names = known_tenants(config)
    found = {}
    for name in sorted(names):
        try:
            own = tenant_config(declared, name)
            with contextlib.closing(_ControlConnection(own.socket)) as connection:
                connection.connect()
        except (ConfigError, OSError) as e:
            raise StoreError(f"the tenant {name} does not answer ({e}): see `slipstream tenants`") from e
        found[name] = own.socket
    return found


def add_tenants(tar: tarfile.TarFile, tenants: Mapping[str, Path], *, with_adapters: bool) -> None:
    """Raises ``StoreError`` or ``OSError``."""
    for name, path in tenants.items():
        try:
            with contextlib.closing(_ControlConnection(path)) as connection:
                connection.request("GET", f"{API_PREFIX}/backup", headers=OWN_AUTH)
                answer = connection.getresponse()
                if answer.status != http.client.OK:
                    raise StoreError(f"the tenant {name} has made no backup: {answer.read(2000)!r}")
                _add_all(tar, answer, f"{TENANTS_FOLDER_NAME}/{name}", with_adapters=with_adapters)
        except (http.client.HTTPException, tarfile.TarError) as e:
            raise StoreError(f"the backup of the tenant {name} ended early: {type(e).__name__} {e}") from e


def _add_all(tar: tarfile.TarFile, answer: http.client.HTTPResponse, folder: str, *, with_adapters: bool) -> None:
    with tarfile.open(fileobj=answer, mode="r|") as part:
        for member in part:
            if with_adapters or not member.name.startswith("adapters/"):
                member.name, member.pax_headers = f"{folder}/{member.name}", {}  # a long name stands in the latter, too
                tar.addfile(member, part.extractfile(member))
    if answer.read():
        raise tarfile.ReadError("there is more behind its end")
