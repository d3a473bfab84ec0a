"""An error answer for the caller, which any part of the control plane may raise."""

from __future__ import annotations


class Problem(Exception):
    """An answer that is an error. ``field`` names what is wrong in the request, ``fix`` what to do about it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,
        field: str | None = None,
        fix: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type or PROBLEM_TYPES.get(status, "error")
        self.message = message
        self.field = field
        self.fix = fix
        self.headers = headers or {}


PROBLEM_TYPES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    409: "conflict",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid",
    429: "too_many_requests",
    500: "internal",
    503: "unavailable",
}
