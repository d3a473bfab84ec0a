"""What several commands share: the configuration's flags, the proxy's address, tables."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias
from unicodedata import combining, east_asian_width

from pydantic import BaseModel

from slipstream.config import CONFIG_ENV, Config, load_config
from slipstream.errors import ConfigError
from slipstream.operate.setup.profiles import SETTING_PROFILES, profile_settings
from slipstream.operate.setup.starter import SETTINGS_FILE_NAME
from slipstream.plugins import plugin_commands
from slipstream.shared.moments import parse_moment
from slipstream.shared.printable import own, printable
from slipstream.shared.processes.proxy_file import running_proxy

if TYPE_CHECKING:
    from slipstream.client import Client
    from slipstream.contract import TaughtStep
    from slipstream.contract.status import ErasingProxy

    Verbs: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]

OLD_NAMES_GO = "0.2"
"""The release in which old names of commands and options work no more."""
WITH_VALUE = ("--config", "--set", "--url", "--key", "--tenant")
MOMENT_HELP = "an age (2h, 7d), a date or seconds since the epoch"
HOISTED_OPTIONS = (*WITH_VALUE, "--json")
"""They count for every command that has them, wherever they stand."""


def hoist(argv: Sequence[str]) -> list[str]:
    """Move the shared options behind the command's name:

    ``--config F keys list --json`` becomes ``keys --config F --json list``.
    """
    shared: list[str] = []
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--":  # what follows --run is all its command, and argparse takes no second sign of that
            rest += [*([] if rest[-1:] == ["--run"] else [word]), *words]
        elif word in WITH_VALUE:
            shared += [word, *(value for value in [next(words, None)] if value is not None)]
        elif word.split("=")[0] in HOISTED_OPTIONS:
            shared.append(word)
        else:
            rest.append(word)
    at = next((i for i, word in enumerate(rest) if not word.startswith("-")), len(rest)) + 1
    return [*rest[:at], *shared, *rest[at:]]


def positions(argv: Sequence[str]) -> list[int]:
    """Where the words stand that are neither a shared option nor its value: the command, its verb, …"""
    found, skip = [], False
    for i, word in enumerate(argv):
        if word == "--":
            break
        if not skip and not word.startswith("-"):
            found.append(i)
        skip = not skip and word in WITH_VALUE
    return found


def add_verbs(sub: Verbs, command: str) -> None:
    """What plug-ins add to a command. A parsed verb of theirs has its function in ``args.run_verb``."""
    for name, verb in plugin_commands(command).items():
        module = importlib.import_module(str(verb.module))
        parser = sub.add_parser(name, help=verb.text)
        module.add(parser)
        parser.set_defaults(run_verb=module.run)


def add_config(parser: argparse.ArgumentParser, *, again: bool = False) -> None:
    """``again``: for a verb of a command that has these options, so that its help shows them too."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        default=argparse.SUPPRESS if again else None,
        help="TOML file; default: slipstream.toml here, if there is one",
    )
    parser.add_argument(
        "--set",
        metavar="SECTION.NAME=VALUE",
        action="append",
        default=argparse.SUPPRESS if again else [],
        help="override one setting",
    )


def add_profile(parser: argparse.ArgumentParser) -> None:
    told = "; ".join(f"{name}: {profile.text}" for name, profile in SETTING_PROFILES.items())
    parser.add_argument("--profile", choices=sorted(SETTING_PROFILES), help=f"settings for a common case. {told}")


def read_config(args: argparse.Namespace, flags: Iterable[str] = ()) -> Config:
    """File, environment and flags; ``flags`` are what the command's own options stand for."""
    base: dict[str, Any] | None = None
    if handed := os.environ.get(CONFIG_ENV):
        try:
            base = json.loads(handed)
        except ValueError as e:
            raise ConfigError(f"environment {CONFIG_ENV}: not JSON: {e}") from e
    base = base or profile_settings(getattr(args, "profile", None))
    return load_config(settings_path(args), flags=[*flags, *args.set], base=base)


def settings_path(args: argparse.Namespace) -> Path | None:
    """The settings file of this command, if it has one."""
    if args.config:
        return Path(args.config)
    here = Path(SETTINGS_FILE_NAME)
    return here if here.is_file() and not os.environ.get(CONFIG_ENV) else None


def child_env(config: Config) -> dict[str, str]:
    """What a child needs to see the same configuration."""
    return {CONFIG_ENV: config.model_dump_json()}


