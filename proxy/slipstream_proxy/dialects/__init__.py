"""The wire formats. Adding one is adding a file and a line here."""

from __future__ import annotations

from slipstream_proxy.dialects.base import Dialect
from slipstream_proxy.dialects.chat import Chat
from slipstream_proxy.dialects.completions import Completions
from slipstream_proxy.dialects.messages import Messages
from slipstream_proxy.dialects.responses import Responses

BY_NAME: dict[str, Dialect] = {d.name: d for d in (Chat(), Completions(), Responses(), Messages())}
BY_PATH: dict[str, Dialect] = {d.path: d for d in BY_NAME.values()}

__all__ = ["BY_NAME", "BY_PATH", "Dialect"]
