"""The settings file of a running proxy, read again when it changes: its engines follow, all else waits for the next
start and is named.

The parent watches the file, also where a mounted ConfigMap swaps the link on its way, and at SIGHUP. It writes what it
found into ``data_dir``, for the control plane, which tells the workers. Children that start later get it with their
configuration.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from slipstream.config import Config
from slipstream.errors import ConfigError
from slipstream.settings import TenantConfig
from slipstream.shared.tenant_names import TENANTS_FOLDER_NAME

log = logging.getLogger(__name__)
TOLD_FILE_NAME = "settings.json"
LOOK_INTERVAL_S = 1.0
LIVE_SETTINGS = ("engine.urls", "engine.router")
"""What a running proxy takes over."""
LOGIN_SETTINGS = ("engine.logins", "engine.api_key")
"""Workers have these from their start: where they change, no engine changes. Nor where none would be left."""
LIVE_QUOTAS = ("calls_per_day", "input_tokens_per_day", "output_tokens_per_day", "concurrency", "adapters")
"""What a tenant's planes follow. Its control plane is started anew for all that it reads itself."""
CONTROL_SECTIONS = ("groups", "data", "store", "gate")
"""Sections of a tenant that nobody reads but its control plane."""
Stand = tuple[int, int, int, int] | None


class SettingsFile(NamedTuple):
    path: Path
    read: Callable[[], Config]
    """With the environment and the flags of the start. Raises ``ConfigError``."""


@dataclass(slots=True)
class ToldSettings:
    """What the parent found in the file."""

    urls: Sequence[str]
    router: str | None
    waiting: Sequence[str] = ()
    """Changed settings that count from the next start on."""
    error: str | None = None
    """Why the file cannot be read. Then nothing has changed."""
    tenants: Mapping[str, Any] = field(default_factory=dict)
    """All that are declared now, each with its settings."""

    def write(self, root: Path) -> None:
        temp = root / f"{TOLD_FILE_NAME}.tmp"
        temp.write_text(json.dumps(asdict(self)))
        temp.replace(root / TOLD_FILE_NAME)


def stand_of(path: Path) -> Stand:
    """Tells a file from its next version, wherever the links on its way lead. None: there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size


def _flat(tree: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for section, value in tree.items():
        if isinstance(value, dict):
            yield from ((f"{section}.{name}", inner) for name, inner in value.items())
        else:
            yield section, value


def changed_settings(before: Config, after: Config) -> list[str]:
    """Names of the settings that differ."""
    old, new = dict(_flat(before.model_dump())), dict(_flat(after.model_dump()))
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))


def _followed(setting: str) -> bool:
    section, _, name = setting.partition(".")
    return name in LIVE_QUOTAS if section == "quota" else section in CONTROL_SECTIONS


class SettingsWatch:
    """The parent's view. ``config``: what the children started with."""

    def __init__(self, file: SettingsFile, config: Config) -> None:
        self.file, self.config = file, config
        self._stand = stand_of(file.path)
        self._first = self._read() or config
        """As the file was at the start: the model's name may have come from the engine since."""
        self._began = dict(config.tenants)
        """Tenants, as they were when their parts started."""

    def _read(self) -> Config | None:
        try:
            return self.file.read()
        except ConfigError:
            return None

    def look(self, *, asked: bool = False) -> ToldSettings | None:
        """What changed since the last look. None: nothing. ``asked``: read it even if it looks the same."""
        stand = stand_of(self.file.path)
        if stand == self._stand and not asked:
            return None
        self._stand = stand
        engine = self.config.engine
        try:
            new = self.file.read()
        except ConfigError as e:
            log.error("the changed settings cannot be read, and those before go on: %s", e)
            return self._told(error=str(e))
        waiting = changed_settings(self._first, new)
        if new.engine.urls and not any(name in waiting for name in LOGIN_SETTINGS):
            taken = {"urls": new.engine.urls, "router": new.engine.router}
            waiting = [name for name in waiting if name not in LIVE_SETTINGS]
            if taken != {"urls": engine.urls, "router": engine.router}:
                log.info("the settings file changed: engine.urls = %s, engine.router = %s", *taken.values())
            self.config = self.config.model_copy(update={"engine": engine.model_copy(update=taken)})
        waiting = [name for name in waiting if not name.startswith("tenants.")] + self._tenants(new)
        if waiting:
            log.warning("changed settings count from the proxy's next start on: %s", ", ".join(waiting))
        return self._told(waiting)

    def _tenants(self, new: Config) -> list[str]:
        """Take over what tenants have of their own. → What waits for the next start."""
        old = self.config.tenants
        if fresh := sorted(name for name in {*old, *new.tenants} if old.get(name) != new.tenants.get(name)):
            log.info("the settings file changed: tenants that are new, gone or have others are %s", ", ".join(fresh))
            self.config = self.config.model_copy(update={"tenants": dict(new.tenants)})
        waiting: list[str] = []
        for name in sorted({*self._began, *new.tenants}):  # one without a table may have keys, and goes on
            own = new.tenants.get(name, TenantConfig())
            if name not in self._began:  # it may have run without a table, for a key
                there = (self.config.root / TENANTS_FOLDER_NAME / name / "control.sock").exists()
                self._began[name] = TenantConfig() if there else own
            before, after = dict(_flat(self._began[name].model_dump())), dict(_flat(own.model_dump()))
            changed = {what for what in before.keys() | after.keys() if before.get(what) != after.get(what)}
            waiting += [f"tenants.{name}.{what}" for what in sorted(changed) if not _followed(what)]
        return waiting

    def _told(self, waiting: Sequence[str] = (), error: str | None = None) -> ToldSettings:
        tenants = {name: own.model_dump(mode="json") for name, own in self.config.tenants.items()}
        return ToldSettings(self.config.engine.urls, self.config.engine.router, waiting, error, tenants)


def told_tenants(config: Config) -> Config:
    """With the tenants that the parent has told of since this process was started."""
    try:
        told = ToldSettings(**json.loads((config.home / TOLD_FILE_NAME).read_bytes()))
        tenants = {name: TenantConfig.model_validate(own) for name, own in told.tenants.items()}
    except (OSError, ValueError, TypeError):
        return config
    return config.model_copy(update={"tenants": tenants})


class SettingsNews:
    """The control plane's view: ``look`` writes what was told into ``config``, which all of it reads."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.path = config.home / TOLD_FILE_NAME
        self.waiting: Sequence[str] = ()
        self.error: str | None = None
        self._stand: Stand = None

    def look(self) -> bool:
        """Whether the parent has told something new."""
        stand = stand_of(self.path)
        if stand == self._stand:
            return False
        self._stand = stand
        try:
            told = ToldSettings(**json.loads(self.path.read_bytes()))
        except (OSError, ValueError, TypeError):
            return False
        self.waiting, self.error = told.waiting, told.error
        if tenant := self.config.tenant:  # the others' names, and what is wrong with all, are the operator's to see
            own = f"tenants.{tenant}"
            self.waiting = [name for name in told.waiting if name == own or name.startswith(f"{own}.")]
            self.error = None
        self.config.engine.urls, self.config.engine.router = list(told.urls), told.router
        return True
