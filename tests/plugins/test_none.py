"""The core without any plug-in: it starts, serves and learns, and its commands are there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.plane import until
from tests.support.plugins import uninstall_all

from slipstream import cli, plugins
from slipstream.config import load_config
from slipstream.errors import ConfigError

PACKAGES = sorted(path.name for path in Path(__file__).parents[2].glob("plugins/*/slipstream_*"))
HIDE = (
    f"PACKAGES = {json.dumps(PACKAGES)}"
    """
import importlib.abc, importlib.metadata, pkgutil, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in PACKAGES:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Hidden())
points = importlib.metadata.entry_points
importlib.metadata.entry_points = lambda **given: () if given.get("group") == "slipstream.plugins" else points(**given)
"""
)
WALK = """
import importlib
for package in ("slipstream", "slipstream_proxy", "slipstream_judge"):
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if not found.name.endswith("__main__") and ".examples" not in found.name:
            importlib.import_module(found.name)
from slipstream import cli
text = cli.build_parser(*cli.all_commands()).format_help()
assert "import " not in text and "distill" not in text and "status" in text
print("all of it")
"""


@pytest.fixture
def none(monkeypatch):
    uninstall_all(monkeypatch)
    yield
    monkeypatch.undo()
    plugins.installed.cache_clear()


def test_every_module_of_the_core_is_there_without_them():
    done = subprocess.run([sys.executable, "-c", HIDE + WALK], check=False, capture_output=True, text=True, timeout=300)
    assert done.stdout == "all of it\n", done.stderr


async def test_a_run_is_recorded_rewarded_and_grouped(none, make_plane):
    plane = await make_plane()
    for number in range(2):
        await plane.call(f"e{number}")
        await plane.ask("POST", f"/episodes/e{number}/rewards", {"value": float(number), "done": True})
    await until(lambda: _reward(plane))
    status, told = await plane.ask("GET", "/status")
    assert (status, told["plugins"], told["episodes"]["done"]) == (200, [], 2)
    assert (await plane.ask("POST", "/import", {"messages": []}))[0] == 404


def test_what_a_plugin_does_is_refused_with_its_name(none):
    with pytest.raises(ConfigError, match="is done by the plug-in replay, which is not installed"):
        load_config(flags=["gate.mode=replay"])


async def _reward(plane):
    return (await plane.ask("GET", "/episodes/e1"))[1]["reward"] == 1.0


def test_what_is_missing_is_no_command(none, capsys):
    with pytest.raises(SystemExit):
        cli.main(["import", "x"])
    assert "invalid choice: 'import'" in capsys.readouterr().err
