"""Logs: one line each, for a person (console) or a machine (``SLIPSTREAM_LOG_FORMAT=json``). Never a secret, never a message's text."""

from __future__ import annotations

import json
import logging
import os
import sys
import time

from slipstream.errors import ConfigError

_PLAIN = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """What was passed as ``extra=``."""
    return {k: v for k, v in vars(record).items() if k not in _PLAIN}


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "part": record.name,
        }
        line |= {"message": record.getMessage()} | _fields(record)
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _Console(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        extra = "".join(f" {k}={v}" for k, v in _fields(record).items())
        text = record.getMessage().replace("\n", "\n    ")
        line = f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {record.levelname.lower():7} {text}{extra}"
        return line + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


def setup_logging(level: str | None = None) -> None:
    """``SLIPSTREAM_LOG_LEVEL`` (info), ``SLIPSTREAM_LOG_FORMAT`` (console or json); to stderr. Raises ``ConfigError`` for a level that there is not."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if os.environ.get("SLIPSTREAM_LOG_FORMAT") == "json" else _Console())
    root = logging.getLogger()
    wanted = level or os.environ.get("SLIPSTREAM_LOG_LEVEL", "info")
    try:
        root.setLevel(wanted.upper())
    except ValueError:
        raise ConfigError(
            f"SLIPSTREAM_LOG_LEVEL={wanted}: there are debug, info, warning, error and critical"
        ) from None
    root.handlers[:] = [handler]
    for noisy in ("httpx", "httpcore", "asyncio", "urllib3", "LiteLLM", "aiohttp.access", "matplotlib", "filelock"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
