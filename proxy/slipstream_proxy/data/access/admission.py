"""Who may call, and how often."""

from __future__ import annotations

from slipstream_proxy.data.access.limits import Limits
from slipstream_proxy.data.wire.errors import RequestRefused
from slipstream_proxy.data.wire.identity import text_of
from slipstream_proxy.data.wire.request import Headers, RequestHead
from slipstream_proxy.keys import KEYLESS_CALLER, Key, Keys

KEY_FIELD = "header.authorization"


class Admission:
    """Keys from the keys file; with none there everyone is ``KEYLESS_CALLER`` (the parent then binds to loopback
    only).
    """

    def __init__(self, keys: Keys, limits: Limits | None = None, keyed: bool | None = None) -> None:
        """``keyed``: whether there were keys when the proxy was started; None: it is started now."""
        self.keys = keys
        self.limits = limits or Limits()
        self._open = not keyed if keyed is not None else len(keys) == 0
        self._known: dict[bytes, tuple[Key, str | None, int]] = {}

    @property
    def open(self) -> bool:
        """Whether calls need no key: none was there at the start, and none came since. Revoking keeps the door shut."""
        if self._open:
            self.keys.generation()  # reads the file again, once a second at most
            if self.keys.broken is not None:
                return False
            self._open = len(self.keys) == 0
        return self._open

    def caller(self, request: RequestHead) -> tuple[Key, str | None]:
        """``who`` of a head that mostly came before."""
        known = request.caller
        if known is not None and known[2] == self.keys.generation():
            return known[0], known[1]
        found = self.who(request.headers)
        request.caller = self._known.get(request.headers.get(b"authorization", b""))
        return found

    def who(self, headers: Headers) -> tuple[Key, str | None]:
        """The key, and what stands behind its first colon. Raises ``RequestRefused``."""
        value = headers.get(b"authorization")
        known = self._known.get(value) if value is not None else None
        if known is not None and known[2] == self.keys.generation():
            return known[0], known[1]
        found = credential(headers)
        secret: str | None = found[0]
        suffix: str | None = found[1]
        if self.open:
            return KEYLESS_CALLER, suffix
        self.keys.generation()
        if self.keys.broken is not None:
            message = (
                "the proxy cannot read its keys file, so it knows no key: ask its administrator to repair the file"
            )
            raise RequestRefused(503, message, retry_after=1.0)
        if secret is None:
            fix = "send authorization: Bearer KEY (`slipstream keys add` makes a key)"
            raise RequestRefused(401, "no API key: send it as a bearer token", field=KEY_FIELD, fix=fix)
        key = self.keys.check(secret)
        if key is None:
            fix = "send a key that `slipstream keys list` shows; it may be revoked, expired or of another proxy"
            raise RequestRefused(401, "this API key is not known", field=KEY_FIELD, fix=fix)
        lasting = key.until is None
        if lasting and value is not None and suffix is None and value.strip()[:6].lower() == b"bearer":
            if len(self._known) >= 1024:
                self._known.clear()
            self._known[value] = (key, suffix, self.keys.generation())
        return key, suffix

    def enter(self, key: Key, scope: str = "inference") -> None:
        """Let a request of this key in, or raise ``RequestRefused``; ``leave`` must follow."""
        if not key.may(scope):
            raise RequestRefused(403, f"this API key has no scope {scope!r}")
        self.limits.enter(key)

    def leave(self, key: Key) -> None:
        self.limits.leave(key)


def credential(headers: Headers) -> tuple[str | None, str | None]:
    """Secret and suffix of ``Authorization: Bearer``, else of another client's header."""
    scheme, _, value = headers.get(b"authorization", b"").strip().partition(b" ")
    if scheme.lower() != b"bearer":
        other = headers.get(b"x-api-key") or headers.get(b"api-key") or headers.get(b"x-goog-api-key")
        if other is None:
            return None, None
        value = other
    secret, colon, suffix = value.strip().partition(b":")
    return secret.decode("latin-1"), text_of(suffix) if colon else None
