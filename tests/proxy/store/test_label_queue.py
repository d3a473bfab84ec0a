"""Conformance: the cases that a label would tell most about come first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.records import NOW, call, mutation, reward

from slipstream.contract import Reward
from slipstream_labelling.server.queue import UNSCORED_UNCERTAINTY, LabelQueue, uncertainty_of


def given_(value: float, source: str = "judge", **more) -> Reward:
    return Reward(episode="e", name="judge", value=value, source=source, at=0.0, **more)


def test_the_order_of_cases():
    sure = uncertainty_of([given_(1.0)], 0.0, 1.0)
    middle = uncertainty_of([given_(0.5)], 0.0, 1.0)
    nobody = uncertainty_of([], 0.0, 1.0)
    split = uncertainty_of([given_(0.5, meta={"values": [0.0, 1.0, 1.0, 0.0]})], 0.0, 1.0)
    against = uncertainty_of([given_(1.0), given_(0.0, "agent")], 0.0, 1.0)
    assert sure == (0.0, "all agree")
    assert sure[0] < middle[0] < nobody[0] == UNSCORED_UNCERTAINTY < split[0] <= 1.0
    assert against == (1.0, "judge gave 1, agent 0")
    assert "votes differ" in split[1] and nobody[1] == "nobody has scored it"


@given(
    st.lists(
        st.tuples(
            st.floats(-1e6, 1e6), st.sampled_from(["judge", "agent"]), st.lists(st.floats(-1e6, 1e6), max_size=4)
        ),
        max_size=5,
    )
)
def test_it_is_a_number_from_0_to_1(rewards):
    made = [given_(v, source, meta={"values": list(votes)}) for v, source, votes in rewards]
    values = [r.value for r in made] or [0.0]
    score, why = uncertainty_of(made, min(values), max(values))
    assert 0.0 <= score <= 1.0 and why


def test_the_queue(store):
    store.ingest(
        [
            *(call(name, at=NOW + i, done=True) for i, name in enumerate(("agree", "differ", "unscored", "labelled"))),
            call("open", at=NOW + 9),
            call("theirs", at=NOW + 10, key="k2", done=True),
            reward("agree", 1.0),
            reward("differ", 1.0),
            reward("differ", 0.0, source="judge", name="judge"),
            reward("labelled", 0.5, source="human"),
        ],
        {},
    )
    found = LabelQueue(store).read("-")
    assert [(c.episode.id, c.uncertainty) for c in found.cases] == [("differ", 1.0), ("unscored", 0.5), ("agree", 0.0)]
    assert (found.looked_at, found.labelled) == (3, 1)
    assert [r.source for r in found.cases[0].rewards] == ["agent", "judge"]
    assert len(LabelQueue(store).read(None).cases) == 4
    assert [c.episode.id for c in LabelQueue(store).read("-", limit=1).cases] == ["differ"]
    assert LabelQueue(store).read("-", task="other").cases == []
    store.ingest([mutation("delete", {"key": "-", "episode": "differ"})], {})
    assert [c.episode.id for c in LabelQueue(store).read("-").cases] == ["unscored", "agree"]


def labelled(who: str, episode: str, value: float, n: int, name: str = "reward"):
    entry = {"id": f"a{n}", "at": NOW + n, "key": who, "name": None, "action": "label", "target": episode}
    return mutation("audit", {**entry, "detail": {"name": name, "value": value, "key": "-", "edited": False}})


def test_how_far_people_agree_who_labelled_the_same_run(store):
    runs = [call(name, at=NOW + i, done=True) for i, name in enumerate("abc")]
    given = [reward(name, 1.0, source="human") for name in "ab"]
    store.ingest(
        [*runs, *given, labelled("ann", "a", 1.0, 0), labelled("ann", "b", 1.0, 1), labelled("bob", "a", 0.0, 2)], {}
    )
    found = LabelQueue(store).read("-", second="bob")
    assert [c.episode.id for c in found.cases] == ["b"] and found.agreement.same == 0.0
    assert [c.episode.id for c in LabelQueue(store).read("-").cases] == ["c"]
    store.ingest([labelled("bob", "b", 1.0, 3), labelled("bob", "c", 1.0, 4), labelled("eve", "c", 0.5, 5, "tone")], {})
    told = LabelQueue(store).read("-").agreement
    assert (told.runs, told.people, told.pairs, told.same, told.distance) == (2, 2, 2, 0.5, 0.5)
    assert 0 < told.low < 0.5 < told.high < 1
    store.ingest([labelled("bob", "a", 1.0, 6)], {})  # on second thoughts
    assert LabelQueue(store).read(None).agreement.same == 1.0
    assert LabelQueue(store).read("nobody").agreement is None


def said(action: str, episode: str, n: int, **detail: str):
    entry = {"id": f"s{n}", "at": NOW + n, "key": "ann", "name": "Ann", "action": action, "target": episode}
    return mutation("audit", {**entry, "detail": {"key": "-", **detail}})


def test_who_is_to_label_and_what_people_said(store):
    runs = [call(name, at=NOW + i, done=True) for i, name in enumerate("ab")]
    told = [
        said("assign", "a", 0, to="Bob"),
        said("comment", "a", 1, text="the wrong mail"),
        said("assign", "b", 2, to="Bob"),
    ]
    store.ingest([*runs, *told, said("assign", "b", 3, to="")], {})
    queue = LabelQueue(store)
    (case,) = queue.read(None, assigned="bob").cases
    assert (case.episode.id, case.assigned) == ("a", "Bob")
    found = queue.comments("-", "a")
    assert found.assigned == "Bob" and [(x.by, x.text, x.to) for x in found.comments] == [
        ("Ann", None, "Bob"), ("Ann", "the wrong mail", None)
    ]  # fmt: skip
    assert queue.comments("k2", "a").comments == [] and queue.comments("-", "b").assigned is None
    store.ingest([mutation("delete", {"key": "-", "episode": "a"})], {})
    with store.db.read() as tx:
        assert not any("mail" in data or target == "a" for target, data in tx.all("SELECT target, data FROM t_audit"))
