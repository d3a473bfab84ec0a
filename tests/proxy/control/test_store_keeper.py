from __future__ import annotations

from tests.proxy.control.conftest import until

from slipstream_proxy.control import store_keeper
from slipstream_proxy.control.store_keeper import instance_of, open_or_none, rules_of


def test_a_data_folder_has_one_name_for_ever(tmp_path):
    assert instance_of(tmp_path) == instance_of(tmp_path)
    (tmp_path / "other").mkdir()
    assert instance_of(tmp_path / "other") != instance_of(tmp_path)


async def test_the_rules_are_those_of_the_configuration(make_plane):
    plane = await make_plane(groups={"size": 3}, trainer={"min_groups": 5}, reward={"weights": {"judge": 2.0}})
    rules = rules_of(plane.config)
    assert (rules.group_size, rules.min_groups, rules.weights) == (3, 5, {"judge": 2.0})


async def test_a_store_that_could_not_be_opened_is_used_once_it_can(make_plane, monkeypatch):
    real_sleep, broken = store_keeper.asyncio.sleep, [True]
    monkeypatch.setattr(store_keeper, "open_or_none", lambda config: None if broken else open_or_none(config))
    monkeypatch.setattr(store_keeper.asyncio, "sleep", lambda s: real_sleep(min(s, 0.05)))
    plane = await make_plane()
    await plane.call("e1", done=True)
    assert (await plane.ask("GET", "/episodes"))[0] == 503
    assert (await plane.ask("POST", "/episodes/e1/rewards", {"value": 1.0}))[0] == 200  # the spool keeps it
    broken.clear()
    await until(lambda: plane.deps.stores.current)
    assert (await plane.seen("e1"))["reward"] == 1.0
