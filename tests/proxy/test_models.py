"""What a client's model name stands for."""

from __future__ import annotations

from tests.support.dataplane import ASK, parsed, post

from slipstream.config import Config
from slipstream_proxy.data.engines.models import ModelMap, ModelTarget


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
    assert routes.names() == ["tiny", "gpt-4o", "ext"], "some clients take the first one"
    upstream = {"a": {"upstream": "http://x/v1"}, "tiny": {"upstream": "http://x/v1"}, "mine": {"trained": "tiny"}}
    assert ModelMap(Config(engine={"name": "tiny"}, models=upstream)).names() == ["mine", "tiny", "a"]


async def test_a_name_replaces_the_sampling_of_clients_that_cannot_set_it(start, fake):
    models = {"tiny": {"temperature": 1.0, "top_p": 1.0}, "cold": {"base": "tiny", "temperature": 0.5, "top_k": 3}}
    proxy = await start(models=models)
    greedy = {**ASK, "temperature": 0, "top_p": 0.95, "max_tokens": 5}
    for path in ("/v1/chat/completions", "/v1/messages"):
        _, headers, _ = await post(proxy.url, greedy, path)
        assert headers["x-slipstream-sampling"] == "temperature=1.0, top_p=1.0"
        assert headers["x-slipstream-trainable"] == "yes"
        assert (fake.seen[-1][0]["temperature"], fake.seen[-1][0]["top_p"]) == (1.0, 1.0)
    assert [parsed(frame)[1].untrainable for frame in await proxy.record(2)] == [None, None]
    _, headers, _ = await post(proxy.url, {**ASK, "model": "cold"})
    assert headers["x-slipstream-sampling"] == "temperature=0.5, top_k=3" and fake.seen[-1][0]["top_k"] == 3
    assert "x-slipstream-sampling" not in (await post((await start()).url, greedy))[1]


def test_the_base_model_can_be_asked_for_whatever_adapter_is_live():
    models = ModelMap(
        Config.model_validate(
            {
                "engine": {"name": "policy"},
                "models": {
                    "*": {"trained": "policy", "temperature": 1.0},
                    "big": {"upstream": "http://big/v1", "api_key_env": "KEY"},
                },
            }
        )
    )
    for name in ("policy@base", "@base", "anything@base"):
        assert models.of(name) == ModelTarget("base", "policy"), "nothing replaces its sampling either"
    assert models.of("big@base") == ModelTarget("upstream", "big", upstream="http://big/v1", key_env="KEY")
    assert models.of("policy").kind == "trained"


async def test_a_share_of_greedy_episodes_explores_and_all_their_calls_do(start, fake):
    proxy = await start(models={"tiny": {"explore": "temperature", "explore_share": 0.5}})
    hot = {}
    for n in range(40):
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses"):
            ask = {**ASK, "input": "hi", "temperature": 0, "top_p": 0.9, "max_tokens": 5}
            ask = {
                k: v for k, v in ask.items() if k not in (("messages", "max_tokens") if "resp" in path else ("input",))
            }
            _, headers, _ = await post(proxy.url, ask, path, {"x-slipstream-episode": f"e{n}"})
            explored = headers.get("x-slipstream-sampling") == "temperature=1.0; explore"
            assert headers["x-slipstream-trainable"] == ("yes" if explored else "no; temperature 0")
            seen = fake.seen[-1][0]
            assert (seen["temperature"], seen["top_p"]) == ((1.0, 1.0) if explored else (0, 0.9))
            assert hot.setdefault(n, explored) is explored, "an episode explores as a whole"
    assert 8 < sum(hot.values()) < 32
    recorded = [parsed(frame) for frame in await proxy.record(120)]
    assert {h.episode for h, p in recorded if p.untrainable is None} == {f"e{n}" for n in hot if hot[n]}
    assert all(h.tags == ({"explore": "temperature"} if hot[int(h.episode[1:])] else {}) for h, _ in recorded)
    assert proxy.plane.metrics.values["slipstream_explored_calls_total", ""] == 3 * sum(hot.values())


async def test_what_trains_as_it_is_asked_or_never_does_is_left_alone(start, fake):
    proxy = await start(models={"tiny": {"explore": "temperature", "explore_share": 1.0, "explore_temperature": 0.8}})
    greedy = {**ASK, "temperature": 0}
    for ask, headers in (
        ({**ASK, "temperature": 0.7}, {}),
        ({**greedy, "response_format": {"type": "json_object"}}, {}),
        (greedy, {"x-slipstream-split": "eval"}),
        ({**greedy, "model": "tiny@base"}, {}),
    ):
        _, got, _ = await post(proxy.url, ask, headers=headers)
        assert "x-slipstream-sampling" not in got and fake.seen[-1][0]["temperature"] == ask["temperature"]
    _, got, _ = await post(proxy.url, greedy)
    assert got["x-slipstream-sampling"] == "temperature=0.8; explore" and fake.seen[-1][0]["temperature"] == 0.8


async def test_an_explored_call_has_no_seed_in_whatever_format_it_comes(start, fake):
    proxy = await start(models={"tiny": {"explore": "temperature", "explore_share": 1.0}})
    plain = {**ASK, "temperature": 0, "seed": 42, "max_tokens": 5}
    config = {"temperature": 0, "topP": 0.5, "seed": 42}
    google = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}], "generationConfig": config}
    responses = {"model": "tiny", "input": "hi", "temperature": 0, "seed": 42}
    place = "/v1beta/models/tiny:generateContent"
    for path, ask in (
        ("/v1/chat/completions", plain),
        ("/v1/messages", plain),
        ("/v1/responses", responses),
        (place, google),
    ):
        _, got, _ = await post(proxy.url, ask, path)
        seen = fake.seen[-1][0]
        assert (got["x-slipstream-trainable"], "seed" in seen, seen["temperature"]) == ("yes", False, 1.0), path
        assert got["x-slipstream-sampling"] == "temperature=1.0, seed=none; explore" and seen.get("top_p", 1.0) == 1.0
    for own in ({"temperature": 0.7, "seed": 42}, {"temperature": 0, "responseMimeType": "application/json"}):
        _, got, _ = await post(proxy.url, {**google, "generationConfig": own}, place)
        assert "x-slipstream-sampling" not in got and fake.seen[-1][0]["temperature"] == own["temperature"]
    assert fake.seen[-2][0]["seed"] == 42
