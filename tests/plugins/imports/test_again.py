"""Each file of the corpus brought into a proxy three times: as it is, again, and with other rewards."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.support.log_corpus.files import files

from slipstream.client import AsyncClient
from slipstream_chat.report import Report
from slipstream_imports.survey import Entry, Survey
from slipstream_imports.upload import bring_in, read_log


def others(entries: Iterator[Entry]) -> Iterator[Entry]:
    """With other rewards, where an episode has one."""
    for entry in entries:
        first = dict(entry.bodies[0])
        if isinstance(reward := first.get("reward"), float):
            first["reward"] = reward + 0.125
        if isinstance(metrics := first.get("metrics"), dict):
            first["metrics"] = {name: value + 0.125 for name, value in metrics.items()}
        yield entry._replace(bodies=[first, *entry.bodies[1:]])


@pytest.mark.slow
async def test_what_came_in_is_there_when_it_comes_again_and_only_rewards_change(plane, tmp_path):
    url = str(plane.client.make_url("/"))
    for n, file in enumerate(files()):
        path = tmp_path / file.name
        path.write_bytes(file.data)
        survey = Survey()
        survey.look(read_log([path], None, Report()))
        reports = [Report() for _ in range(3)]
        async with AsyncClient(url) as client:
            # a key of its own for each file: their episodes have the same ids
            client.http.headers["x-slipstream-auth"] = json.dumps({"key": f"k{n}", "scopes": ["admin", "reward"]})
            for turn, report in enumerate(reports):
                entries = read_log([path], None, report)
                await bring_in(client, survey, others(entries) if turn == 2 else entries, report)
        first, again, other = (report.standing() for report in reports)
        assert (first["new"], again["there"]) == (file.held.episodes,) * 2, file.name
        rewarded = file.held.episodes if file.held.rewards else 0
        assert other["changed"] <= rewarded and (other["changed"] > 0) == (rewarded > 0), file.name
