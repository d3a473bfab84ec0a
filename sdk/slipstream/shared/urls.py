"""URLs with a password in them: the password goes to the server that it is for, and is shown nowhere."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit, urlunsplit

HIDDEN_MARK = "***"
_LOGIN = re.compile(
    # the second way has a sign in it that was to be escaped
    r"(?:\b(\w{1,32}):)?//([^/?#\s\"<>]{1,256}|[^/?#\s\"<>:\[]{0,64}:(?!\d+\W)[^\s\"<>]{1,256})@"
)
_VALUE = r"('[^']*'|\"[^\"]*\"|[^&#;\s\"'<>]+)"
_QUERY = re.compile(
    r"(?<=[?&#])(pass|password|passwd|pwd|sslpassword|token|access_token|api_key|apikey|key|auth|secret|client_secret"
    rf"|sig|signature|x-amz-signature|x-amz-credential|x-amz-security-token)={_VALUE}"
    rf"|(?<!\w)(password|sslpassword)\s{{0,4}}=\s{{0,4}}{_VALUE}",
    re.IGNORECASE,
)


def without_password(text: object) -> str:
    """Any text, with ``***`` in place of the passwords of URLs in it, and of PostgreSQL's ``password=…``."""
    shown = _LOGIN.sub(_hidden, str(text))
    return _QUERY.sub(lambda m: f"{m[1] or m[3]}={HIDDEN_MARK}", shown)


def _hidden(found: re.Match[str]) -> str:
    scheme, login = found[1], found[2]
    user, colon, _ = login.partition(":")
    start = f"{scheme}://" if scheme else "//"
    if not colon and not (scheme or "").lower().startswith("http"):
        return found[0]  # a user without a password
    return f"{start}{user}:{HIDDEN_MARK}@" if colon else f"{start}{HIDDEN_MARK}@"


def has_password(text: str) -> bool:
    return without_password(text) != text


def split_login(url: str) -> tuple[str, str | None]:
    """The URL without what stands before its host, and that: ``user:password``."""
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, None
    return urlunsplit(parts._replace(netloc=host)), unquote(login)


def basic(login: str) -> str:
    """The value of an ``Authorization`` field (RFC 7617)."""
    user, _, password = login.partition(":")
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


def authorization(url: str, api_key: str | None, logins: Mapping[str, str]) -> dict[str, str]:
    """The header that an engine's requests carry. ``url``: an address of the engine, with or without a path."""
    for base, login in logins.items():
        if url == base or url.startswith(base + "/"):
            return {"authorization": basic(login)}
    return {"authorization": f"Bearer {api_key}"} if api_key else {}
