"""Write the reference pages of the documentation from the code.

    python scripts/reference_docs.py FOLDER    write settings.md, cli.md, http-api.md, python.md, adapters.md

``mkdocs build`` calls ``on_pre_build`` of this file, so that the site never differs from the code.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from slipstream.config import Config
from slipstream.settings.base import when_needed

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"
INCLUDED = re.compile(r'--8<-- "(\S+)"')
"""A page that is a file of the repository, whole."""
LINK = re.compile(r"(\[[^\]\[]*\])\(([^)#\s]+)(#[^)\s]*)?\)")
Schema = dict[str, object]


def cell(text: str) -> str:
    """Text that can stand in a Markdown table."""
    return text.replace("|", "\\|").replace("\n", " ").strip()


def kind(field: FieldInfo) -> str:
    """A setting's type, as short as a reader needs it."""
    return shown(field.annotation)


def shown(annotation: object) -> str:
    """Without the bounds of numbers and texts, which the error names."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return shown(args[0])
    if origin is Literal:
        return f"one of {', '.join(map(repr, args))}"
    if origin in (Union, UnionType):
        return " | ".join(dict.fromkeys(map(shown, args)))
    if origin is not None:
        return f"{shown(origin)}[{', '.join('…' if arg is Ellipsis else shown(arg) for arg in args)}]"
    if annotation is NoneType:
        return "None"
    return str(getattr(annotation, "__name__", annotation))


def default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    return "required" if field.is_required() else json.dumps(value, default=str)


def sections(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, str, dict[str, FieldInfo]]]:
    """Each section's name, its docstring and its own settings."""
    own = {n: f for n, f in model.model_fields.items() if not is_section(f)}
    if own:
        yield path, (model.__doc__ or "") if path else "", own
    for name, found in model.model_fields.items():
        where = f"{path}.{name}" if path else name
        if is_section(found):
            assert isinstance(found.annotation, type)
            yield from sections(found.annotation, where)
        elif (entry := section_of_entries(found)) is not None:
            yield from sections(entry, f'{where}."NAME"')


def is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def section_of_entries(field: FieldInfo) -> type[BaseModel] | None:
    """What each value of a table such as ``[models]`` is; None: no section."""
    kinds = get_args(field.annotation) if get_origin(field.annotation) is dict else ()
    return next((k for k in kinds[1:] if isinstance(k, type) and issubclass(k, BaseModel)), None)


def settings() -> str:
    lines = [
        "# Settings",
        "",
        "Slipstream reads one TOML file: `slipstream.toml` in the current folder, or the one that `--config` names.",
        "An environment variable `SLIPSTREAM_SECTION__NAME` overrides the file. `--set section.name=value` overrides both.",
        "`slipstream config` prints the first level and what you have set, `slipstream config --all` everything.",
        "",
    ]
    for name, text, fields in sections(Config):
        lines += [f"## `[{name}]`" if name else "## Top level", ""]
        if text:
            lines += [text.strip(), ""]
        first = {n: f for n, f in fields.items() if when_needed(f) is None}
        if first:
            lines += ["| setting | type | default | meaning |", "|---|---|---|---|"]
            lines += [f"| {' | '.join(row(n, f))} |" for n, f in first.items()]
            lines.append("")
        if rare := {n: f for n, f in fields.items() if n not in first}:
            lines += ["| few need | type | default | meaning | you need it if |", "|---|---|---|---|---|"]
            lines += [f"| {' | '.join((*row(n, f), cell(when_needed(f) or '')))} |" for n, f in rare.items()]
            lines.append("")
    return "\n".join(lines)


def row(name: str, info: FieldInfo) -> tuple[str, ...]:
    return f"`{name}`", f"`{cell(kind(info))}`", f"`{cell(default(info))}`", cell(info.description or "")


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in dict.fromkeys(action.choices.values()):
                yield from parsers(sub)


def cli() -> str:
    cli = importlib.import_module("slipstream.cli")
    lines = ["# Command line", "", "Exit codes: 0 success, 1 something failed, 2 the request can never work.", ""]
    lines += ["```text", cli.build_parser().format_help().rstrip(), "```", ""]
    for command, found in cli.all_commands().items():
        lines += [f"## `slipstream {command}`", "", f"{found.text[0].upper()}{found.text[1:]}.", ""]
        whole = cli.build_parser(command)
        (choices,) = (a for a in whole._actions if isinstance(a, argparse._SubParsersAction))
        for parser in parsers(choices.choices[command]):
            parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=100)
            lines += ["```text", parser.format_help().rstrip(), "```", ""]
    return "\n".join(lines)


