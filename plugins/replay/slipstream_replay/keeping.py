"""Versions that a replay asks stay in the engines of their proxy while it runs, though no run needs them any more."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from slipstream.client import Client
from slipstream.contract import SERVED_STATES
from slipstream.errors import ApiError, SlipstreamError, StartError
from slipstream_replay.steps import ReplayCase, Side

log = logging.getLogger(__name__)
KEEP_SECONDS, RENEW_SECONDS = 60.0, 15.0


def models_asked(sides: Sequence[Side], cases: Iterable[ReplayCase]) -> dict[str, set[str]]:
    """Base URL → the names that are asked there."""
    found: dict[str, set[str]] = {}
    own = {step.call.trained or step.call.model for case in cases for step in case.steps}
    for side in sides:
        if not side.recorded:
            found.setdefault(side.base, set()).update({side.model} if side.model else own)
    return found


class KeptVersions:
    """Loads the versions among ``asked`` that are out of the engines, and keeps all of them there until its end. A
    server that is no Slipstream proxy is left alone. Raises ``StartError`` where one cannot be loaded.
    """

    def __init__(self, asked: dict[str, set[str]], key: str | None) -> None:
        self._asked, self._key = asked, key
        self._clients: list[Client] = []
        self._kept: list[tuple[Client, str]] = []
        self._over = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name="kept versions", daemon=True)

    def __enter__(self) -> Self:
        try:
            for base, names in self._asked.items():
                if versions := sorted(name for name in names if "@" in name):
                    self._clients.append(client := Client(base.removesuffix("/v1"), self._key))
                    for name in versions:
                        self._keep(client, name)
        except BaseException:
            self._let_go()
            raise
        if self._kept:
            self._renewing.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._renewing.ident is not None:
            self._renewing.join()
        self._let_go()

    def _keep(self, client: Client, name: str) -> None:
        try:
            known = {adapter.name: adapter for adapter in client.adapters().adapters}
        except (SlipstreamError, ValueError):
            return  # no proxy of ours
        if (adapter := known.get(name)) is None:
            return
        try:
            client.keep_adapter(name, KEEP_SECONDS)
        except ApiError as e:
            if e.status in (403, 404) and (adapter.state in SERVED_STATES or adapter.loaded):
                return  # it is there, and may stay so long
            raise StartError(f"{name} cannot be asked: {e}" + (f" ({e.fix})" if e.fix else "")) from e
        self._kept.append((client, name))

    def _renew(self) -> None:
        while not self._over.wait(RENEW_SECONDS):
            for client, name in self._kept:
                try:
                    client.keep_adapter(name, KEEP_SECONDS)
                except SlipstreamError as e:
                    log.warning("%s may be unloaded while it is asked: %s", name, e)

    def _let_go(self) -> None:
        for client, name in self._kept:
            try:
                client.keep_adapter(name, 0.0)
            except SlipstreamError as e:
                log.warning("%s stays loaded for up to %g seconds: %s", name, KEEP_SECONDS, e)
        for client in self._clients:
            client.close()
