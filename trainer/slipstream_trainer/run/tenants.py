"""Beside the worker of the proxy's own folder one for each tenant, in a thread of its own. They take turns.

Each has what a trainer of its own would have: a client in the tenant's place, checkpoints, a lease to learn, and a
publisher. What fails in one costs that one alone. Before a tenant's first batch nothing of it is in memory or on disk.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from slipstream.client import Client
from slipstream.config import Config
from slipstream.errors import ConfigError, SlipstreamError
from slipstream.shared.backoff import Backoff
from slipstream.tenants import known_tenants, tenant_config
from slipstream_trainer.model.learner import check_capabilities
from slipstream_trainer.run.worker import FIRST_PAUSE, LAST_PAUSE, Worker
from slipstream_trainer.versions.checkpoint import only_one
from slipstream_trainer.versions.events import event
from slipstream_trainer.versions.learner import Stop

log = logging.getLogger(__name__)
TENANTS_LOOK_S = 2.0
"""Seconds between looks for new tenants."""


@dataclass(slots=True)
class TenantThread:
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    worker: Worker | None = None

    def end(self) -> None:
        self.stop.set()
        if self.worker is not None:
            self.worker.stop.set()


class TenantWorkers:
    def __init__(self, first: Worker, url: str | None, key: str | None, make: Callable[..., Worker] = Worker) -> None:
        """``first``: of the proxy's own folder. ``make``: a worker, as ``Worker`` is made."""
        self.first, self.url, self.key, self.make = first, url, key, make
        self.threads: dict[str, TenantThread] = {}

    def run(self) -> int:
        """Until all are told to stop. → As ``Worker.run``."""
        self.look()
        looking = threading.Thread(target=self._look_forever, name="tenants", daemon=True)
        looking.start()
        try:
            code = self.first.run()
            while not self.first.stop.is_set() and any(t.thread and t.thread.is_alive() for t in self.threads.values()):
                self.first.stop.wait(TENANTS_LOOK_S)  # that one has had its last step, and others go on
            return 1 if self.first.broken else code
        finally:
            self.first.stop.set()
            looking.join()
            for found in self.threads.values():
                if found.thread is not None:
                    found.thread.join()

    def _look_forever(self) -> None:
        while not self.first.stop.wait(TENANTS_LOOK_S):
            self.look()
        for found in self.threads.values():
            found.end()

    def look(self) -> None:
        """Begin with those that are new, end those that are gone."""
        config, names = known_tenants(self.first.config)
        for name in [n for n in self.threads if n not in names]:
            log.info("tenant %s is there no more", name)
            self.threads.pop(name).end()
        for name in sorted(names - self.threads.keys()):
            found = self.threads[name] = TenantThread()
            found.thread = threading.Thread(target=self._tend, args=(config, name, found), name=f"tenant {name}")
            found.thread.start()

    def _tend(self, config: Config, name: str, found: TenantThread) -> None:
        backoff = Backoff(FIRST_PAUSE, LAST_PAUSE, 4.0)
        while not found.stop.is_set():
            try:
                self._work(tenant_config(config, name), found)
                return
            except ConfigError as e:
                log.error("tenant %s is not trained: %s", name, e)
                return
            except Exception as e:
                log.error("tenant %s is not trained just now: %s", name, e, exc_info=not isinstance(e, SlipstreamError))
                backoff.wait(found.stop)

    def _work(self, config: Config, found: TenantThread) -> None:
        first = self.first
        turns, shown = first.seat.turns, first.metrics.tenants
        with only_one(config.checkpoints_dir), Client(self.url, self.key, tenant=config.tenant) as client:
            others = partial(self._sharers, config.tenant) if config.share else None
            worker = found.worker = self.make(config, client, first.trainer, first.gpu_lease, turns, others)
            shown[config.tenant] = worker.metrics
            try:
                if found.stop.is_set():
                    return
                check_capabilities(config, first.trainer.learner.capabilities)  # the tenant came after the start
                worker.waits_for_work()
                if worker.run() and worker.broken:
                    first.broken = True  # the process is of no use to anybody
                    first.stop.set()
            except ConfigError as e:
                with contextlib.suppress(SlipstreamError):
                    client.post_event(event("failed", reason=str(e), batch=worker.batch, failures=worker.failures + 1))
                raise
            except Stop:
                pass
            finally:
                turns.leave(worker.seat)
                del shown[config.tenant]

    def _sharers(self, name: str) -> Iterator[tuple[Config, Client]]:
        """The other tenants that have the common start now, each with a client in its place."""
        config, names = known_tenants(self.first.config)
        for other in sorted(names - {name}):
            if (own := config.tenants.get(other)) is not None and own.share:
                yield tenant_config(config, other), Client(self.url, self.key, tenant=other)
