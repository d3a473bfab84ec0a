"""What people look at and nothing else needs: read from the tables that the work is done in."""

from __future__ import annotations

from slipstream_proxy.store.call_tokens import CallTokenTable
from slipstream_proxy.store.calls import CallTable
from slipstream_proxy.store.driver import Driver
from slipstream_proxy.store.gaps import GapTable
from slipstream_proxy.store.group_pages import GroupPages
from slipstream_proxy.store.groups import GroupTable
from slipstream_proxy.store.label_queue import LabelQueue
from slipstream_proxy.store.learning import LearningCurves
from slipstream_proxy.store.rewards import RewardTable


class Reports:
    def __init__(self, db: Driver, calls: CallTable, groups: GroupTable, rewards: RewardTable) -> None:
        self.groups = GroupPages(db, groups, rewards)
        self.tokens = CallTokenTable(db, calls)
        self.gaps = GapTable(db)
        self.learning = LearningCurves(db)
        self.labels = LabelQueue(db, rewards)
