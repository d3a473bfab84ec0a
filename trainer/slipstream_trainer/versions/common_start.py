"""Tenants that agree (``share = true``) have a common start: the mean of what their accepted versions change.

A new tenant begins from the others' mean. One that learns is offered how that mean has changed since, on top of its own
weights. Both are versions like any other: the tenant's own gate accepts them or takes them back. After one that was
taken back the next offer waits for twice as many of the others' steps.

The mean of weights that were trained from one start does at least as well as they do where the tasks are alike (model
soups, Wortsman et al. 2022, arXiv:2203.05482); differences of weights can be added (task arithmetic, Ilharco et al.
2023, arXiv:2212.04089).
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from slipstream.client import Client
from slipstream.config import Config
from slipstream.contract import Adapter, AdapterList, AdapterState
from slipstream.errors import SlipstreamError
from slipstream_trainer.model.adapter import Halves
from slipstream_trainer.model.combine import Weighted, check_part, combine
from slipstream_trainer.versions.shipping import AdapterShipping, Patiently

log = logging.getLogger(__name__)
COMMON_START_META = "common_start"
"""In a version's ``meta``: of how many tenants' versions it was made."""
OFFER_STEPS = 32
"""Of the others, after which there is an offer."""
MOST_OFFER_STEPS = 4096
OFFER_LOOK_S = 30.0
"""Between two looks at what the others have learned."""
MOST_PARENTS = 16
"""Versions that a mean is of: those with the most steps."""
RECORD_FILE = "common.json"
MEAN_FOLDER_NAME, NEXT_MEAN_FOLDER_NAME, OFFER_FOLDER_NAME = "mean", "mean.next", "offer"

Others = Callable[[], Iterator[tuple[Config, AbstractContextManager[Client]]]]
"""The other tenants that share: their settings, and a client in each one's place."""


class Offer(NamedTuple):
    """Weights that were not trained here."""

    folder: Path
    parents: int
    """Tenants whose versions are in it."""
    room: float
    """The share of their squared size that the rank has room for."""


class Shared(NamedTuple):
    """What another tenant gives."""

    mark: str
    """A hash of the tenant's name."""
    step: int
    folder: Path


@dataclass(slots=True)
class OfferRecord:
    """What a tenant's folder of checkpoints knows of the common start. It names nobody: the tenant's backup has it."""

    steps: dict[str, int] = field(default_factory=dict)
    """Hash of a tenant's name → its steps in the mean that is kept."""
    offered: str = ""
    """The version that came of the last offer."""
    wait: int = field(default_factory=lambda: OFFER_STEPS)
    """Steps of the others until the next one."""

    def gained(self, steps: Iterable[tuple[str, int]]) -> int:
        """How many of these there were not."""
        return sum(max(0, step - self.steps.get(mark, 0)) for mark, step in steps)


def mark_of(tenant: str) -> str:
    return hashlib.blake2b(tenant.encode(), digest_size=8).hexdigest()


def given(known: AdapterList, model: str) -> Adapter | None:
    """The version that a tenant gives: its newest accepted one."""
    ours = (a for a in known.adapters if a.model == model and a.files is not False)
    accepted = (a for a in ours if a.state == AdapterState.LIVE or (a.state == AdapterState.RETIRED and a.accepted))
    return max(accepted, key=lambda a: a.version, default=None)


