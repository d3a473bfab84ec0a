"""What Slipstream raises.

SlipstreamError
├── ConfigError          a setting is wrong: the command ends with exit code 2
├── StartError           something outside is not as needed (port in use, no such model): exit code 2
└── ApiError             the control API answered with an error (``status``, ``field``, ``fix``)
└── Unavailable      it did not answer at all; worth another try
"""

from __future__ import annotations


class SlipstreamError(Exception):
    """Root of all."""


class ConfigError(SlipstreamError):
    pass


class StartError(SlipstreamError):
    pass


class ApiError(SlipstreamError):
    """The control API's answer. ``status`` is HTTP's (0: there was none)."""

    def __init__(self, status: int, message: str, *, field: str | None = None, fix: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.field = field
        self.fix = fix


class Unavailable(ApiError):
    def __init__(self, message: str) -> None:
        super().__init__(0, message, fix="is the proxy running, and is its URL right?")
