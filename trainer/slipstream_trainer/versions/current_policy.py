"""Which weights the trainer has, and how they follow what is live: at a start, after a step, after a rollback."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from slipstream.config import Config
from slipstream.contract import Adapter, AdapterList, AdapterState, fallen
from slipstream.errors import ConfigError, SlipstreamError, StartError
from slipstream.shared.files import space_of
from slipstream_trainer.model.weights import Snapshot
from slipstream_trainer.timing import timed
from slipstream_trainer.versions.adapter_folder import version_of
from slipstream_trainer.versions.checkpoint import Checkpoints, CheckpointState
from slipstream_trainer.versions.common_start import COMMON_START_META, CommonStart, Offer
from slipstream_trainer.versions.publisher import Publisher
from slipstream_trainer.versions.recovery import IN_USE, Recovery, Restored, returnable
from slipstream_trainer.versions.turns import Seat

log = logging.getLogger(__name__)
HELD_META = ("distilled_from", COMMON_START_META)
"""A version whose ``meta`` has one of them was not trained from the one before it."""
FORGOTTEN_REASON = "an episode was forgotten"


class CurrentPolicy:
    """The trainer's weights by name. Every change of them is a checkpoint first."""

    def __init__(
        self,
        config: Config,
        seat: Seat,
        checkpoints: Checkpoints,
        publisher: Publisher,
        common: CommonStart | None = None,
    ) -> None:
        self.config, self.seat, self.checkpoints, self.publisher = config, seat, checkpoints, publisher
        self.common = common
        self.recovery = Recovery(config, seat, checkpoints, self._files_of)
        self.state = CheckpointState(weights=config.model_name)
        self.live = config.model_name
        self.taken: set[str] = set()
        """Adapters that were rolled back."""
        self.fallen: str | None = None
        """The one of them that these weights are, or were made from."""
        self.forgotten: set[str] = set()
        """Batches that no version may be made from."""
        self.looked = 0.0
        """When the proxy was asked last (monotonic)."""
        self.known: dict[str, Adapter] = {}
        self.held_to = ""
        """The version that the KL term holds to. Empty: what training started from."""
        self.passed_over = 0
        """The version that was live when training began from weights that were chosen in its place."""

    def advance(self, state: CheckpointState, known: AdapterList) -> None:
        """After a batch: keep, publish, and drop the checkpoints that nobody needs any more.

        ``known``: the adapters before.
        """
        self.publisher.finish()
        (snapshot, generators), self.state = self.seat.snapshot(), state
        # the next batch, which is computed meanwhile, changes weights, generators, pace and traffic
        kept = replace(state, pace=deepcopy(state.pace), traffic=deepcopy(state.traffic))
        self.publisher.beside(lambda: self._keep(snapshot, generators, kept, state, known))

    def _keep(
        self,
        snapshot: Snapshot,
        generators: dict[str, object],
        kept: CheckpointState,
        state: CheckpointState,
        known: AdapterList,
    ) -> None:
        """``kept``: ``state`` as it was when the batch had been trained on."""
        with timed(state.event.get("data", {}), "save"):
            path = self.checkpoints.save(self.seat.trainer.learner, snapshot, kept, generators)
        self.publisher.publish(path, state, again=False)
        config, limit = self.config, self.config.data.max_gb
        full = limit is not None and sum(space_of(config.root, config.adapters_dir).values()) > limit * 1e9
        self.checkpoints.prune({*returnable(known, config.model_name), state.published}, keep=1 if full else None)

    def recover(self, *, anew: bool = False) -> None:
        """Go on from the newest checkpoint, and publish what it had not; else from what is live; else anew. ``anew``:
        another trainer learned since the checkpoints here. Then from the newest version, and what was not published
        counts for nothing.
        """
        self.publisher.settle()
        found = self.recovery.newest()
        if anew:
            self._take_over(found)
            return
        if found and found.state and found.path:
            self.state = found.state
            self.publisher.publish(found.path, self.state, again=True)
        else:
            self._save_published(CheckpointState(weights=self.config.model_name))
        known = self.publisher.adapters()
        self.note(known)
        steps = (a.step or 0 for a in known.adapters if a.model == self.config.model_name)
        self.state.step = max(self.state.step, *steps, 0)
        if self._is_behind(found):
            there = "the newest checkpoint is gone" if found else "there is no checkpoint"
            self._go_on_from(self.live, (found and found.problem) or there)
        elif not self.go_back_if_taken():
            self.passed_over = version_of(self.live)
        self._hold()
        if (
            self.common is not None
            and found is None
            and not any(a.model == self.config.model_name for a in known.adapters)
        ):
            self._become(self.common.beginning)

    def consider_offer(self) -> None:
        """Of the other tenants that share: once what we have is accepted, and nothing of it waits."""
        served = self.known.get(self.live)
        accepted = served is None or served.state == AdapterState.LIVE
        if self.common is not None and accepted and not self.state.ahead and self.state.published == self.live:
            common = self.common
            self._become(lambda: common.offer(lambda: self._files_of(self.live) if served else None, self.taken))

    def _become(self, made: Callable[[], Offer | None]) -> None:
        """A version from weights that were not trained here. It goes through the gate as any other. What keeps it from
        being made keeps nobody from learning.
        """
        try:
            offer = made()
        except (SlipstreamError, OSError, RuntimeError) as e:
            log.warning("of what other tenants have learned no version is made just now: %s", e)
            return
        if offer is None or self.common is None:
            return
        try:
            with self.seat.turn() as trainer:
                trainer.learner.restore(self.seat.turns.start)
                trainer.learner.load(offer.folder)
        except (ConfigError, StartError) as e:
            log.warning("what other tenants have learned fits in no version here: %s", e)
            self.recovery.version(self.state.weights)
            return
        known = self.publisher.adapters()
        name = self.publisher.new_name(known)
        self.advance(self._version(name, meta={COMMON_START_META: offer.parents}), known)
        self.publisher.finish()
        name = self.state.weights  # it has another one if that was taken meanwhile
        self.common.became(name)
        self.publisher.post("common_start", adapter=name, tenants=offer.parents, room=round(offer.room, 3))
        self.note(self.publisher.adapters())
        self._hold()

    def _take_over(self, found: Restored | None) -> None:
        known = self.publisher.adapters()
        for path in self.checkpoints.all():
            self.checkpoints.set_told(path)
        self.state = found.state if found and found.state else self.state
        self.state.ahead, self.state.weights = 0, self.config.model_name
        self.note(known)
        ours = [a for a in known.adapters if a.model == self.config.model_name]
        self.state.step = max(self.state.step, *(a.step or 0 for a in ours), 0)
        standing = [a for a in ours if a.state in IN_USE and fallen(self.known, a.name) is None]
        newest = max(standing, key=lambda a: a.version, default=None)
        name = newest.name if newest is not None else self.live
        self._go_on_from(name, "another trainer learned for the model before")
        self.passed_over = version_of(self.live)

    def _is_behind(self, found: Restored | None) -> bool:
        """A later version is live than the one these weights are: its checkpoint is gone."""
        if not found and self.config.trainer.init_adapter:
            return False  # a first start, from weights that were chosen
        return version_of(self.live) > version_of(self.state.published)

    def look(self) -> None:
        """Was what we published taken back? Then go back too. Is there room for steps that are not published?"""
        known = self.publisher.adapters()
        self.note(known)
        if self.go_back_if_taken() or self._adopt(known):
            return
        if self.state.ahead and self.has_room(known):
            self.publish(known)

    def _adopt(self, known: AdapterList) -> bool:
        """A newer version that another made (`slipstream distill`) was accepted: go on from it. Ours would be made from
        what it has beaten, without what it learned.
        """
        accepted = any(a.name == self.live and a.state == AdapterState.LIVE for a in known.adapters)
        if not accepted or version_of(self.live) <= max(version_of(self.state.published), self.passed_over):
            return False
        self._go_on_from(self.live, f"{self.live} was accepted, which is newer than {self.state.published}")
        return True

    def has_room(self, known: AdapterList) -> bool:
        """Whether a version that is published now goes into the engines. A proxy that does not say takes all."""
        return known.room.get(self.config.model_name, True)

    def publish(self, known: AdapterList) -> None:
        """Steps that were taken without a version become one."""
        name = self.publisher.new_name(known)
        log.info("%s has room now: %d steps since %s", name, self.state.ahead, self.state.published)
        self.advance(self._version(name, batches=self.state.batches), known)

    def _version(self, name: str, **more: Any) -> CheckpointState:
        """The weights as they are become that version, without another step."""
        now = self.state
        return CheckpointState(
            step=now.step, pace=now.pace, traffic=now.traffic, base=now.published, weights=name, adapter=name, **more
        )

    def note(self, known: AdapterList) -> None:
        self.looked = time.monotonic()
        self.live = known.live.get(self.config.model_name, self.config.model_name)
        self.taken = {a.name for a in known.adapters if a.state == AdapterState.ROLLED_BACK}
        self.known = {a.name: a for a in known.adapters}
        self.fallen = fallen(self.known, self.state.published)
        self.forgotten = set(known.forgotten)

    def control(self) -> str | None:
        """The version that the gate compares the live one with, which new runs get beside it. None: there is none."""
        ours = (a.name for a in self.known.values() if a.best and a.model == self.config.model_name)
        best = next(ours, self.config.model_name)
        return best if best != self.live else None

    def go_back_if_taken(self) -> bool:
        """To weights and optimiser of the version that is live; or of the newest version, where the steps since then
        were taken on episodes of which one was forgotten.
        """
        if self.fallen is None:
            steps = self.state.ahead
            if self.forgotten.isdisjoint(self.state.unpublished):
                return False
            self._go_on_from(self.state.published, f"{FORGOTTEN_REASON} before the {steps} newest steps were published")
            return True
        taken, ours = self.fallen, self.state.weights
        made = "" if taken == ours else f", and {ours} was made from it"
        self._go_on_from(self.live, f"{taken} was rolled back{made}", taken_back=taken)
        self.fallen = None
        return True

    def undo(self) -> None:
        """To the weights and the optimiser before the step that was just computed."""
        self.publisher.finish()
        if self.recovery.version(self.state.weights).source != "checkpoint":
            self._go_on_from(self.state.published, FORGOTTEN_REASON)

    def _go_on_from(self, name: str, cause: str, **data: str) -> None:
        """Weights and optimiser of that version, or as much of them as there is: an event says what."""
        self.publisher.finish()
        found = self.recovery.version(name)
        base = found.state.base if found.state else ""
        weights = name if found.source != "start" else self.config.model_name
        before = self.state
        self._save_published(
            CheckpointState(step=before.step, pace=before.pace, traffic=before.traffic, base=base, weights=weights)
        )
        self._hold()
        kept = {"checkpoint": "its weights and optimiser", "adapter": "its weights, with a fresh optimiser"}
        what = kept.get(found.source, "the weights that training began with, with a fresh optimiser")
        level, why = (logging.ERROR, f" ({found.problem})") if found.problem else (logging.WARNING, "")
        log.log(level, "%s: going on from %s: %s%s", cause, name, what, why)
        if found.problem:
            data["problem"] = found.problem
        self.publisher.post("restored", cause=cause, adapter=name, source=found.source, step=self.state.step, **data)

    def _hold(self) -> None:
        """The KL term holds to the version that these weights were made from, if that was distilled, or came of other
        tenants. Else it would pull the policy back to what that version has left.
        """
        name = self.state.published
        while (found := self.known.get(name)) is not None and found.meta.keys().isdisjoint(HELD_META):
            name = found.parent or ""
        root = name if found is not None else ""
        if root == self.held_to or self.seat.trainer.sft or self.seat.trainer.world > 1:
            return
        try:
            files = self._files_of(root) if root else None
            with self.seat.turn() as trainer:
                trainer.learner.hold(self.seat.turns.start, files)
                self.held_to = root
        except (ConfigError, StartError) as e:
            log.warning("the KL term holds to the start of training: %s", e)

    def _files_of(self, name: str) -> Path:
        known = self.known.get(name)
        return self.publisher.shipping.fetch(name, known.sha256 if known is not None else None)

    def _save(self, state: CheckpointState) -> Path:
        self.publisher.finish()
        snapshot, generators = self.seat.snapshot()
        path = self.checkpoints.save(self.seat.trainer.learner, snapshot, state, generators)
        self.state = state
        return path

    def _save_published(self, state: CheckpointState) -> None:
        self.checkpoints.set_told(self._save(state))