def finite(text: str) -> float:
    """The type of an option that is a number: neither ``nan`` nor ``inf`` is one."""
    try:
        if math.isfinite(value := float(text)):
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is no number")


def add_json(parser: argparse.ArgumentParser, *, again: bool = False) -> None:
    default = argparse.SUPPRESS if again else False
    parser.add_argument("--json", action="store_true", default=default, help="print JSON")


def add_since(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    parser.add_argument("--since", default=default, help=MOMENT_HELP)


def since(args: argparse.Namespace) -> float | None:
    """``--since`` in seconds since the epoch. Raises ``ConfigError``."""
    return None if args.since is None else parse_moment(args.since)


def add_url(parser: argparse.ArgumentParser, *, again: bool = False) -> None:
    default = argparse.SUPPRESS if again else None
    parser.add_argument(
        "--url",
        default=default,
        help="the proxy; default: SLIPSTREAM_URL, else the configuration's, else OPENAI_BASE_URL",
    )
    parser.add_argument("--key", default=default, help="an API key (SLIPSTREAM_API_KEY)")
    parser.add_argument("--tenant", default=default, help="whose, with an operator's key (SLIPSTREAM_TENANT)")


def add_client(parser: argparse.ArgumentParser, *, again: bool = False) -> None:
    """For commands that ask a running proxy."""
    add_config(parser, again=again)
    add_url(parser, again=again)
    add_json(parser, again=again)


def proxy_url(args: argparse.Namespace) -> str | None:
    """``--url``, else ``--config``'s proxy, else SLIPSTREAM_URL, else the proxy of this folder. None: the client's own
    default.

    The proxy of a configuration is the one that runs on its ``data_dir``, else ``proxy.host`` and ``proxy.port``.
    """
    if args.url:
        return str(args.url)
    named = bool(args.config or args.set)
    if not named and os.environ.get("SLIPSTREAM_URL"):
        return None
    config = read_config(args)
    if found := running_proxy(config.root):
        return found
    if not named and not Path(SETTINGS_FILE_NAME).is_file():
        return None
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to reach it
    host = local.get(config.proxy.host, config.proxy.host)
    return f"http://[{host}]:{config.proxy.port}" if ":" in host else f"http://{host}:{config.proxy.port}"


def connect(args: argparse.Namespace) -> Client:
    from slipstream.client import Client  # half of what a command imports, and some ask no proxy

    return Client(proxy_url(args), args.key, tenant=args.tenant)


def tell(args: argparse.Namespace, found: BaseModel, text: str, *, indent: int | None = None) -> int:
    """Print what was found: as JSON where that was asked for, else the text. → Exit code 0."""
    print(found.model_dump_json(indent=indent) if args.json else wrapped(text))
    return 0


class TextColour(StrEnum):
    """How a line stands out on a terminal: its codes (ECMA-48, SGR)."""

    BAD = "1;31"
    DOUBTFUL = "33"


def coloured(stream: TextIO) -> bool:
    """Only a terminal gets colours, and none where NO_COLOR is set (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def say(text: str, *, look: TextColour | None = None, file: TextIO | None = None) -> None:
    """Print a sentence, broken between words where the terminal is too narrow."""
    stream = file or sys.stdout
    if look is None or not coloured(stream):
        print(wrapped(text), file=stream)
        return
    own(stream).write(f"\x1b[{look}m{printable(wrapped(text), lines=True)}\x1b[0m\n")


def ago(at: float | None) -> str:
    return "never" if at is None else f"{age(at, time.time())} ago"


def age(at: float | None, now: float) -> str:
    """How long ago, as ``5 min``. In the future, as far as this machine knows: ``0 s``."""
    if at is None:
        return "-"
    seconds = max(0.0, now - at)
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size or (unit == "min" and seconds >= size):
            return f"{int(seconds / size)} {unit}"
    return f"{int(seconds)} s"


def task_text(task: str | None, tags: Mapping[str, str]) -> str:
    """A task as its agent named it: the id is what the proxy made of a text that is none."""
    return tags.get("task-text") or task or "-"


def number(x: float | None, digits: int = 3) -> str:
    return "-" if x is None else f"{x:.{digits}f}"


COLUMN_GAP = "  "
"""Between two columns."""
LEAST_MIDDLE_WIDTH = 12
"""Columns from which both ends of a text that is cut are shown."""
LEAST_COLUMN_WIDTH = 8
"""Characters that a column keeps, however narrow the terminal is."""


def terminal_width() -> int | None:
    """Columns of the terminal, or of ``COLUMNS``. None: what is printed goes to a file or a program, whole."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size().columns
    return None


def table(header: Sequence[str], rows: Iterable[Sequence[object]], shrink: Mapping[str, int] | None = None) -> str:
    """Columns aligned by their widest cell. ``shrink``: columns that give way in this order where the terminal is too
    narrow, and how many characters each keeps. If that is not enough, the widest column gives way.
    """
    cells = [list(header), *([one_line(c) for c in row] for row in rows)]
    widths = _fitting([max(map(text_width, column)) for column in zip(*cells, strict=True)], list(header), shrink or {})
    lines = (COLUMN_GAP.join(fitted(c, w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)
    return "\n".join(lines)


def _fitting(widths: list[int], header: list[str], shrink: Mapping[str, int]) -> list[int]:
    room = terminal_width()
    over = 0 if room is None else sum(widths) + len(COLUMN_GAP) * (len(widths) - 1) - room
    for name, least in shrink.items():
        at = header.index(name)
        given = min(max(0, over), max(0, widths[at] - least))
        widths[at], over = widths[at] - given, over - given
    while over > 0 and max(widths) > LEAST_COLUMN_WIDTH:
        widths[widths.index(max(widths))] -= 1
        over -= 1
    return widths


def fits(columns: int) -> bool:
    """Whether a table of so many columns can stand side by side."""
    room = terminal_width()
    return room is None or columns * (LEAST_COLUMN_WIDTH + len(COLUMN_GAP)) - len(COLUMN_GAP) <= room


def records(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of too many columns: a row is a block, a column a line of it."""
    room, left = terminal_width(), max(map(text_width, header), default=0)
    blocks = []
    for row in rows:
        cells = [one_line(value) for value in row]
        wide = max(map(text_width, cells), default=0)
        width = wide if room is None else max(LEAST_COLUMN_WIDTH, min(wide, room - left - len(COLUMN_GAP)))
        lines = (fitted(n, left) + COLUMN_GAP + fitted(c, width) for n, c in zip(header, cells, strict=True))
        blocks.append("\n".join(line.rstrip() for line in lines))
    return "\n\n".join(blocks)


def wrapped(text: str) -> str:
    """Each line that is longer than the terminal is wide, broken between words. Further lines are indented."""
    room = terminal_width()
    if room is None:
        return text
    return "\n".join(line if text_width(line) <= room else _broken(line, room) for line in text.split("\n"))


def _broken(line: str, room: int) -> str:
    lead = line[: len(line) - len(line.lstrip(" "))]
    lines = [lead]
    for word in line.strip().split(" "):
        if not lines[-1].strip():
            lines[-1] += word
        elif text_width(lines[-1]) + 1 + text_width(word) <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(f"{lead}{COLUMN_GAP}{word}")
    return "\n".join(one.rstrip() for one in lines)


def one_line(value: object) -> str:
    """As one cell: a line end in it would break the table."""
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def text_width(text: str) -> int:
    """Columns that a text takes: two for each wide character, none for one that is put over another."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def fitted(text: str, width: int) -> str:
    """Exactly so wide. Of a name the middle goes, since its end may tell it from others; of a sentence the end."""
    if text_width(text) > width:
        head, tail = text, ""
        if width >= LEAST_MIDDLE_WIDTH and " " not in text:
            tail = text[len(text) // 2 :]
            while text_width(tail) > width // 2:
                tail = tail[1:]
        while head and text_width(head) > width - 1 - text_width(tail):
            head = head[:-1]
        text = f"{head}…{tail}"
    return text + " " * (width - text_width(text))


def away_line(proxy: ErasingProxy) -> str:
    """That a proxy is away whose spool holds what is forgotten."""
    where = f"the proxy {proxy.proxy} (the file `instance` in its data folder)"
    held = f"its spool may still hold {proxy.episodes} forgotten episodes"
    return f"{where} is offline: {held} until it starts again or the folder is removed"


def step_line(step: TaughtStep) -> str:
    """What becomes of a step that no version has yet."""
    if step.step is None:
        what = f"the trainer has batch {step.batch} of {step.model}"
        then = "it discards the batch and gets its other groups back" if step.dropped else ""
    else:
        what = f"step {step.step} of {step.model} is in no version yet"
        then = "the trainer drops it, and trains on the other groups again" if step.dropped else ""
    return f"{what}: {then or 'the next version is made from it, and the audit log will name that version'}"
