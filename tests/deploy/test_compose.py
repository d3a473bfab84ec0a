from __future__ import annotations

import re

import pytest
import yaml
from tests.support.rendering import DEPLOY, OWN_ENV, REQUIRED, compose, flags, interpolate, is_setting

from slipstream.config import load_config
from slipstream.engines.vllm.command import engine_command
from slipstream_proxy.data.routes import health


def own_env(service: dict) -> dict[str, str]:
    return {
        k: str(v) for k, v in service.get("environment", {}).items() if k.startswith("SLIPSTREAM_") and k not in OWN_ENV
    }


def service_config(services: dict, name: str):
    return load_config(DEPLOY / "slipstream.toml", env=own_env(services[name]))


def test_it_is_a_compose_file():
    """Against the specification, by a package that carries it."""
    spec = pytest.importorskip("compose_spec")
    spec.PyCompose.from_yaml(yaml.safe_dump(compose()))


def test_that_check_can_fail():
    spec = pytest.importorskip("compose_spec")
    wrong = compose()
    wrong["services"]["proxy"]["imagee"] = "x"
    with pytest.raises(ValueError, match="imagee"):
        spec.PyCompose.from_yaml(yaml.safe_dump(wrong))


def test_the_parts_are_there_and_in_their_profiles():
    services = compose()["services"]
    assert {name: s.get("profiles", []) for name, s in services.items()} == {
        "setup": [], "proxy": [], "postgres": [], "prometheus": [], "grafana": [], "engine": ["gpu"], "trainer": ["gpu"],
        "engine-cpu": ["cpu"], "trainer-cpu": ["cpu"], "judge": ["judge"],
    }  # fmt: skip


@pytest.mark.parametrize("missing", sorted(REQUIRED))
def test_passwords_have_no_default(missing):
    with pytest.raises(AssertionError, match=missing):
        compose({k: v for k, v in REQUIRED.items() if k != missing})


def test_the_example_env_names_every_variable():
    used = set(re.findall(r"\$\{(\w+):", (DEPLOY / "compose.yaml").read_text())) - {"TORCH_ARGS"}
    offered = dict(
        line.split("=", 1)
        for line in (DEPLOY / ".env.example").read_text().splitlines()
        if line and not line.startswith("#")
    )
    assert set(offered) == used
    defaults = dict(re.findall(r"\$\{(\w+):-([^}]*)\}", (DEPLOY / "compose.yaml").read_text()))
    assert {k: offered[k] for k in defaults if k in offered} == {k: v for k, v in defaults.items() if k in offered}


def test_volumes_and_bind_mounts_resolve():
    tree = compose()
    named = set()
    for name, service in tree["services"].items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), f"{name}: {source}"
            else:
                named.add(source)
    assert named == set(tree["volumes"])


def test_dependencies_and_health_checks_fit():
    services = compose()["services"]
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            assert other in services, f"{name} waits for {other}"
            if how["condition"] == "service_healthy":
                assert "test" in services[other]["healthcheck"], (
                    f"{name} waits for the health of {other}, which is not checked"
                )
            assert not services[other].get("profiles") or services[other]["profiles"] == service.get("profiles")


def test_nothing_but_the_proxy_can_be_published_beyond_loopback():
    for name, service in compose({**REQUIRED, "BIND": "0.0.0.0"})["services"].items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:") or name == "proxy", f"{name} publishes {port}"
    assert compose()["services"]["proxy"]["ports"] == ["127.0.0.1:8100:8100"]


def test_own_services_run_without_rights():
    services = compose()["services"]
    for name in ("proxy", "trainer", "trainer-cpu", "judge", "engine", "engine-cpu"):
        s = services[name]
        assert s["read_only"] and s["cap_drop"] == ["ALL"] and s["security_opt"] == ["no-new-privileges:true"], name
        assert s.get("user") == ("10001:10001" if name == "engine" else None), "our images' own user is unprivileged"


NO_DIGEST = {"vllm/vllm-openai:v0.32.0"}
"""No public source says its digest: `docker buildx imagetools inspect` does, where images can be reached."""


