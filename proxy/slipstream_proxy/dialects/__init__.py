"""The wire formats. Adding one is adding a file and a line here."""

from __future__ import annotations

import re

from slipstream_proxy.dialects.base import Dialect
from slipstream_proxy.dialects.chat import Chat
from slipstream_proxy.dialects.completions import Completions
from slipstream_proxy.dialects.gemini import Gemini
from slipstream_proxy.dialects.messages import Messages
from slipstream_proxy.dialects.responses import Responses

BY_NAME: dict[str, Dialect] = {d.name: d for d in (Chat(), Completions(), Responses(), Messages(), Gemini())}
BY_PATH: dict[str, Dialect] = {d.path: d for d in BY_NAME.values() if not d.paths}


def of_path(path: str) -> Dialect | None:
    """The format of a path without its query. None: it is of none."""
    return BY_PATH.get(path) or next((d for d in BY_NAME.values() if d.paths and re.fullmatch(d.paths, path)), None)


__all__ = ["BY_NAME", "BY_PATH", "Dialect", "of_path"]
