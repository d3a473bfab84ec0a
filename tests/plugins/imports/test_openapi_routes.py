"""The plug-in's routes in the OpenAPI document."""

from __future__ import annotations

from slipstream_imports.server.part import ImportsPlugin
from slipstream_proxy.control.api.openapi import document


def test_names_that_a_mapping_does_not_take_are_said():
    tags = document([*ImportsPlugin.routes])["components"]["schemas"]["ImportIn"]["properties"]["tags"]
    assert tags["propertyNames"]["minLength"] == 1, "a tag's name is any text but none"
