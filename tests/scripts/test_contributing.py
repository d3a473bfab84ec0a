"""What CONTRIBUTING promises: a new file and its place in a list pass the lint, and what is in it is found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import ROOT

AREAS = ("sdk", "proxy", "judge", "trainer", "engine", "plugins", "scripts")
NEW_FILES = {
    "sdk/slipstream/cli/look/greet.py": """from __future__ import annotations

import argparse


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default="you")


def run(args: argparse.Namespace) -> int:
    print(f"hello {args.name}")
    return 0
""",
    "proxy/slipstream_proxy/data/call/steps/greeting.py": '''"""A header of the test's."""

from slipstream_proxy.data.call.parts import Call
from slipstream_proxy.data.call.step import CallStep


class Greeting(CallStep):
    def response_head(self, call: Call, fields: bytes) -> bytes:
        return b"%bx-greeting: %b\\r\\n" % (fields, call.asked.dialect.name.encode())
''',
    "proxy/slipstream_proxy/dialects/mirror.py": '''"""Completions under another path."""

from slipstream_proxy.dialects.completions import Completions


class Mirror(Completions):
    name = "mirror"
    path = "/v1/mirror"
''',
    "proxy/slipstream_proxy/control/api/routes/greeting.py": '''"""A route of the test's."""

from __future__ import annotations

from aiohttp import web

from slipstream.contract.base import Model
from slipstream_proxy.control.api.http import Ctx, Routes, reply

API_ROUTES = Routes()


class GreetingText(Model):
    text: str


@API_ROUTES.add("GET", "/greeting", result=GreetingText)
async def get_greeting(ctx: Ctx) -> web.StreamResponse:
    """A greeting."""
    return reply(GreetingText(text=ctx.caller.key))
''',
    "proxy/slipstream_proxy/store/backends/mirror.py": '''"""A store of the test's."""

from __future__ import annotations

from slipstream_proxy.store.backends.duckdb import DuckStore


class MirrorStore(DuckStore):
    """As DuckDB's, under another scheme."""
''',
    "sdk/slipstream/engines/mirror.py": '''"""An engine of the test's."""

from __future__ import annotations

from slipstream.engines.engine import Steps, known
from slipstream.engines.openai import OpenAIServer


class MirrorServer(OpenAIServer):
    """As any that speaks OpenAI's routes, where it is asked for by name."""

    def behaves(self, model: str) -> Steps[bool]:
        return known(False)
''',
}
"""A command, a step, a wire format, a route, a store and an engine."""
LISTED = {
    "sdk/slipstream/cli/__init__.py": [
        ('    "sql": Command(', '    "greet": Command("look", "say hello"),\n    "sql": Command(')
    ],
    "sdk/slipstream/settings/engine.py": [
        (
            '    "openai": "slipstream.engines.openai:',
            '    "mirror": "slipstream.engines.mirror:MirrorServer",\n    "openai": "slipstream.engines.openai:',
        ),
    ],
    "proxy/slipstream_proxy/data/plane.py": [
        ("[*found, ProxyHeaders(", "[*found, Greeting(), ProxyHeaders("),
        (
            "from slipstream_proxy.data.call.steps.guards ",
            "from slipstream_proxy.data.call.steps.greeting import Greeting\nfrom slipstream_proxy.data.call.steps.guards ",
        ),
    ],
    "proxy/slipstream_proxy/dialects/__init__.py": [
        ("Gemini())}", "Gemini(), Mirror())}"),
        (
            "from slipstream_proxy.dialects.responses ",
            "from slipstream_proxy.dialects.mirror import Mirror\nfrom slipstream_proxy.dialects.responses ",
        ),
    ],
    "proxy/slipstream_proxy/control/api/app.py": [
        ("    episodes,\n    groups,", "    episodes,\n    greeting,\n    groups,"),
        ("ROUTE_MODULES = (", "ROUTE_MODULES = (\n    greeting,"),
    ],
    "proxy/slipstream_proxy/store/__init__.py": [
        (
            '    raise ValueError(f"store.url',
            """    if scheme == "mirror":
        from slipstream_proxy.store.backends.mirror import MirrorStore

        return MirrorStore("/" + url.removeprefix("mirror:").lstrip("/"), rules, instance=instance)
    raise ValueError(f"store.url""",
        )
    ],
}
"""The place in a list of each: file → what stands there, and what then does."""
PROBE = """
import sys
from slipstream.cli import main
from slipstream.engines import engine_of
from slipstream.settings.engine import ENGINE_CLASSES
from slipstream_proxy.control.api.app import ALL_ROUTES
from slipstream_proxy.data.plane import Plane
from slipstream_proxy.dialects import of_path
from slipstream_proxy.store import open_store
from slipstream_proxy.store.values import Rules
assert "Greeting" in Plane._steps.__code__.co_names
assert of_path("/v1/mirror").name == "mirror"
assert any(route.path.endswith("/greeting") for route in ALL_ROUTES)
store = open_store("mirror:///" + sys.argv[1].lstrip("/"), Rules())
assert type(store).__name__ == "MirrorStore"
assert "mirror" in ENGINE_CLASSES
assert engine_of("mirror").kind == "mirror" and type(engine_of("openai")).__name__ == "OpenAIServer"
store.close()
sys.exit(main(["greet", "--name", "new contributor"]))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources with all new files, each in its list."""
    tree = tmp_path_factory.mktemp("contribution")
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.pyc")
    for area in AREAS:
        shutil.copytree(ROOT / area, tree / area, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tree)
    (tree / "tests").mkdir()
    for name, source in NEW_FILES.items():
        (tree / name).write_text(source)
    for name, places in LISTED.items():
        text = (tree / name).read_text()
        for before, after in places:
            assert text.count(before) == 1, f"{name}: {before}"
            text = text.replace(before, after)
        (tree / name).write_text(text)
    return tree


def ran(tree: Path, *command: str) -> str:
    """What a command printed in the copy, which is all that Python imports. Fails where the command does."""
    rooms = ("sdk", "proxy", "judge", "trainer", "engine", *(f"plugins/{p.name}" for p in (tree / "plugins").iterdir()))
    own = str(Path(sys.executable).parent)  # where ruff and lint-imports are, whatever the shell's own path
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(str(tree / room) for room in rooms)}
    env["PATH"] = os.pathsep.join((own, env.get("PATH", "")))
    command = (shutil.which(command[0], path=env["PATH"]) or command[0], *command[1:])
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, check=False)
    assert not done.returncode, f"{' '.join(command)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        ("lint-imports", "--no-logo"),
        (sys.executable, "scripts/structure.py", "--where"),
    ],
    ids=("rules", "format", "contracts", "structure"),
)
def test_one_new_file_of_each_kind_passes_the_lint(copy: Path, command: tuple[str, ...]) -> None:
    ran(copy, *command)


def test_a_new_file_and_its_place_in_a_list_are_all_it_takes(copy: Path, tmp_path: Path) -> None:
    said = ran(copy, sys.executable, "-c", PROBE, str(tmp_path / "store.duckdb"))
    assert said.splitlines()[-1] == "hello new contributor"