def test_images_are_pinned():
    for name, service in compose()["services"].items():
        image = service["image"]
        assert re.fullmatch(r"[\w./-]+(:v?\d+\.\d+[\w.-]*|@sha256:[0-9a-f]{64})", image), f"{name}: {image}"
        ours = "build" in service or image.startswith("slipstream-")
        assert "@sha256:" in image or ours or image in NO_DIGEST, f"{name}: {image} may change under its tag"


def test_environment_names_are_settings():
    for name, service in compose()["services"].items():
        for variable in service.get("environment", {}):
            if variable.startswith("SLIPSTREAM_") and variable not in OWN_ENV:
                assert is_setting(variable), f"{name}: {variable}"
    assert not is_setting("SLIPSTREAM_PROXY__PORTT")


@pytest.mark.parametrize("name", ["proxy", "trainer", "trainer-cpu", "judge"])
def test_the_effective_configuration_is_one(name):
    services = compose({**REQUIRED, "JUDGE_MODEL": "openai/some-model"})["services"]
    config = service_config(services, name)
    assert (
        config.engine.urls == ["http://engine:8000"]
        and config.model_name == "agent"
        and str(config.adapters_dir) == "/adapters"
    )
    mounts = {v.split(":")[1] for v in services[name]["volumes"]}
    if name != "judge":
        assert {"/data", "/adapters"} <= mounts
    assert (
        "/etc/slipstream/slipstream.toml" in mounts and "/etc/slipstream/slipstream.toml" in services[name]["command"]
    )
    if name == "proxy":
        assert config.proxy.host == "0.0.0.0" and config.store_url.startswith(
            "postgresql://slipstream:pw-of-a-test@postgres:5432/"
        )
        assert services["proxy"]["ports"][0].endswith(f":{config.proxy.port}")
    else:
        assert f"http://proxy:{service_config(services, 'proxy').proxy.port}" in services[name]["command"]
    if name == "judge":
        assert (
            config.judge.model == "openai/some-model" and config.judge.api_key_env in services["judge"]["environment"]
        )


@pytest.mark.parametrize("name, gpu", [("engine", True), ("engine-cpu", False)])
def test_vllm_gets_what_up_gives_it(name, gpu):
    services = compose()["services"]
    command = engine_command(service_config(services, "proxy"), gpu=gpu)
    reached = {"--host": "0.0.0.0"}  # noqa: S104 - by the other containers
    assert flags(services[name]["command"]) == {**flags(command.argv[3:]), **reached}
    environment = {k: str(v) for k, v in services[name]["environment"].items()}
    wanted = {k: v for k, v in command.env.items() if k != "LD_PRELOAD"}
    assert {k: environment.get(k) for k in wanted} == wanted
    launcher = services[name].get("entrypoint") or ["python", "-m", "vllm.entrypoints.openai.api_server"]
    assert launcher[1:] == command.argv[1:3]


def test_engine_names_lead_to_the_profiles_engine():
    services = compose()["services"]
    assert services["engine-cpu"]["networks"]["default"]["aliases"] == ["engine"]
    assert services["trainer-cpu"]["networks"]["default"]["aliases"] == ["trainer"]


def test_prometheus_scrapes_the_ports_that_the_parts_open():
    services = compose()["services"]
    config = service_config(services, "proxy")
    jobs = {
        j["job_name"]: j["static_configs"][0]["targets"][0]
        for j in yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    }
    assert jobs == {
        "slipstream-proxy": f"proxy:{config.proxy.port}", "slipstream-judge": f"judge:{config.judge.metrics_port}",
        "slipstream-trainer": f"trainer:{config.trainer.metrics_port}", "vllm": "engine:8000", "prometheus": "127.0.0.1:9090",
    }  # fmt: skip
    assert config.judge.metrics_host == config.trainer.metrics_host == "0.0.0.0"


def test_health_checks_ask_routes_that_exist():
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text()
    asked = set(re.findall(r"127\.0\.0\.1:(\d+)(/\w+)", dockerfile))
    assert asked == {("8100", "/readyz"), ("9101", "/metrics"), ("9102", "/metrics"), ("8000", "/health")}
    import inspect

    assert '"/readyz"' in inspect.getsource(health.HealthRoutes.answer)


def test_an_odd_variable_is_refused():
    with pytest.raises(AssertionError):
        interpolate("a: $HOME", {})
