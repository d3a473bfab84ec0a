"""Compiled modules: made of these sources, used for no others."""

from __future__ import annotations

import ast
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support import strict_slices
from tests.support.dataplane import ASK, post
from tests.support.fake_engine import FakeEngine

from slipstream.config import Config
from slipstream_proxy.process import compiled

CAN = shutil.which("cc") is not None and (Path(sysconfig.get_paths()["include"]) / "Python.h").exists()
ONE = ("data/wire/errors.py",)
NEW = {
    "data/call/steps/greeting.py": '''"""A header of the test's."""

from slipstream_proxy.data.call.parts import Call
from slipstream_proxy.data.call.step import CallStep


class Greeting(CallStep):
    def response_head(self, call: Call, fields: bytes) -> bytes:
        return b"%bx-greeting: %b\\r\\n" % (fields, call.asked.dialect.name.encode())
''',
    "dialects/mirror.py": '''"""Completions under another path, and responses under one that no engine has."""

from slipstream_proxy.dialects.completions import Completions
from slipstream_proxy.dialects.responses import Responses


class Mirror(Completions):
    name = "mirror"
    path = "/v1/mirror"


class Answers(Responses):
    name = "answers"
    path = "/v1/answers"
    routeless = True
''',
}
"""What a contributor adds, each with one place in a list."""
LISTED = {
    "data/plane.py": ("ProxyHeaders(self", "Greeting(), ProxyHeaders(self"),
    "dialects/__init__.py": ("Gemini())}", "Gemini(), Mirror(), Answers())}"),
}
IMPORTS = {
    "data/plane.py": "from slipstream_proxy.data.call.steps.greeting import Greeting",
    "dialects/__init__.py": "from slipstream_proxy.dialects.mirror import Answers, Mirror",
}


def test_each_source_has_a_folder_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = compiled.folder(ONE)
    assert home == compiled.folder(ONE) != compiled.folder()
    assert home.is_relative_to(tmp_path / "cache")
    copy = tmp_path / "p"
    shutil.copytree(compiled.PACKAGE_FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(compiled, "PACKAGE_FOLDER", copy)
    seen = {compiled.folder(ONE)}
    assert seen == {home}
    for name in (*ONE, "log/records.py", "data/call/steps/greeting.py"):  # compiled; read for its types; new
        with (copy / name).open("a") as file:
            file.write("\n")
        seen.add(compiled.folder(ONE))
    assert len(seen) == 4
    assert set(compiled.hot_modules(copy)) - set(compiled.COMPILED_MODULES) == {"data/call/steps/greeting.py"}


def test_a_folder_without_its_modules_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = compiled.folder(ONE)
    assert not compiled.use(ONE), "nothing was made"
    home.mkdir(parents=True)
    (home / "ready").touch()
    monkeypatch.delitem(sys.modules, "slipstream_proxy.data.wire.errors", raising=False)
    assert not compiled.use(ONE)


def classes(names: Iterable[str]) -> Iterator[tuple[str, str, set[str]]]:
    """Module, class, and its bases."""
    for name in names:
        for node in ast.walk(ast.parse((compiled.PACKAGE_FOLDER / name).read_text())):
            if isinstance(node, ast.ClassDef):
                yield name, node.name, {ast.unparse(base).split("[")[0] for base in node.bases}


def test_what_stays_python_is_no_subclass_of_what_is_compiled():
    """Python refuses such a class at its import, in a worker alone."""
    everything = {
        path.relative_to(compiled.PACKAGE_FOLDER).as_posix() for path in compiled.PACKAGE_FOLDER.rglob("*.py")
    }
    assert everything >= set(compiled.COMPILED_MODULES)
    hot = {name for _, name, bases in classes(compiled.COMPILED_MODULES) if "Exception" not in bases}
    found = [(m, name) for m, name, bases in classes(everything - set(compiled.COMPILED_MODULES)) if bases & hot]
    assert hot and not found


def waiting_while_leaving(source: str) -> list[int]:
    """Lines that wait in an ``except``, a ``finally`` or an ``__aexit__``."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Try | ast.TryStar):
            leaving = [*node.handlers, *node.finalbody]
            found += [n.lineno for part in leaving for n in ast.walk(part) if isinstance(n, ast.Await)]
        elif isinstance(node, ast.AsyncWith):
            entered = [ast.unparse(item.context_expr) for item in node.items]
            # its __aexit__ waits for nothing
            found += [node.lineno for text in entered if not text.startswith("asyncio.timeout(")]
    return found


def test_nothing_that_is_compiled_waits_while_an_exception_leaves():
    """mypyc loses the exception there, or the process dies of it."""
    assert waiting_while_leaving("async def f():\n async with a as b, asyncio.timeout(1):\n  pass") == [2]
    assert waiting_while_leaving("async def f():\n try:\n  pass\n finally:\n  await g()") == [5]
    assert waiting_while_leaving("async def f():\n try:\n  pass\n except E:\n  await g()") == [5]
    found = {
        name: waiting_while_leaving((compiled.PACKAGE_FOLDER / name).read_text()) for name in compiled.COMPILED_MODULES
    }
    assert not {name: lines for name, lines in found.items() if lines}


def test_a_slice_that_ends_before_it_begins_raises_in_tests_as_it_does_compiled():
    name = "slipstream_proxy.dialects.base"
    source = "def part(data, start, end):\n    return data[start:end]\n"
    made: dict[str, Any] = {"__cut__": strict_slices.cut}
    exec(strict_slices.strict(source, name), made)
    assert made["part"](b"abc", 1, 9) == b"bc" and made["part"]([1, 2], 2, 1) == []
    with pytest.raises(SystemError):
        made["part"](b"abc", -1, 1)
    assert sys.modules[name].__dict__["__cut__"] is strict_slices.cut


@contextmanager
def running(engine: str, data: Path, **env: str) -> Iterator[tuple[str, Path]]:
    """A worker's URL and its log."""
    config = Config(data_dir=str(data), engine={"urls": [engine], "name": "tiny"})
    data.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as sock, (data / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "slipstream_proxy.data.worker", "0", str(sock.fileno())],
            env={**os.environ, **env, "SLIPSTREAM_CONFIG_JSON": config.model_dump_json()},
            pass_fds=(sock.fileno(),),
            stderr=log,
        )
        try:
            yield "http://127.0.0.1:%d" % sock.getsockname()[1], data / "log"
        finally:
            process.kill()
            process.wait()


