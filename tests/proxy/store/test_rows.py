"""Rows have the columns of their tables, in order."""

from __future__ import annotations

import pytest

from slipstream_proxy.store.tables import rows, schema

TABLES = {
    "t_calls_none": rows.CallRow._fields,
    "t_episodes": rows.EPISODE_FIELDS,
    "t_rewards": rows.RewardRow._fields,
    "t_pins": rows.PinRow._fields,
    "t_groups": rows.GroupRow._fields,
    "t_batches": rows.BatchRow._fields,
    "t_members": rows.MemberRow._fields,
}


@pytest.mark.parametrize("table", TABLES)
def test_a_row_has_the_columns_of_its_table(table):
    assert TABLES[table] == tuple(schema.TABLE_COLUMNS[table])


def test_an_episode_as_users_see_it():
    row = rows.EpisodeRow("k/e1", "k", "e1", tags='{"a":"b"}', arm="odd", state="done", grp="g1")
    shown = row.public()
    assert (shown.id, shown.key, shown.tags, shown.arm, shown.state, shown.group) == (
        "e1",
        "k",
        {"a": "b"},
        "live",
        "done",
        "g1",
    )


def test_a_reward_as_users_see_it():
    row = rows.RewardRow("m1", 1, "k/e", "c1", "judge", "ruler", 0.5, "why", None, '{"x":1}', 9.0)
    shown = row.public("m@1")
    assert (shown.episode, shown.call, shown.value, shown.meta, shown.adapter) == ("e", "c1", 0.5, {"x": 1}, "m@1")