def shape(schema: object) -> str:
    """A JSON schema in a few words."""
    if not isinstance(schema, dict):
        return ""
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    if "anyOf" in schema:
        return " or ".join(shape(s) for s in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {shape(schema.get('items'))}"
    if "enum" in schema:
        return " or ".join(json.dumps(v) for v in schema["enum"])
    return str(schema.get("const", schema.get("type", "any")))


def properties(schema: Schema) -> list[str]:
    fields = schema.get("properties")
    if not isinstance(fields, dict) or not fields:
        return []
    required = schema.get("required")
    needed = set(required) if isinstance(required, list) else set()
    lines = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for name, part in fields.items():
        value = "required" if name in needed else json.dumps(part.get("default"))
        text = cell(str(part.get("description", "")))
        lines.append(f"| `{name}` | {cell(shape(part))} | `{cell(value)}` | {text} |")
    return [*lines, ""]


def operation(path: str, method: str, found: Schema) -> list[str]:
    lines = [f"### `{method.upper()} {path}`", "", str(found.get("summary") or found.get("description") or ""), ""]
    parameters = found.get("parameters")
    rows = [
        f"| `{p['name']}` | {p['in']} | {cell(shape(p.get('schema')))} | {cell(str(p.get('description', '')))} |"
        for p in (parameters if isinstance(parameters, list) else [])
    ]
    if rows:
        lines += ["| parameter | in | type | meaning |", "|---|---|---|---|", *rows, ""]
    body = found.get("requestBody")
    if isinstance(body, dict):
        lines += [f"Body: {', '.join(shape(c.get('schema')) for c in body.get('content', {}).values())}.", ""]
    responses = found.get("responses")
    for status, answer in responses.items() if isinstance(responses, dict) else ():
        if status in COMMON:
            continue
        made = ", ".join(s for c in answer.get("content", {}).values() if (s := shape(c.get("schema"))))
        lines.append(f"- {status}: {cell(str(answer.get('description', '')))}{f' ({made})' if made else ''}")
    return [*lines, ""]


def http_api() -> str:
    spec = openapi()
    lines = [
        "# HTTP API",
        "",
        "The control API stands on the proxy's own port. The proxy serves this description as JSON at",
        "`/slipstream/openapi.json`. If keys exist, send one as `Authorization: Bearer …`.",
        "",
        "Every route can answer 400, 401, 403, 405, 422 and 503. The body is then an [Error](#error) with a fix.",
        "",
        "## Routes",
        "",
    ]
    paths, components = spec["paths"], spec.get("components")
    assert isinstance(paths, dict)
    for path, methods in paths.items():
        for method, found in methods.items():
            lines += operation(path, method, found)
    lines += ["## Objects", ""]
    schemas = components.get("schemas", {}) if isinstance(components, dict) else {}
    for name, schema in sorted(schemas.items()):
        lines += [f"### {name}", "", str(schema.get("description", "")), "", *properties(schema)]
    return "\n".join(lines)


PYTHON = """# Python

`pip install slipstream` is enough for all of this. An agent needs none of it: it is for rewards, scripts and tests.

```python
import slipstream

with slipstream.episode(task="t") as run:  # give run.headers, or run.base_url, to your client
    ...
    run.reward(1.0)

with slipstream.Client() as client:  # SLIPSTREAM_URL and SLIPSTREAM_API_KEY, or arguments
    print(client.status().waiting)
```

::: slipstream.episode

::: slipstream.client.Client

`slipstream.AsyncClient` has the same methods as coroutines.

## Methods of both clients

Each stands here with its arguments. The client returns what `Ask[...]` names.
"""


def requests() -> list[str]:
    """Names of the clients' methods, in the order of the source."""
    found = importlib.import_module("slipstream.client.requests")
    functions = [n for n, f in vars(found).items() if inspect.isfunction(f) and f.__module__ == found.__name__]
    return [name for name in functions if not name.startswith("_")]


def combined() -> list[str]:
    """Names of the clients' methods that make several requests."""
    client = importlib.import_module("slipstream.client.sessions").Client
    return [n for n in vars(client) if not n.startswith("_") and n not in {*requests(), "ask", "close"}]


def python() -> str:
    """mkdocstrings fills this page in from the docstrings."""
    lines = [PYTHON]
    paths = [f"requests.{name}" for name in requests()] + [f"sessions.Client.{name}" for name in combined()]
    for path in paths:
        lines += [f"::: slipstream.client.{path}", "    options:", "      heading_level: 3", ""]
    return "\n".join([*lines, "## Errors", "", "::: slipstream.errors"])


def adapters() -> str:
    from slipstream_proxy.control.adapters.transitions import table

    first = "A version begins as `loading`. A version's own state and reason: `slipstream adapters`."
    return f"# The life of an adapter\n\n{first}\n\n{table()}"


def openapi() -> Schema:
    """What a running proxy answers at ``/slipstream/openapi.json``."""
    from slipstream_proxy.control.api.app import installed_routes
    from slipstream_proxy.control.api.openapi import document

    found: Schema = document(installed_routes())
    return found


COMMON = {"400", "401", "403", "405", "422", "503"}
PAGES = {"settings.md": settings, "cli.md": cli, "http-api.md": http_api, "python.md": python, "adapters.md": adapters}


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in PAGES.items():
        text = make().rstrip() + "\n"
        page = folder / name
        if not page.is_file() or page.read_text() != text:
            page.write_text(text)


def on_pre_build(config: object) -> None:
    """mkdocs calls this before each build."""
    write(FOLDER)


def on_page_markdown(markdown: str, page: Page, config: object, files: object) -> str:
    """mkdocs calls this for each page. Pages that are files of the repository link to what lies beside them there."""
    included = INCLUDED.fullmatch(markdown.strip())
    if included is None:
        return markdown
    source = ROOT / included[1]
    return LINK.sub(lambda link: link_on_site(source, link), source.read_text())


def link_on_site(source: Path, link: re.Match[str]) -> str:
    """A link of ``source`` as a page of the site needs it; to what the site lacks, the text alone."""
    text, target, anchor = link[1], link[2], link[3] or ""
    if target.startswith(("http:", "https:")):
        return link[0]
    found = (source.parent / target).resolve()
    if not found.exists():
        return link[0]  # a broken link, which mkdocs tells
    if found.is_relative_to(ROOT / "docs"):
        return f"{text}({found.relative_to(ROOT / 'docs').as_posix()}{anchor})"
    return text[1:-1]


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the reference pages from the code.")
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    write(parser.parse_args().folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
