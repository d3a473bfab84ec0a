"""What a client's model name stands for."""

from __future__ import annotations

from slipstream.config import Config
from slipstream_proxy.data.engines.models import ModelMap


def test_routes():
    models = {
        "gpt-4o": {"trained": "tiny"},
        "gpt-*": {"base": "tiny"},
        "ext": {"upstream": "http://x/v1", "api_key_env": "K", "model": "m"},
    }
    routes = ModelMap(Config(engine={"name": "tiny"}, models=models))
    assert routes.of("gpt-4o").kind == "trained" and routes.of("gpt-3").kind == "base" and routes.of("ext").model == "m"
    assert (
        routes.of("tiny").kind == "trained"
        and routes.of("tiny@3") == routes.of("tiny@3")
        and routes.of("tiny@3").kind == "base"
    )
    assert routes.names() == ["gpt-4o", "ext", "tiny"]
