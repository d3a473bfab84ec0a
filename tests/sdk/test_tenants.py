from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.client import Client
from slipstream.config import Config, load_config
from slipstream.contract import Headers
from slipstream.errors import ConfigError
from slipstream.settings.tenants import TENANTS_LIMIT
from slipstream.tenants import tenant_config


def read(tmp_path: Path, text: str) -> Config:
    file = tmp_path / "slipstream.toml"
    file.write_text(text)
    return load_config(file, env={})


def test_without_tenants_there_is_one(tmp_path):
    config = read(tmp_path, "")
    assert (config.tenant, config.tenants, tenant_config(config, "")) == ("", {}, config)


def test_what_is_a_tenants_own_is_apart(tmp_path):
    config = read(
        tmp_path,
        """
        [adapters]
        dir = "shared"
        [store]
        url = "duckdb:////somewhere/else.duckdb"
        archive = "old"
        [tenants."acme"]
        [tenants."umbrella"]
        """,
    )
    found = [config, *(tenant_config(config, name) for name in config.tenants)]
    for own in (
        "data_dir",
        "store_url",
        "socket",
        "spool_dir",
        "adapters_dir",
        "checkpoints_dir",
        "tenant",
    ):
        assert len({str(getattr(one, own)) for one in found}) == 3, own
    assert len({one.store.archive for one in found}) == 3
    assert found[1].root == config.root / "tenants" / "acme"
    assert found[1].adapters_dir.is_relative_to(config.adapters_dir)
    assert {one.keys_file for one in found} == {config.root / "keys.json"}
    assert found[1].tenants == {}


def test_each_tenant_has_a_schema_of_its_own():
    config = Config.model_validate({"store": {"url": "postgresql://u:p@host/db?sslmode=require"}})
    urls = {name: tenant_config(config, name).store_url for name in ("a-b", "ab")}
    assert urls["a-b"] == "postgresql://u:p@host/db?sslmode=require&options=-csearch_path%3Dslipstream_a_b"
    assert urls["ab"].endswith("options=-csearch_path%3Dslipstream_ab")
    again = Config.model_validate({"store": {"url": "postgresql://u:secret@host/db?options=-cwork_mem%3D1MB"}})
    with pytest.raises(ConfigError, match="has options") as e:
        tenant_config(again, "ab")
    assert "secret" not in str(e.value)


def test_settings_of_its_own_lie_over_those_of_all(tmp_path):
    config = read(
        tmp_path,
        """
        [judge]
        model = "openai/gpt-x"
        dollars_per_day = 7.0
        [adapters]
        keep = 9
        [gate]
        settle = 77
        [tenants."acme".gate]
        mode = "manual"
        [tenants."acme".judge]
        name = "taste"
        [tenants."acme".quota]
        judge_dollars_per_day = 2.0
        adapters = 3
        concurrency = 4
        """,
    )
    acme = tenant_config(config, "acme")
    assert (acme.gate.settle, acme.gate.mode, config.gate.mode) == (77, "manual", "guard")
    assert (acme.judge.model, acme.judge.dollars_per_day, acme.adapters.keep) == ("openai/gpt-x", 2.0, 3)
    assert (config.reward.weights, acme.reward.weights) == ({"judge": 1.0}, {"taste": 1.0})
    assert acme.quota.counts_calls and not config.quota.counts_calls
    assert tenant_config(config, "other").judge == config.judge
    # what a child reads is the same, though all of it is set by then
    handed = Config.model_validate_json(config.model_dump_json())
    assert tenant_config(handed, "acme") == acme


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[tenants."acme".engine]\nmodel = "x"', "engine is the same for all tenants: set it outside of [tenants]"),
        ('[tenants."acme".proxy]\nport = 1', "proxy.port is the same for all tenants"),
        ('[tenants."acme".trainer]\nlora_rank = 8', "trainer.lora_rank is the same for all tenants"),
        ('[tenants."acme".store]\nurl = "duckdb:///x"', "store.url is the same for all tenants"),
        ('[tenants."acme".judge]\nmetrics_port = 1', "judge.metrics_port is the same for all tenants"),
        ('[tenants."acme".gate]\nmoed = "off"', 'tenants."acme".gate.moed: Extra inputs are not permitted'),
        ('[tenants."acme".quota]\ncalls_per_day = 0', "tenants.acme.quota.calls_per_day: Input should be greater than"),
        ('[tenants."Acme"]', "tenants.Acme: String should match pattern"),
        ("[engine]\nshare = true\n[tenants.acme]", "engine.share = true lets the engine sleep"),
        ('tenant = "acme"', 'tenant is no setting: an empty table [tenants."NAME"] declares one'),
        ("share = true\n[tenants.acme]", 'share is a tenant\'s, and nobody else has one: set tenants."NAME".share'),
        ("[quota]\ncalls_per_day = 1", 'quota is a tenant\'s, and nobody else has one: set tenants."NAME".quota'),
        ('[engine]\nurls = ["ftp://x"]', "ftp://x is no engine's address: write http://HOST:PORT"),
        ("\n".join(f"[tenants.t{n}]" for n in range(10_000)), f"10,000 tenants are more than {TENANTS_LIMIT}"),
    ],
)
def test_what_cannot_be_is_named_with_its_fix(tmp_path, text, said):
    with pytest.raises(ConfigError) as e:
        read(tmp_path, text)
    assert said in str(e.value) and "slipstream.toml" in str(e.value)


@pytest.mark.parametrize("name", ["", "-a", "A", "a.b", "a/b", "..", "a" * 33, "a\n", "ä"])
def test_a_client_names_a_tenant_that_can_be(name, monkeypatch):
    monkeypatch.setenv("SLIPSTREAM_TENANT", "from-outside")
    if not name:
        assert Headers.TENANT not in Client(tenant="").http.headers
        return
    with pytest.raises(ConfigError, match="no tenant's name"):
        Client(tenant=name)


def test_a_client_says_in_whose_place_it_asks(monkeypatch):
    assert Client(tenant="acme").http.headers[Headers.TENANT] == "acme"
    assert Headers.TENANT not in Client().http.headers
    monkeypatch.setenv("SLIPSTREAM_TENANT", "from-outside")
    assert Client().http.headers[Headers.TENANT] == "from-outside"
