"""Conformance: sets of cases."""

from __future__ import annotations

from tests.support.records import NOW, call, mutation

from slipstream.contract import EpisodeDetail


def copy_of(store, episode, *, key="k") -> str:
    (found,) = store.episodes.many([(key, episode)], tokens=True, form="deltas").values()
    return found.model_dump_json()


def detail(episode: str, reward: float, *, key: str = "k", tags: dict[str, str] | None = None) -> str:
    return EpisodeDetail(
        id=episode, key=key, task="t", split="train", tags=tags or {}, model="m", adapter=None, state="done", started=NOW,
        ended=NOW, calls=0, reward=reward,
    ).model_dump_json()  # fmt: skip


def case(name, version, text, op="case"):
    body = EpisodeDetail.model_validate_json(text)
    data = {"set": name, "version": version, "key": body.key, "episode": body.id}
    return mutation(op, data | ({"text": text} if op == "case" else {}))


def ids(store, name, version=None):
    page = store.cases.page(name, version, "", 100, whole=True)
    return {c.episode: c.reward for c in page.cases}


def test_every_version_of_a_set_can_be_read(store):
    store.ingest([case("s", 1, detail("a", 0.0)), case("s", 1, detail("b", 1.0))], {})
    store.ingest([case("s", 2, detail("a", 0.5))], {})  # scored anew
    store.ingest([case("s", 3, detail("b", 1.0), op="uncase")], {})
    store.ingest([case("s", 4, detail("a", 0.5))], {})  # nothing is another
    assert [ids(store, "s", v) for v in (1, 2, 3, None)] == [
        {"a": 0.0, "b": 1.0},
        {"a": 0.5, "b": 1.0},
        {"a": 0.5},
        {"a": 0.5},
    ]
    (found,) = store.cases.sets()
    assert (found.name, found.version, found.cases) == ("s", 3, 1)
    first = store.cases.page("s", 1, "", 1, whole=False)
    assert [c.episode for c in first.cases] == ["a"]
    assert [c.episode for c in store.cases.page("s", 1, first.next, 1, whole=False).cases] == ["b"]
    store.ingest([mutation("caseset", {"set": "s"})], {})
    assert store.cases.sets() == [] and store.cases.page("s", None, "", 1, whole=True) is None


def test_a_case_outlives_its_days_and_ends_with_forgetting(store):
    store.ingest([call("a", key="k", at=NOW - 40 * 86400), call("b", key="k", at=NOW - 40 * 86400)], {})
    store.ingest([case("s", 1, copy_of(store, "a")), case("s", 1, copy_of(store, "b"))], {})
    for day in store.archive.days():
        store.archive.drop(day)
    assert [len(e.call_list) for e in store.episodes.many([("k", "a")]).values()] == [0]
    page = store.cases.page("s", None, "", 10, whole=True)
    assert [len(c.detail.call_list) for c in page.cases] == [1, 1] and page.cases[0].detail.call_list[0].prompt_ids
    assert store.cases.named(None, ["a"], {}) == [("k", "a")]
    assert [d.id for d in store.cases.whole("s", 1, [("k", "b"), ("k", "none")])] == ["b"]
    gone = store.forget([("k", "a")], NOW)
    assert (gone.names, gone.cases) == ([("k", "a")], ["s"])
    assert set(ids(store, "s")) == set(ids(store, "s", 1)) == {"b"}
    store.ingest([case("s", 2, detail("a", 1.0))], {})  # its tombstone swallows what is still to come
    assert set(ids(store, "s")) == {"b"}


def test_what_people_labelled_and_a_set_lacks(store):
    given = {"key": "k", "value": 1.0, "name": "taste", "source": "human"}
    marks = [mutation("reward", {"key": "k", "episode": e, "reward": given | {"key": None}}) for e in ("a", "b")]
    ends = [mutation("done", {"key": "k", "episode": e}) for e in ("a", "b", "c")]
    store.ingest([*(call(e, key="k", trained="m", model="m") for e in ("a", "b", "c")), *marks, *ends], {})
    model = store.episodes.many([("k", "a")])["k", "a"].model
    assert set(store.cases.labelled(model, "s", 9)) == {("k", "a"), ("k", "b")}
    store.ingest([case("s", 1, copy_of(store, "a"))], {})
    assert store.cases.labelled(model, "s", 9) == [("k", "b")] and store.cases.labelled("other", "s", 9) == []


def test_a_rebuilt_store_has_the_same_cases(opened):
    log = [
        call("a", key="k"),
        case("s", 1, detail("a", 0.0, tags={"user": "ann"})),
        case("s", 1, detail("b", 0.0, key="j")),
        case("s", 2, detail("b", 0.0, key="j"), op="uncase"),
        case("t", 1, detail("c", 1.0)),
        mutation("delete", {"key": "k", "episode": "c"}),
    ]
    one = opened()
    for item in log:
        one.ingest([item], {})
    before = [one.cases.page(s.name, v, "", 10, whole=True) for s in one.cases.sets() for v in (1, 2)]
    with one.db.write() as tx:  # all is gone
        for table in ("t_cases", "t_case_sets", "t_episodes", "t_seen", "t_erasing"):
            tx.run(f"DELETE FROM {table}")
    one.close()
    two = opened()
    two.ingest(log, {})
    after = [two.cases.page(s.name, v, "", 10, whole=True) for s in two.cases.sets() for v in (1, 2)]
    strip = {"set": {"changed"}, "cases": {"__all__": {"added"}}}
    assert [p.model_dump(exclude=strip) for p in after] == [p.model_dump(exclude=strip) for p in before]
    assert ids(two, "s") == {"a": 0.0} and two.cases.named(None, [], {"user": "ann"}) == [("k", "a")]
