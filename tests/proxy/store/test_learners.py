"""One trainer learns for a model: whoever is paused, restarted, copied or cut off when."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from uuid import uuid4

import pytest
from tests.support.records import rules

from slipstream.contract import LearnerIn
from slipstream_proxy.store import open_store
from slipstream_proxy.store.write.learners import LearnerTable

TTL_S = 30.0


@dataclass
class Folder:
    """A trainer's folder, and the process that works in it."""

    name: str
    tokens: list[str] = field(default_factory=list)
    token: str = ""
    held: bool = False
    """As the process knows: its last answer."""
    epoch: int = 0

    def start(self) -> list[str]:
        known, self.token, self.held = self.tokens[-16:], uuid4().hex, False
        self.tokens.append(self.token)
        return known


def ask(table: LearnerTable, folder: Folder, now: float, known: list[str] | None = None, seconds: float = TTL_S):
    wanted = LearnerIn(worker=folder.name, place=folder.name, token=folder.token, known=known or [], seconds=seconds)
    return table.take("m", wanted, now)[0]


@pytest.mark.parametrize("seed", range(2))
def test_at_most_one_token_is_taken_whatever_happens(store, seed: int) -> None:
    """Answers that are lost, pauses longer than a lease, restarts, and a copy of a folder."""
    dice, table, now = random.Random(seed), store.learners, 1000.0
    folders = [Folder("a"), Folder("b")]
    owner, epoch = "", 0
    for _ in range(150):
        now += dice.choice((0.1, 1.0, 5.0, 5.0, 40.0))
        f = dice.choice(folders)
        what = dice.choices(("renew", "start", "copy", "end"), (8, 2, 0.3, 1))[0]
        if what == "copy" and len(folders) < 4:
            folders.append(Folder(f"{f.name}c", list(f.tokens)))
            continue
        known = f.start() if what == "start" or not f.token else None
        answer = ask(table, f, now, known, 0.0 if what == "end" else TTL_S)
        if dice.random() < 0.9:  # else the answer is lost
            f.held = answer.held
        good = [x for x in folders if x.token and table.other("m", x.token, now) is None]
        assert len(good) <= 1, "two trainers' posts are taken"
        if answer.held:
            assert good == [f]
            assert answer.epoch >= epoch
            if not owner:
                owner = f.name
            assert (answer.epoch > epoch) <= (answer.since == now), "an epoch begins with a take-over alone"
            epoch = answer.epoch
        elif what != "end":
            assert [w.worker for w in answer.waiting if w.worker == f.name], "who waits is named"
            assert answer.until > now, "nobody waits for one that is gone"


def test_a_paused_trainer_is_fenced_and_waits_and_its_restart_too(store) -> None:
    table, a, b = store.learners, Folder("a"), Folder("b")
    first = ask(table, a, 0.0, a.start())
    assert first.held and first.epoch == 0
    waits = ask(table, b, 10.0, b.start())
    assert not waits.held and waits.worker == "a" and [w.worker for w in waits.waiting] == ["b"]
    assert table.other("m", None, 10.0) is not None, "who names no token gets nothing while one learns"
    taken = ask(table, b, 31.0)
    assert taken.held and taken.epoch > first.epoch
    assert table.other("m", a.token, 31.0) == table.all(31.0)[0] and table.other("m", b.token, 31.0) is None
    assert not ask(table, a, 32.0).held and not ask(table, a, 33.0, a.start()).held
    assert [w.worker for w in table.all(33.0)[0].waiting] == ["a"]
    ask(table, b, 34.0, seconds=0.0)
    again = ask(table, a, 34.1)
    assert again.held and again.epoch > taken.epoch


def test_the_same_folder_goes_on_at_once_without_a_new_epoch(store) -> None:
    table, a = store.learners, Folder("a")
    assert ask(table, a, 0.0, a.start()).held
    a.start()  # killed before the proxy knew this token
    answer = ask(table, a, 1.0, a.start())
    assert answer.held and answer.epoch == 0


def test_names_are_given_once_by_two_proxies_of_one_store(url: str) -> None:
    one, two = (open_store(url, rules(), instance=i) for i in ("1", "2")) if url.startswith("post") else (None, None)
    stores = [s for s in (one, two) if s] or [open_store(url, rules())]
    try:
        found = [stores[n % len(stores)].learners.claim("m", 7 if n == 3 else 0) for n in range(8)]
        assert found == sorted(set(found)) and found[3] > 7
        assert stores[0].learners.claim("other", 0) == 1
    finally:
        for s in stores:
            s.close()
