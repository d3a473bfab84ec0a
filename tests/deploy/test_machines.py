"""systemd units and SkyPilot's files."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess

import pytest
import yaml
from tests.support.rendering import DEPLOY, OWN_ENV, flags, is_setting

from slipstream.cli import all_commands, build_parser
from slipstream.config import load_config
from slipstream.engines.vllm.command import engine_command

SYSTEMD, SKY = DEPLOY / "systemd", DEPLOY / "skypilot"
UNITS = sorted(SYSTEMD.glob("*.service"))


class _Unit(dict):
    """systemd's files repeat keys: values are lists."""

    def __setitem__(self, key, value):
        if isinstance(value, list) and key in self:
            self[key].extend(value)
        else:
            super().__setitem__(key, value)


def unit(path):
    parser = configparser.RawConfigParser(strict=False, dict_type=_Unit, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(path)
    return {s: {k: v.splitlines() for k, v in parser[s].items()} for s in parser.sections()}


def env_file():
    lines = (SYSTEMD / "slipstream.env").read_text().splitlines()
    return dict(x.split("=", 1) for x in lines if x and not x.startswith("#"))


def config():
    return load_config(SYSTEMD / "slipstream.toml", env={k: v for k, v in env_file().items() if k not in OWN_ENV})


@pytest.mark.parametrize("path", UNITS, ids=lambda p: p.stem)
def test_units_are_hardened_and_come_back(path):
    read = unit(path)
    service = {k: v[-1] if v else "" for k, v in read["Service"].items()}
    assert service["User"] == "slipstream" and service["Restart"] == "always" and service["NoNewPrivileges"] == "yes"
    assert service["ProtectSystem"] == "strict" and service["ReadWritePaths"] == str(config().data_dir)
    assert service["CapabilityBoundingSet"] == "" and service["SystemCallFilter"] == "~@privileged"
    assert read["Unit"]["PartOf"] == ["slipstream.target"] and read["Install"]["WantedBy"] == ["slipstream.target"]


def test_the_target_wants_units_that_exist():
    wanted = unit(SYSTEMD / "slipstream.target")["Unit"]["Wants"][0].split()
    assert set(wanted) <= {p.name for p in UNITS}


@pytest.mark.parametrize("part", ["proxy", "trainer", "judge"])
def test_units_run_commands_that_exist(part):
    words = unit(SYSTEMD / f"slipstream-{part}.service")["Service"]["ExecStart"][0].split()
    assert words[0] == "/opt/slipstream/bin/slipstream" and words[1] == part and part in all_commands()
    args = build_parser(part).parse_args(words[1:])
    assert args.config == "/etc/slipstream/slipstream.toml"


def test_vllm_gets_what_up_gives_it():
    service = unit(SYSTEMD / "slipstream-engine.service")["Service"]
    line = service["ExecStart"][0]
    for name, value in env_file().items():
        line = line.replace("${" + name + "}", value)
    assert "$" not in line
    command = engine_command(config(), gpu=True)
    assert flags(line.split()[3:]) == flags(command.argv[3:])
    assert config().engine.urls == [command.url]
    environment = dict(x.split("=", 1) for text in service["Environment"] for x in text.split())
    assert command.env.items() <= environment.items()


@pytest.mark.deploy
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_reads_them():
    run = subprocess.run(
        ["systemd-analyze", "verify", *map(str, UNITS)], check=False, capture_output=True, text=True, timeout=60
    )
    said = [x for x in (run.stdout + run.stderr).splitlines() if "slipstream" in x and "is not executable" not in x]
    assert not [x for x in said if re.search(r"Unknown|Failed to parse|Invalid|ignoring", x, re.I)], said


@pytest.mark.deploy
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
@pytest.mark.parametrize("path", [u for u in UNITS if u.suffix == ".service"], ids=lambda p: p.stem)
def test_units_are_exposed_as_little_as_they_can_be(path):
    argv = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(path)]
    run = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", run.stdout)
    if found is None and "offline" in run.stderr:
        pytest.skip("this systemd-analyze knows no --offline")
    assert found is not None and float(found[1]) <= 2.0, run.stdout[-3000:] + run.stderr


def test_only_what_compiles_kernels_may_execute_what_it_has_written():
    for part, devices in (("proxy", False), ("judge", False), ("trainer", True), ("engine", True)):
        service = unit(SYSTEMD / f"slipstream-{part}.service")["Service"]
        assert ("MemoryDenyWriteExecute" in service) is not devices
        assert any("nvidia" in d for d in service.get("DeviceAllow", [])) is devices
        assert "ProcSubset" not in service  # the machine's boot id stands in /proc/sys: records are put in order by it


TASK_FIELDS = {"name", "workdir", "resources", "envs", "secrets", "file_mounts", "setup", "run", "num_nodes"}


@pytest.mark.parametrize("name", ["all-in-one", "trainer", "trainer-nodes"])
def test_sky_tasks(name, tmp_path):
    """SkyPilot's fields; variables that are used are set; the shell parses; settings are settings; commands and their flags exist."""
    task = yaml.safe_load((SKY / f"{name}.yaml").read_text())
    assert set(task) <= TASK_FIELDS and task["setup"] and task["run"]
    for script in (task["setup"], task["run"]):
        assert subprocess.run(["sh", "-n"], check=False, input=script, text=True, timeout=20).returncode == 0
    variables = set(task["envs"]) | set(task.get("secrets", {}))
    exported = set(re.findall(r"\b(SLIPSTREAM_\w+)=", task["run"]))
    used = set(re.findall(r"\$\{?([A-Z]\w*)", task["run"]))
    assert {name for name in used if not name.startswith("SKYPILOT_")} <= variables
    for variable in exported | {v for v in variables if v.startswith("SLIPSTREAM_")}:
        assert variable in OWN_ENV or is_setting(variable), variable
    for line in re.findall(r"bin/slipstream (.*?)(?: \|\||$)", task["run"], re.M):
        words = line.replace('"', "").split()
        build_parser(words[0]).parse_args(words)


def test_sky_installs_extras_that_exist():
    import tomllib

    from tests.support import ROOT

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for path in SKY.glob("*.yaml"):
        (asked,) = re.findall(r"'\.\[([\w,]+)\]'", path.read_text())
        assert set(asked.split(",")) <= set(extras)
