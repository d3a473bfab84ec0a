"""Which trainer learns for a model. One at a time makes versions; others wait until it is gone.

A trainer that was paused may come back after another has taken over. So what it posts names its token, and a token
that is not the newest is refused. The check and what it guards are one transaction, or one revision of the adapters.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from slipstream.contract import LearnerAnswer, LearnerIn, ModelLearner, WaitingLearner
from slipstream_proxy.store.learning.adapters import REVISION_KEY
from slipstream_proxy.store.tables.driver import Driver, Tx
from slipstream_proxy.store.tables.tallies import get_meta, set_meta

LEARNER_KEY, VERSION_KEY = "learner/", "version/"
"""How ``t_meta`` names a model's trainer, and the highest version of it whose name was given to a writer."""
KEPT_TOKENS = 16
"""Of the starts of one trainer: an ack of the start before this one may still be on its way."""
WAITER_TIMEOUT_S = 30.0
"""Seconds after which a trainer that waited and does not ask any more is gone."""


@dataclass(slots=True)
class LearnerRow:
    worker: str
    place: str
    tokens: list[str]
    """The newest last."""
    since: float
    until: float
    epoch: int = 0
    settled: bool = True
    """False: what the trainer before this one left is not handed over yet."""
    waiting: dict[str, tuple[str, float, float]] = field(default_factory=dict)
    """Worker → its place, since when it waits, when it asked last."""

    def told(self, model: str, now: float) -> ModelLearner:
        return ModelLearner(
            model=model,
            worker=self.worker,
            place=self.place,
            since=self.since,
            until=self.until,
            waiting=[
                WaitingLearner(worker=worker, place=place, since=since)
                for worker, (place, since, asked) in sorted(self.waiting.items())
                if now - asked < WAITER_TIMEOUT_S
            ],
        )


def learner_of(tx: Tx, model: str) -> LearnerRow | None:
    found = get_meta(tx, LEARNER_KEY + model)
    return None if found is None else LearnerRow(**json.loads(found))


class LearnerTable:
    def __init__(self, db: Driver) -> None:
        self.db = db

    def take(self, model: str, wanted: LearnerIn, now: float) -> tuple[LearnerAnswer, bool]:
        """Be the trainer, stay it, wait for it, or end. → The answer, and whether all that was left is handed over."""
        with self.db.write() as tx:
            row = learner_of(tx, model)
            if row is None:
                if not wanted.seconds:
                    row = LearnerRow(wanted.worker, wanted.place, [wanted.token], now, now)
                    return LearnerAnswer(**dict(row.told(model, now)), held=False), True
                row = LearnerRow(wanted.worker, wanted.place, [wanted.token], now, now)
            mine = row.tokens[-1] in (wanted.token, *wanted.known)
            if not mine and row.until <= now and wanted.seconds:
                left = {worker: said for worker, said in row.waiting.items() if worker != wanted.worker}
                epoch = max(row.epoch + 1, int(1000 * now))  # a store that was lost began with 0 again
                row = LearnerRow(wanted.worker, wanted.place, [wanted.token], now, now, epoch, False, left)
                mine = True
                # a version of the trainer before that another proxy is about to put is looked at once more
                set_meta(tx, REVISION_KEY, str(int(get_meta(tx, REVISION_KEY) or 0) + 1))
            if mine:
                if row.tokens[-1] != wanted.token:
                    row.tokens = [*row.tokens, wanted.token][-KEPT_TOKENS:]
                row.worker, row.place, row.until = wanted.worker, wanted.place, now + wanted.seconds
            elif wanted.seconds:
                _, since, _ = row.waiting.get(wanted.worker, ("", now, now))
                row.waiting[wanted.worker] = wanted.place, since, now
            else:
                row.waiting.pop(wanted.worker, None)
            self._put(tx, model, row)
        held = mine and wanted.seconds > 0
        return LearnerAnswer(**dict(row.told(model, now)), held=held, epoch=row.epoch), row.settled

    @staticmethod
    def _put(tx: Tx, model: str, row: LearnerRow) -> None:
        set_meta(tx, LEARNER_KEY + model, json.dumps(asdict(row)))

    def settle(self, model: str, token: str) -> None:
        """What the trainer before left is handed over."""
        with self.db.write() as tx:
            row = learner_of(tx, model)
            if row is not None and row.tokens[-1] == token:
                row.settled = True
                self._put(tx, model, row)

    def all(self, now: float) -> list[ModelLearner]:
        with self.db.read() as tx:
            found = tx.all("SELECT name, value FROM t_meta WHERE starts_with(name, ?) ORDER BY name", (LEARNER_KEY,))
        return [LearnerRow(**json.loads(row)).told(name.removeprefix(LEARNER_KEY), now) for name, row in found]

    def other(self, model: str, token: str | None, now: float) -> ModelLearner | None:
        """The trainer that learns in place of the one with this token. None: that one does, or (no token) none does."""
        with self.db.read() as tx:
            row = learner_of(tx, model)
        if row is None or (row.until <= now if token is None else row.tokens[-1] == token):
            return None
        return row.told(model, now)

    def claim(self, model: str, above: int) -> int:
        """The number of a version that nobody has or was given."""
        with self.db.write() as tx:
            highest = tx.all("SELECT coalesce(max(version), 0) FROM t_adapters WHERE model = ?", (model,))[0][0]
            number = 1 + max(above, int(highest), int(get_meta(tx, VERSION_KEY + model) or 0))
            set_meta(tx, VERSION_KEY + model, str(number))
        return number