@pytest.fixture
async def contributed(tmp_path):
    """A copy of the tree with a step and a dialect more, and an engine that has the dialect's path."""
    package = tmp_path / "tree" / "slipstream_proxy"
    shutil.copytree(compiled.PACKAGE_FOLDER, package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in NEW.items():
        (package / name).write_text(text)
    for name, (old, new) in LISTED.items():
        text = (package / name).read_text()
        assert text.count(old) == 1
        head, future, rest = text.replace(old, new).partition("import annotations\n")
        (package / name).write_text(f"{head}{future}{IMPORTS[name]}\n{rest}")

    class Engine(FakeEngine):
        def add_more(self, app):
            app.router.add_post("/v1/mirror", self.completions)

    engine = await Engine().start()
    yield package, engine
    await engine.stop()


@pytest.mark.chaos  # a compiler at work takes its time
@pytest.mark.timeout(900)
@pytest.mark.skipif(not CAN, reason="no C compiler, or no headers of Python")
async def test_a_new_step_and_a_new_dialect_are_compiled_and_serve(contributed, monkeypatch, tmp_path):
    pytest.importorskip("mypyc")
    pytest.importorskip("setuptools")
    package, engine = contributed
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    built = subprocess.check_output(
        [sys.executable, "-m", "slipstream_proxy.process.compiled"],
        env={**os.environ, "MYPYC_OPT_LEVEL": "0", "MYPYC_DEBUG_LEVEL": "0"},
        text=True,
    )
    for off in ("1", "0"):
        with running(engine.url, tmp_path / f"data{off}", SLIPSTREAM_COMPILED=off) as (url, log):
            status, headers, _ = await post(url, ASK)
            assert (status, headers["x-greeting"]) == (200, "chat")
            status, headers, body = await post(url, {"model": "tiny", "prompt": "hi"}, path="/v1/mirror")
            assert (status, headers["x-greeting"]) == (200, "mirror")
            assert json.loads(body)["choices"][0]["token_ids"] is None, "asked for, and hidden"
            status, _, body = await post(url, {"model": "tiny", "input": "hi"}, path="/v1/answers")
            assert (status, json.loads(body)["object"]) == (200, "response"), "asked as a chat completion"
            assert ("(compiled)" in log.read_text()) == (off == "1")
    assert {Path(name).stem for name in NEW} <= {
        path.name.partition(".")[0] for path in Path(built.strip()).rglob("*.so")
    }
