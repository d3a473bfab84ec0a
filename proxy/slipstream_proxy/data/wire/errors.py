"""A refused request: the error that the client gets, in its own format."""

from __future__ import annotations

import math

ERROR_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    502: "upstream_error",
    503: "service_unavailable",
    504: "timeout_error",
}


class RequestRefused(Exception):
    """``retry_after`` in seconds. ``field``, ``fix``: for the control API."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        field: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.field, self.fix = field or param, fix
        self.retry_after = retry_after

    @property
    def kind(self) -> str:
        return ERROR_KINDS.get(self.status, "api_error")

    @property
    def fields(self) -> list[bytes]:
        found = []
        if self.retry_after is not None:
            found.append(b"retry-after: %d" % max(1, math.ceil(self.retry_after)))
        if self.status == 401:
            found.append(b"www-authenticate: Bearer")
        return found
