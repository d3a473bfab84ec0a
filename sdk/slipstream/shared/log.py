"""Logs: one line each, for a person (console) or a machine (``SLIPSTREAM_LOG_FORMAT=json``). Never a secret, never a
message's text.

A call's lines carry its id as ``request_id``. Level debug is for our own packages alone: an HTTP client's debug lines
hold whole requests.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from functools import partial
from numbers import Number
from types import TracebackType

from slipstream.errors import ConfigError, SlipstreamError
from slipstream.shared.printable import printable
from slipstream.shared.urls import without_password

TENANT_ENV = "SLIPSTREAM_OWN_TENANT"
"""Whose control plane this process is: each of its lines says so."""
_PLAIN = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
OWN_LOGGERS = ("slipstream", "slipstream_proxy", "slipstream_judge", "slipstream_trainer")
NOISY_LOGGERS = (
    "httpx",
    "httpcore",
    "asyncio",
    "urllib3",
    "LiteLLM",
    "LiteLLM Router",
    "LiteLLM Proxy",
    "aiohttp",
    "matplotlib",
    "filelock",
    "openai",
    "anthropic",
    "botocore",
    "boto3",
    "s3transfer",
    "opentelemetry",
)
REPORTED_LOGGERS = frozenset(
    {
        "OperationalError",
        "IOException",
        "InterfaceError",
        "PoolTimeout",
        "StoreError",
        "OutOfMemoryException",
        "ImportError",
    }
)
"""More exceptions whose words are about machines. Others may quote what they read: type and place are logged."""
MAX_LINES_PER_CAUSE, LINE_WINDOW_S = 20, 60.0
"""Warnings and errors of one cause that are logged in so many seconds."""
ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """What was passed as ``extra=``."""
    return {k: v for k, v in vars(record).items() if k not in _PLAIN}


def _name(tenant: str, record: logging.LogRecord) -> bool:
    record.tenant = tenant
    return True


def _told(error: BaseException) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, OSError | SlipstreamError) or bool(names & REPORTED_LOGGERS)


def describe(error: BaseException | None) -> str:
    """Type and places of an exception and its causes, innermost first. Its words only where they quote no message."""
    parts: list[str] = []
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        words = f": {error}" if _told(error) else ""
        frames = traceback.extract_tb(error.__traceback__)
        places = "".join(f'\n  File "{f.filename}", line {f.lineno}, in {f.name}' for f in frames)
        parts.append(f"{type(error).__name__}{words}{places}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\nwhile handling it: ".join(reversed(parts))


class _Lines(logging.Formatter):
    def formatException(self, ei: ExcInfo) -> str:  # noqa: N802 - logging's name
        return without_password(describe(ei[1]))


class _Json(_Lines):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "part": record.name,
        }
        fields = {k: without_password(v) if isinstance(v, str) else v for k, v in _fields(record).items()}
        line |= {"message": without_password(record.getMessage())} | fields
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _Shown:
    """A value that a line names: it is one line, whatever it holds."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __str__(self) -> str:
        return printable(self.value)

    def __repr__(self) -> str:
        return printable(repr(self.value))


def _shown(value: object) -> object:
    return value if isinstance(value, Number) else _Shown(value)


def _message(record: logging.LogRecord) -> str:
    """A line breaks where the program means it to, and not where a value does."""
    args = record.args
    if not args:
        return record.getMessage()
    shown = {k: _shown(v) for k, v in args.items()} if isinstance(args, Mapping) else tuple(map(_shown, args))
    try:
        return str(record.msg) % shown
    except (TypeError, ValueError):
        return record.getMessage()  # a value's own kind is asked for


class _Console(_Lines):
    def format(self, record: logging.LogRecord) -> str:
        extra = "".join(f" {k}={_one_line(without_password(v))}" for k, v in _fields(record).items())
        text = without_password(_message(record)) + extra
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        shown = printable(text, lines=True).replace("\n", "\n    ")
        return f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {record.levelname.lower():7} {shown}"


def _one_line(value: object) -> str:
    """A field that could end its line, or look like two, is quoted."""
    text = str(value)
    return text if text.isprintable() and " " not in text else json.dumps(text)


def brief(why: object) -> str:
    """A failure's reason for a log: what stands before the first colon or quote. A transcript may follow it. An
    apostrophe within a word is no quote.
    """
    return re.split(r"[:\n\"`({\[]|(?<!\w)'|'(?!\w)", str(why), maxsplit=1)[0].strip()[:200]


class FloodFilter(logging.Filter):
    """Lets ``MAX_LINES_PER_CAUSE`` warnings and errors of one cause through in ``LINE_WINDOW_S`` seconds, then
    says how many more came.
    Their cause is the place in the code and the text before its values.
    """

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__()
        self._handler = handler
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, int, str], tuple[int, str]] = {}
        """Cause → lines, and the newest one's text."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        cause = (record.name, record.lineno, str(record.msg)[:200])
        with self._lock:
            count = self._seen.get(cause, (0, ""))[0] + 1
            self._seen[cause] = count, _message(record)
        if count == 1:
            timer = threading.Timer(LINE_WINDOW_S, self._end, (cause, record.levelno))
            timer.daemon = True
            timer.start()
        return count <= MAX_LINES_PER_CAUSE

    def _end(self, cause: tuple[str, int, str], level: int) -> None:
        with self._lock:
            count, newest = self._seen.pop(cause)
        if (hidden := count - MAX_LINES_PER_CAUSE) > 0:
            text = f"{hidden} more lines of this kind in {LINE_WINDOW_S:g} s; the last: {newest}"
            fields = {"name": cause[0], "levelno": level, "levelname": logging.getLevelName(level), "msg": text}
            self._handler.emit(logging.makeLogRecord(fields))


def setup_logging(level: str | None = None) -> None:
    """``SLIPSTREAM_LOG_LEVEL`` (info), ``SLIPSTREAM_LOG_FORMAT`` (console, json). Raises ``ConfigError``."""
    form = os.environ.get("SLIPSTREAM_LOG_FORMAT") or "console"
    if form not in {"console", "json"}:
        raise ConfigError(f"SLIPSTREAM_LOG_FORMAT={form}: there are console and json")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Console())
    handler.addFilter(FloodFilter(handler))
    if tenant := os.environ.get(TENANT_ENV):
        handler.addFilter(partial(_name, tenant))
    wanted = level or os.environ.get("SLIPSTREAM_LOG_LEVEL") or "info"
    number = logging.getLevelNamesMapping().get(wanted.upper())
    if number is None or not number:
        raise ConfigError(f"SLIPSTREAM_LOG_LEVEL={wanted}: there are debug, info, warning, error and critical")
    root = logging.getLogger()
    root.setLevel(max(number, logging.INFO))
    root.handlers[:] = [handler]
    for name in OWN_LOGGERS:
        logging.getLogger(name).setLevel(number)
    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))
