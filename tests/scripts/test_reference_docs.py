"""The reference pages name everything that the code has: each setting, command, flag, route and object."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from tests.support import ROOT
from tests.support.rendering import load_script

from slipstream import cli
from slipstream.client import Client
from slipstream.config import Config
from slipstream.contract import AdapterState

docs = load_script(ROOT / "scripts" / "reference_docs.py")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("reference")
    docs.write(folder)
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_each_setting_stands_under_its_section(pages: dict[str, str]) -> None:
    page = pages["settings.md"]
    for name, _, fields in docs.sections(Config):
        title = f"## `[{name}]`" if name else "## Top level"
        assert title in page
        part = page.split(title)[1].split("\n## ")[0]
        for field, info in fields.items():
            assert f"| `{field}` |" in part
            assert docs.cell(info.description or "") in part


def test_each_command_and_flag_stands_on_its_page(pages: dict[str, str]) -> None:
    for command in cli.all_commands():
        part = pages["cli.md"].split(f"## `slipstream {command}`")[1].split("\n## ")[0]
        whole = cli.build_parser(command)
        (choices,) = (a for a in whole._actions if isinstance(a, argparse._SubParsersAction))
        for parser in docs.parsers(choices.choices[command]):
            for action in (a for a in parser._actions if a.help != argparse.SUPPRESS):  # old names are hidden
                assert all(flag in part for flag in action.option_strings), (command, action.option_strings)


def test_each_route_and_object_stands_on_its_page(pages: dict[str, str]) -> None:
    spec = docs.openapi()
    for path, methods in spec["paths"].items():
        for method in methods:
            assert f"### `{method.upper()} {path}`" in pages["http-api.md"]
    for name in spec["components"]["schemas"]:
        assert f"### {name}\n" in pages["http-api.md"]


def test_each_state_of_an_adapter_and_what_follows_it_stands_on_its_page(pages: dict[str, str]) -> None:
    states = {state.value for state in AdapterState}
    rows = [line.split("`")[1::2] for line in pages["adapters.md"].splitlines() if line.startswith("| `")]
    assert {before for before, _ in rows} == states and all(after in states for _, after in rows)


def test_a_page_that_is_current_is_not_written_again(tmp_path: Path) -> None:
    docs.write(tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    docs.write(tmp_path)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == before


def test_each_method_of_the_client_stands_on_the_python_page(pages: dict[str, str]) -> None:
    public = {n for n in dir(Client) if not n.startswith("_")} - {"ask", "close"}
    public.remove("rollback")  # the earlier name of demote
    assert public == {*docs.requests(), *docs.combined()}
    assert all(f"::: slipstream.client.requests.{name}\n" in pages["python.md"] for name in docs.requests())
    assert all(f"::: slipstream.client.sessions.Client.{name}\n" in pages["python.md"] for name in docs.combined())
