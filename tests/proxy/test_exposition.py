"""Metrics as Prometheus's text."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slipstream_proxy.data.observe.exposition import METRIC_FAMILIES, passed_label
from slipstream_proxy.data.observe.metrics import WorkerMetrics, gather


def test_every_family_is_well_formed(tmp_path):
    text = gather(tmp_path, WorkerMetrics(), "data0.json")
    families = {f.name: f for f in text_string_to_metric_families(text)}
    for name, (kind, what, _) in METRIC_FAMILIES.items():
        family = families[name.removesuffix("_total")]
        assert (family.type, family.documentation) == (kind, what)
        assert re.fullmatch(r"(slipstream|gen_ai)_[a-z_]+", name)


@pytest.mark.parametrize(
    "path, route",
    [
        ("/v1/embeddings", "/v1/embeddings"), ("/v1/audio/speech", "/v1/audio"), ("/v1/responses/resp_1/cancel", "/v1/responses"), ("/tokenize", "/tokenize"),
        ("/v1/files-of-a-stranger", "/v1/files"), ("/v1/models/a", "/v1/models"),
    ],
)  # fmt: skip
def test_routes_that_are_passed_through(path, route):
    assert passed_label(path, 404) == f'route="{route}",status="4xx"'
