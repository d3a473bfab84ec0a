"""What status, doctor and the page say of engines that take no adapters. (The other lines: test_funnel.py.)"""

from __future__ import annotations

import re
import tomllib

from slipstream.config import Config
from slipstream.contract import AdapterUse
from slipstream.contract.funnel import Funnel
from slipstream.engines.engine import EngineSampling, NoAdapters
from slipstream_proxy.control.engines.replica import AdapterOutage, EngineReplica
from slipstream_proxy.control.status.causes.engines import engine_lines
from slipstream_proxy.control.status.causes.surroundings import Surroundings
from slipstream_proxy.control.status.causes.training import fix_untrainable
from slipstream_proxy.control.status.status import sampling_of

A, B, C = "http://a", "http://b", "http://c"
NOW = 10_000.0


def lines(up: dict[str, bool], **outages: AdapterOutage):
    around = Surroundings(
        Config(),
        NOW,
        engines=[(url, ok, None) for url, ok in up.items()],
        outages=[(f"http://{name}", o) for name, o in outages.items()],
    )
    return list(engine_lines(around))


def outage(ago: float, cause: NoAdapters = NoAdapters.NO_ROUTES, fix: str = "restart it") -> AdapterOutage:
    return AdapterOutage(cause, fix, since=NOW - ago)


def test_the_only_engine():
    (line,) = lines({A: True}, a=outage(720))
    assert (line.stage, line.cause, line.count, line.blocks) == ("engine", "no_adapter_routes", 720, True)
    assert line.sentence == (
        "the engine http://a (for 12 min) takes no adapters: it has no route /v1/load_lora_adapter; "
        "agents get the base model, and adapters wait until it takes them → restart it"
    )


def test_one_of_several():
    (line,) = lines({A: True, B: True}, a=outage(5))
    assert not line.blocks and line.text.endswith("calls with an adapter go to the other engines")


def test_the_others_are_down():
    (line,) = lines({A: True, B: False}, a=outage(5))
    assert line.blocks and "agents get the base model" in line.text


def test_engines_alike_share_a_line():
    both, other = lines({A: True, B: True, C: True}, a=outage(5), b=outage(90), c=outage(3, NoAdapters.NO_LORA, "on"))
    assert both.text.startswith("these engines http://a (for 5 s), http://b (for 90 s) take no adapters: ")
    assert (both.count, both.blocks, other.cause, other.count) == (90, True, "lora_off", 3)


def test_an_engine_that_samples_by_a_generation_config_is_said_once():
    config = Config(engine={"name": "mine"})

    def said(*samplings: EngineSampling, **models: dict) -> list:
        engines = [EngineReplica(A, sampling=s) for s in samplings]
        found = sampling_of(engines, config.model_copy(update={"models": Config(models=models).models}))
        return list(engine_lines(Surroundings(config, NOW, engines=[(A, True, None)], sampling=found)))

    own = EngineSampling({"temperature": 0.7, "repetition_penalty": 1.05})
    (line,) = said(own, own)
    assert (line.cause, line.blocks) == ("generation_config", False)
    assert "temperature 0.7, repetition_penalty 1.05" in line.text
    assert "--generation-config vllm" in line.fix
    written = re.search(r'"\] with (.*) into', line.fix)
    assert written
    ours = tomllib.loads("\n".join(written[1].split(", ")))
    assert not said(own, mine=ours)
    assert not said(own, mine={"sampling": "trust"})
    assert not said(own, mine={"repetition_penalty": 1.0}), "temperature is corrected for"
    assert not said(EngineSampling({"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.1})), "and so are filters"
    assert "does not tell" in said(EngineSampling(known=False))[0].text
    assert fix_untrainable("penalties", own.values) != fix_untrainable("penalties", {})
    assert "--generation-config" in fix_untrainable("the engine's own sampling")


def test_calls_that_waited_for_a_slot_are_said_and_long_waits_are_a_trouble():
    for seconds, trouble in ((0.4, False), (40.0, True)):
        around = Surroundings(Config(), NOW, engines=[(A, True, None)], use=AdapterUse(waits=8, wait_seconds=seconds))
        (line,) = engine_lines(around)
        assert (line.cause, line.count, line in Funnel(lines=[line]).troubles()) == ("slot_waits", 8, trouble)
        assert f"{seconds / 8:.1f} s on average" in line.text and "engine.max_loras" in str(line.fix)
