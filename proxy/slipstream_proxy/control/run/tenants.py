"""Keeps a control plane for each tenant: ``python -m slipstream_proxy.control.run.tenants``.

They are forked from this process once it has imported all that they need, so that many share its pages. It has no
thread but an allocator's own, and looks twice a second for new tenants: in the keys file, and in what the parent read
in the settings.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass, field

from slipstream.config import CONFIG_ENV, Config
from slipstream.errors import ConfigError, StartError
from slipstream.settings import TenantConfig
from slipstream.shared.log import TENANT_ENV, setup_logging
from slipstream.shared.processes.process import die_with_parent, how_ended
from slipstream.tenants import tenant_config
from slipstream_proxy.control.api.app import installed_routes
from slipstream_proxy.control.run import worker
from slipstream_proxy.control.shared.tenant_states import tell_states
from slipstream_proxy.control.storage.identity import keep_tenant
from slipstream_proxy.keys import Keys
from slipstream_proxy.process.parent import NEWER_STORE_EXIT_CODE
from slipstream_proxy.process.settings_file import told_tenants

log = logging.getLogger("slipstream_proxy.control.run.tenants")
LOOK_INTERVAL_S = 0.5
FIRST_PAUSE_S, LAST_PAUSE_S, STEADY_S = 0.2, 10.0, 60.0
"""Seconds between an end and the next start; they double with each, and begin anew after a steady run."""


@dataclass(slots=True)
class TenantProcess:
    pid: int | None = None
    began: float = 0.0
    pause: float = FIRST_PAUSE_S
    again: float | None = 0.0
    """When it is started next (monotonic seconds). None: not before the proxy's next start."""
    why: str = ""
    own: TenantConfig = field(default_factory=TenantConfig)
    """The settings that it was started with."""
    renewed: bool = False
    """It was asked to end, for others."""
    left: bool = False
    """It was asked to end, for good."""


class TenantProcesses:
    def __init__(self, config: Config) -> None:
        self.config, self.stopping = config, False
        self._keys = Keys(config.keys_file, serving=True)
        self._all: dict[str, TenantProcess] = {}
        self._told: dict[str, str] | None = None

    def run(self) -> None:
        """Until SIGTERM."""
        while not self.stopping:
            self.look()
            time.sleep(LOOK_INTERVAL_S)
        self.end()

    def look(self) -> None:
        self._reap()
        self.config = told_tenants(self.config)
        there = {*self.config.tenants, *self._keys.tenants()}
        for name in self._all.keys() - there:
            self._leave(name)
        for name in sorted(there):
            found = self._all.setdefault(name, TenantProcess())
            if found.own != self.config.tenants.get(name, TenantConfig()):
                self._renew(name, found)
            if found.pid is None and found.again is not None and found.again <= time.monotonic():
                self._start(name, found)
        self._tell()

    def end(self) -> None:
        """All at once; each reads what is left of its spool."""
        for one in self._all.values():
            if one.pid is not None:
                os.kill(one.pid, signal.SIGTERM)
        while any(one.pid is not None for one in self._all.values()):
            self._reap()
            time.sleep(0.02)

    def _leave(self, name: str) -> None:
        """Nothing declares it any more, and it has no key."""
        found = self._all[name]
        if found.pid is None:
            del self._all[name]
        else:
            found.left = True
            os.kill(found.pid, worker.LEAVE_SIGNAL)
            os.kill(found.pid, signal.SIGTERM)

    def _renew(self, name: str, found: TenantProcess) -> None:
        """Its settings are others: it ends, and starts with them."""
        found.own, found.again = self.config.tenants.get(name, TenantConfig()), 0.0
        if found.pid is not None:
            log.info("the settings of the tenant %s changed: its control plane starts anew", name)
            found.renewed = True
            os.kill(found.pid, signal.SIGTERM)

    def _start(self, name: str, found: TenantProcess) -> None:
        found.renewed = found.left = False
        try:
            config = tenant_config(self.config, name)
            keep_tenant(config)
        except (ConfigError, StartError) as e:
            log.error("the tenant %s is not served: %s", name, e)
            found.again, found.why = None, str(e)
            return
        parent = os.getpid()
        found.began, found.pid = time.monotonic(), os.fork()
        if found.pid == 0:
            _be(config, parent)

    def _reap(self) -> None:
        for name, one in self._all.items():
            if one.pid is None:
                continue
            pid, status = os.waitpid(one.pid, os.WNOHANG)
            if not pid:
                if one.why and time.monotonic() - one.began > STEADY_S:
                    one.why, one.pause = "", FIRST_PAUSE_S
                continue
            code, one.pid = os.waitstatus_to_exitcode(status), None
            if one.left:
                one.again = 0.0  # one that came under its name meanwhile starts
                continue
            if self.stopping or one.renewed:
                continue
            one.why = f"its control plane {how_ended(code)}"
            if code == NEWER_STORE_EXIT_CODE:
                one.again = None
                one.why = "a newer release wrote its store: install that release, or restore a backup"
            else:
                one.again = time.monotonic() + one.pause
                one.pause = min(2 * one.pause, LAST_PAUSE_S)
            log.error("tenant %s: %s", name, one.why)

    def _tell(self) -> None:
        """For the operator's status."""
        told = {name: one.why if one.pid is None else "" for name, one in self._all.items()}
        if told != self._told:
            tell_states(self.config.root, told)
            self._told = told


def _be(config: Config, parent: int) -> None:
    """The forked child: a control plane, to its end."""
    code = 1
    try:
        die_with_parent(signal.SIGKILL, parent)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(worker.LEAVE_SIGNAL, signal.SIG_IGN)  # it ends by the other one if it is that young
        os.environ[CONFIG_ENV] = config.model_dump_json()
        os.environ[TENANT_ENV] = config.tenant
        worker.main()
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 1
    except BaseException:
        log.exception("the control plane of %s failed", config.tenant)
    finally:
        logging.shutdown()
        os._exit(code)


def main() -> None:
    setup_logging()
    config = Config.model_validate_json(os.environ[CONFIG_ENV])
    processes = TenantProcesses(config)

    def stop(*_: object) -> None:
        processes.stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kind = "postgres" if config.store_url.startswith("postgres") else "duckdb"
    importlib.import_module(f"slipstream_proxy.store.backends.{kind}")
    installed_routes()  # plug-ins' modules
    gc.collect()
    gc.freeze()
    processes.run()


if __name__ == "__main__":
    main()
    sys.exit(0)
