"""The Dockerfile, and the commands of the images with the environment of the compose file."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import tomllib

import pytest
from tests.support import ROOT
from tests.support.rendering import DEPLOY, REQUIRED, compose

DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text()


def stages() -> dict[str, list[str]]:
    """Stage name → its instructions, continuation lines joined."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in DOCKERFILE.replace("\\\n", " ").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("FROM "):
            lines = found.setdefault(line.split(" AS ")[1], [line])
        else:
            lines.append(line)
    return found


def ancestors(name: str) -> list[str]:
    chain = [name]
    while (base := stages()[chain[-1]][0].split()[1]) in stages():
        chain.append(base)
    return chain


@pytest.mark.parametrize("target", ["proxy", "judge", "trainer", "engine-cpu"])
def test_final_images_are_unprivileged_pinned_and_checked(target):
    lines = [line for stage in reversed(ancestors(target)) for line in stages()[stage]]
    assert [x for x in lines if x.startswith("USER ")][-1] == "USER 10001:10001"
    assert any(x.startswith("HEALTHCHECK") for x in stages()[target])
    assert f"COPY --from=build-{target} /opt/slipstream /opt/slipstream" in lines
    assert stages()[ancestors(target)[-1]][0] == f"FROM ${{PYTHON_IMAGE}} AS {ancestors(target)[-1]}"
    assert re.search(r"^ARG PYTHON_IMAGE=python:\d+\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}$", DOCKERFILE, re.M)


@pytest.mark.parametrize("target", ["proxy", "judge", "trainer", "engine-cpu"])
def test_each_target_installs_its_own_requirements(target):
    text = "\n".join(stages()[f"build-{target}"])
    assert set(re.findall(r"requirements/([\w-]+)\.txt", text)) == {target, "lock-hashes"}
    for install in re.findall(r"pip install [^&\n]*", text):
        assert "--no-deps" in install or "grep '^torch=='" in install, install


def test_every_compose_target_is_a_stage():
    for name, service in compose()["services"].items():
        if "build" in service:
            assert service["build"]["target"] in stages(), name
            assert (
                DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]
            ).resolve() == DEPLOY / "docker" / "Dockerfile"


def test_copied_files_exist_and_are_let_through():
    let = [x[1:] for x in (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().splitlines() if x.startswith("!")]
    for pattern in let:
        assert list(ROOT.glob(pattern)), pattern
    for line in re.findall(r"^COPY (?!--from)(?:--\S+ )?(.*)$", DOCKERFILE, re.M):
        for source in line.split()[:-1]:
            if source != ".":
                assert (ROOT / source).is_file(), source
                assert any(
                    (ROOT / source) in [*ROOT.glob(p), *(q for d in ROOT.glob(p) if d.is_dir() for q in d.rglob("*"))]
                    for p in let
                ), source


@pytest.fixture
def bin_env(tmp_path):
    """PATH with a `slipstream` that is this environment's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "slipstream"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m slipstream.cli "$@"\n')
    script.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path), "LANG": "C.UTF-8"}


def run(argv, env, cwd):
    return subprocess.run(argv, check=False, env=env, cwd=cwd, capture_output=True, text=True, timeout=120)


def entrypoint(env, cwd, *args):
    return run(["sh", str(DEPLOY / "docker" / "entrypoint.sh"), *args], env, cwd)


@pytest.mark.parametrize("name", ["proxy", "trainer", "judge"])
def test_the_command_reads_the_compose_environment(name, bin_env, tmp_path):
    """The part's own entry point, flags and environment; `config` in place of the part prints what it would run with."""
    service = compose({**REQUIRED, "JUDGE_MODEL": "openai/some-model"})["services"][name]
    (tmp_path / "key").write_text("sk-slip-of-a-test\n")
    env = {**bin_env, **{k: str(v) for k, v in service["environment"].items()}}
    if "SLIPSTREAM_API_KEY_FILE" in env:
        env["SLIPSTREAM_API_KEY_FILE"] = str(tmp_path / "key")
    command = service["command"]
    assert command[0] == name and command[1:3] == ["--config", "/etc/slipstream/slipstream.toml"]
    done = entrypoint(env, tmp_path, "config", "--config", str(DEPLOY / "slipstream.toml"), "--plain")
    assert done.returncode == 0, done.stderr
    engine = tomllib.loads(done.stdout)["engine"]
    assert engine["urls"] == ["http://engine:8000"] and engine["name"] == "agent"
    usage = entrypoint(env, tmp_path, name, "--help")
    assert usage.returncode == 0, usage.stderr
    assert all(flag in usage.stdout for flag in command if flag.startswith("--"))


def test_a_wrong_variable_ends_it_with_a_line(bin_env, tmp_path):
    done = entrypoint({**bin_env, "SLIPSTREAM_PROXY__PROT": "1"}, tmp_path, "config")
    assert done.returncode == 2 and "proxy.prot" in done.stderr and "proxy.port" in done.stderr


def test_secrets_come_from_files(bin_env, tmp_path):
    (tmp_path / "url").write_text("duckdb:////data/of-a-test.duckdb\n")
    done = entrypoint({**bin_env, "SLIPSTREAM_STORE__URL_FILE": str(tmp_path / "url")}, tmp_path, "config", "--plain")
    assert done.returncode == 0, done.stderr
    assert "of-a-test.duckdb" in done.stdout
    gone = entrypoint({**bin_env, "SLIPSTREAM_STORE__URL_FILE": str(tmp_path / "no-such")}, tmp_path, "config")
    assert gone.returncode != 0


def test_a_key_for_each_part_once(bin_env, tmp_path):
    data, secrets = tmp_path / "data", tmp_path / "secrets"
    argv = ["sh", str(DEPLOY / "docker" / "keys.sh"), str(data), str(secrets)]
    assert run(argv, bin_env, tmp_path).returncode == 0
    made = {p.name: p.read_text() for p in secrets.iterdir()}
    assert set(made) == {"agent", "judge", "trainer", "admin"} and all(
        s.startswith("sk-slip-") and s.count("\n") == 1 for s in made.values()
    )
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in secrets.iterdir())
    kept = (data / "keys.json").read_text()
    assert not any(s.strip() in kept for s in made.values()), "only hashes are kept"
    assert run(argv, bin_env, tmp_path).returncode == 0
    assert {p.name: p.read_text() for p in secrets.iterdir()} == made and (data / "keys.json").read_text() == kept

    from slipstream_proxy.keys import Keys

    scopes = {k.name: set(k.scopes) for k in Keys(data / "keys.json").list()}
    assert scopes == {
        "agent": {"inference", "reward"},
        "judge": {"judge", "reward"},
        "trainer": {"trainer"},
        "admin": {"admin"},
    }
    json.loads(kept)


def test_setup_makes_the_keys_that_the_parts_read():
    services = compose()["services"]
    script = services["setup"]["command"][0]
    assert "keys.sh /data /keys" in script
    made = set(re.findall(r'^add "\$1" "\$2" (\w+)', (DEPLOY / "docker" / "keys.sh").read_text(), re.M))
    for name in ("trainer", "judge"):
        assert services[name]["environment"]["SLIPSTREAM_API_KEY_FILE"] == f"/keys/{name}" and name in made
