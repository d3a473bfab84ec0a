"""Every command of the README, and of the tutorial, as it stands: in order, in one shell, beside a running proxy."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from packaging.requirements import Requirement
from tests.support import process, slipstream, until, wait_for
from tests.support.fake_engine import FakeEngine

from slipstream.cli import build_parser
from slipstream.cli.common import hoist
from slipstream.shared.processes.proxy_file import running_proxy

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("tutorial*.md"))]
HERE = "http://127.0.0.1:8100"
LONG = ("up", "demo", "proxy", "trainer", "train", "judge", "distill")
"""Started by other tests; here their arguments are read."""
MAY_FIND = ("doctor",)
"""Exit code 1: it found something, which beside a fake engine it must."""


def commands(page: Path) -> Iterator[str]:
    text = page.read_text()
    yield from re.findall(r"`((?:pip install|make) [^`]+)`", text)  # in tables and sentences
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.S | re.M):
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                yield line.strip()


def test_every_page_has_some() -> None:
    assert all(list(commands(page)) for page in PAGES)
    assert sum("slipstream " in c for page in PAGES for c in commands(page)) >= 4


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[str]:
    """A proxy before a fake engine, with one call of the episode that the pages' ``<episode>`` stands for."""
    engine = await FakeEngine().start()
    data = tmp_path / "data"
    flags = [f"data_dir={data}", f'engine.urls=["{engine.url}"]', "engine.name=tiny", "proxy.port=0"]
    with process(slipstream("proxy", *(a for f in flags for a in ("--set", f))), tmp_path / "proxy.log"):
        url = await asyncio.to_thread(wait_for, lambda: running_proxy(data), 60, 0.1, "the proxy runs")
        assert url
        headers = {"x-slipstream-episode": "run-1", "x-slipstream-task": "t"}
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
        async with aiohttp.ClientSession(url) as session:

            async def ok(method: str, path: str, **more: Any) -> bool:
                return (await session.request(method, path, **more)).status == 200

            await until(lambda: ok("GET", "/slipstream/v1/status"))
            await until(lambda: ok("POST", "/v1/chat/completions", json=body, headers=headers))
            await until(lambda: ok("GET", "/slipstream/v1/episodes/run-1"))
        yield url
    await engine.stop()


def check_make(words: list[str]) -> None:
    done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def check_pip(words: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    following = iter(words[words.index("install") + 1 :])
    for word in following:
        if word.startswith("-"):
            if word in {"--extra-index-url", "-c"}:
                next(following)
            continue
        wanted = Requirement(project["name"] + word[1:] if word.startswith(".") else word)
        if wanted.name == project["name"]:
            assert wanted.extras <= project["optional-dependencies"].keys(), word


def check_arguments(words: list[str]) -> None:
    argv = hoist(words[1:])
    build_parser(argv[0]).parse_args(argv)


def check_script(words: list[str]) -> None:
    assert (ROOT / next(w for w in words[1:] if w.endswith(".py"))).is_file()


def run(command: str, url: str, cwd: Path, env: dict[str, str]) -> None:
    words = shlex.split(command, comments=True)
    if words[0] == "slipstream":
        argv, most = [*slipstream(*words[1:])], 1 if words[1] in MAY_FIND else 0
        done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode <= most, done.stderr
        return
    assert words[0] == "curl"
    filled = command.replace(HERE, url).replace("<episode>", "run-1").replace("RUN_ID", "run-1")
    assert "<" not in filled, f"{command}: what is to be filled in?"
    done = subprocess.run(
        ["/bin/sh", "-c", f"{filled} -sS --fail-with-body"],
        cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
async def test_every_command_works_as_it_stands(page: Path, proxy: str, tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLIPSTREAM_", "OPENAI_"))}
    env["SLIPSTREAM_URL"] = proxy
    for command in commands(page):
        words = shlex.split(command, comments=True)
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            env[name] = value.replace(HERE, proxy)
        elif words[0] == "make":
            check_make(words)
        elif "pip" in words or words[0] == "pipx":
            check_pip(words)
        elif words[0] == "slipstream" and words[1] in LONG:
            check_arguments(words)
        elif words[0] in {"python", "python3", sys.executable}:
            check_script(words)
        elif words[0] in {"slipstream", "curl"}:
            await asyncio.to_thread(run, command, proxy, tmp_path, env)
        else:
            pytest.fail(f"{page.name}: a kind of command that this test can't check: {command}")