class CommonStart:
    """One tenant's side of it."""

    def __init__(
        self, config: Config, others: Others, like: Halves, patiently: Patiently, stop: threading.Event
    ) -> None:
        """``like``: the policy's own weights. Only versions of such layers are taken."""
        self.config, self.others, self.like, self.patiently, self.stop = config, others, like, patiently, stop
        self.folder = config.checkpoints_dir / "common"
        self.looked = float("-inf")
        """When the others were asked last (monotonic)."""
        self._next = OfferRecord()
        """What is kept once the offer that was made last is a version."""

    def beginning(self) -> Offer | None:
        """What a tenant begins from that has learned nothing. None: nobody has anything to give."""
        found = self._shared(OfferRecord(wait=0))
        return Offer(self._mean(found), len(found), 1.0) if found else None

    def offer(self, own: Callable[[], Path | None], taken: set[str]) -> Offer | None:
        """The others' progress on top of ``own``, if they have made enough since the last time. ``own``: the folder of
        the version that is served; None: it is the base model. ``taken``: versions that were taken back.
        """
        if time.monotonic() - self.looked < OFFER_LOOK_S:
            return None
        record = self._read()
        if record.offered in taken:
            record.offered, record.wait = "", min(record.wait * 2, MOST_OFFER_STEPS)
            self._write(record)
        before = self.folder / MEAN_FOLDER_NAME
        known = before.is_dir()
        found = self._shared(record if known else OfferRecord(wait=0))
        if not found:
            return None
        now, ours = self._mean(found), own()
        if ours is None:
            return Offer(now, len(found), 1.0)
        if not known:  # what it has learned may be what they have: what they learn from now on counts
            self.became("")
            return None
        made = self.folder / OFFER_FOLDER_NAME
        shutil.rmtree(made, ignore_errors=True)
        parts: list[Weighted] = [(ours, 1.0), (now, 1.0), (before, -1.0)]
        return Offer(made, len(found), combine(parts, self.config.trainer.lora_rank, made))

    def became(self, name: str) -> None:
        """The last offer is a version: from now on counts how the mean changes from what is in it."""
        mean = self.folder / MEAN_FOLDER_NAME
        shutil.rmtree(mean, ignore_errors=True)
        (self.folder / NEXT_MEAN_FOLDER_NAME).rename(mean)
        self._write(replace(self._read(), steps=self._next.steps, offered=name))

    def _mean(self, found: list[Shared]) -> Path:
        """Of what the others give."""
        self._next = OfferRecord(steps={one.mark: one.step for one in found})
        made = self.folder / NEXT_MEAN_FOLDER_NAME
        shutil.rmtree(made, ignore_errors=True)
        combine([(one.folder, 1 / len(found)) for one in found], self.config.trainer.lora_rank, made)
        return made

    def _shared(self, since: OfferRecord) -> list[Shared]:
        """What the others give, if they have made the steps that ``since`` waits for. Who does not answer, or has what
        cannot be read, gives nothing now. Files are fetched once the steps are there.
        """
        self.looked = time.monotonic()
        with ExitStack() as clients:
            listed = [one for asked in self.others() for one in self._listed(*asked, clients)]
            if since.gained((mark, version.step or 0) for mark, version, _ in listed) < since.wait:
                return []
            found = [Shared(m, v.step or 0, folder) for m, v, ship in listed if (folder := self._fetched(v, ship))]
        if since.gained((one.mark, one.step) for one in found) < since.wait:
            return []
        return sorted(found, key=lambda one: (-one.step, one.mark))[:MOST_PARENTS]

    def _listed(
        self, config: Config, asking: AbstractContextManager[Client], clients: ExitStack
    ) -> Iterator[tuple[str, Adapter, AdapterShipping]]:
        """The version that a tenant gives, if there is one, and how its files come."""
        client = clients.enter_context(asking)
        try:
            version = given(client.adapters(), config.model_name)
        except SlipstreamError as e:
            log.info("tenant %s gives nothing to the common start just now: %s", config.tenant, e)
            return
        if version is not None:
            yield mark_of(config.tenant), version, AdapterShipping(config, client, self.patiently, self.stop)

    def _fetched(self, version: Adapter, shipping: AdapterShipping) -> Path | None:
        try:
            folder = shipping.fetch(version.name, version.sha256)
            check_part(folder, self.like)
        except (SlipstreamError, OSError) as e:
            tenant = shipping.config.tenant
            log.info("%s of the tenant %s is no part of the common start: %s", version.name, tenant, e)
            return None
        return folder

    def _read(self) -> OfferRecord:
        try:
            return OfferRecord(**json.loads((self.folder / RECORD_FILE).read_text()))
        except (OSError, ValueError, TypeError):
            return OfferRecord()

    def _write(self, record: OfferRecord) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / f"{RECORD_FILE}.part"
        part.write_text(json.dumps(asdict(record)))
        part.replace(self.folder / RECORD_FILE)
