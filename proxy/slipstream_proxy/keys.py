"""API keys: ``keys.json`` in the data folder. Secrets are kept as SHA-256 (192 random bits need no salt)."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import hashlib
import json
import math
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Final

from slipstream.contract import KeyScope
from slipstream.errors import SlipstreamError
from slipstream.shared.tenant_names import check_tenant_name
from slipstream_proxy.json_types import JsonObject

_monotonic: Final[Callable[[], float]] = time.monotonic
TENANT_REMOVED_ACTION = "tenant_remove"
KEY_SCOPES = tuple(scope.value for scope in KeyScope)


@dataclass(slots=True, frozen=True)
class Key:
    """``rate`` is requests a second (bursts of as many), ``concurrency`` requests at once; None: no limit."""

    id: str
    name: str
    scopes: tuple[str, ...]
    rate: float | None = None
    concurrency: int | None = None
    created: float = 0.0
    until: float | None = None
    """When this secret ends, in seconds since the epoch: another one has taken its place. None: it does not end."""
    tenant: str = ""
    """To whom its calls belong, and all that it may do. Empty: the proxy's own folder; an admin is the operator."""

    @property
    def ended(self) -> bool:
        return self.until is not None and time.time() >= self.until

    def may(self, scope: str) -> bool:
        return scope in self.scopes or KeyScope.ADMIN in self.scopes


KEYLESS_CALLER = Key("-", "-", KEY_SCOPES)
"""Who calls when no keys are configured."""


@dataclass(slots=True)
class _KeysFile:
    stamp: tuple[int, int] | None = None
    by_hash: dict[str, Key] = field(default_factory=dict)
    reserved: dict[str, Key] = field(default_factory=dict)
    """Keys that are in force once there is another: by themselves they close no proxy."""


class Keys:
    """The keys in a file, which is read again when it changes (looked at once a second at most)."""

    def __init__(self, path: Path, *, serving: bool = False) -> None:
        """``serving``: a file that cannot be read shows in ``broken``. Else it raises ``SlipstreamError``."""
        self.path = path
        self.serving = serving
        self.broken: str | None = None
        """Why no key is known although there is a file."""
        self._file = _KeysFile()
        self._looked = 0.0
        self._generation = 0
        self._load()

    def generation(self) -> int:
        """Changes when the file has changed (looked at once a second at most)."""
        if _monotonic() - self._looked > 1.0:
            self._load()
        return self._generation

    def __len__(self) -> int:
        return len(self._file.by_hash)

    def tenants(self) -> set[str]:
        """Those that have a key."""
        self._load()
        return {k.tenant for k in self._file.by_hash.values() if k.tenant}

    def add(
        self,
        name: str,
        scopes: tuple[str, ...] | list[str],
        rate: float | None = None,
        concurrency: int | None = None,
        tenant: str = "",
    ) -> tuple[str, str]:
        """Make a key; returns its id and its secret, which is shown this once."""
        if unknown := [s for s in scopes if s not in KEY_SCOPES]:
            raise SlipstreamError(f"no such scope: {', '.join(unknown)} (there are {', '.join(KEY_SCOPES)})")
        if not scopes:
            raise SlipstreamError(f"a key needs a scope ({', '.join(KEY_SCOPES)})")
        if not name.strip() or not name.isprintable():
            raise SlipstreamError("a key needs a name of printable characters")
        if rate is not None and not 0.0 < rate < math.inf:
            raise SlipstreamError(f"a rate is a number of requests a second above 0, not {rate}")
        if concurrency is not None and concurrency < 1:
            raise SlipstreamError(f"a concurrency is 1 or more, not {concurrency}")
        if tenant:
            check_tenant_name(tenant)
        secret = "sk-slip-" + secrets.token_urlsafe(24)
        limits = rate, concurrency, time.time()
        key = Key(secrets.token_hex(6), name, tuple(dict.fromkeys(scopes)), *limits, tenant=tenant)
        with self._changing():
            self._save({**self._given(), _hash(secret): key})
            self._note("key_add", key)
        return key.id, secret

    def list(self) -> list[Key]:
        """A key each, with its newest secret."""
        self._load()
        newest = {k.id: k for k in sorted(self._file.by_hash.values(), key=lambda k: k.created)}
        return list(newest.values())

    def name_of(self, id: str) -> str | None:
        """The name of the key with this id; None: it has none, or is gone."""
        return next((k.name for k in self.list() if k.id == id), None)

    def secrets(self) -> set[tuple[str, float]]:
        """Key and the time at which its secret was made, of each secret that is taken now."""
        self._load()
        taken = {**self._file.reserved, **self._file.by_hash}
        return {(k.id, k.created) for k in taken.values() if not k.ended}

    def reserve(self, name: str, scopes: Sequence[str]) -> str:
        """A secret that is taken as soon as there are keys, in place of those that were reserved before. An open proxy
        stays open, and takes it like anything else.
        """
        secret = "sk-slip-" + secrets.token_urlsafe(24)
        key = Key(secrets.token_hex(6), name, tuple(scopes), created=time.time())
        with self._changing():
            self._save(self._given(), {_hash(secret): key})
        return secret

    def _given(self) -> dict[str, Key]:
        return {h: k for h, k in self._file.by_hash.items() if h not in self._file.reserved}

    def named(self, text: str) -> Key:
        """The key of this id or name. Raises ``SlipstreamError``: there is none, or several have the name."""
        keys = self.list()
        found = [k for k in keys if k.id == text] or [k for k in keys if k.name == text]
        if not found:
            raise SlipstreamError(f"no key with id or name {text}: `slipstream keys list` shows them")
        if len(found) > 1:
            ids = ", ".join(k.id for k in found)
            raise SlipstreamError(f"{len(found)} keys have the name {text}: give an id of {ids}")
        return found[0]

    def rotate(self, key_id: str, grace: float = 0.0) -> str:
        """Give a key another secret, which is returned. It stays the same key, and its runs stay its own.

        ``grace``: seconds for which the old secret is still taken.
        """
        if not 0.0 <= grace < math.inf:
            raise SlipstreamError(f"the grace period must be a number of seconds, 0 or more, not {grace}")
        secret, now = "sk-slip-" + secrets.token_urlsafe(24), time.time()
        with self._changing():
            before = {h: k for h, k in self._file.by_hash.items() if k.id == key_id}
            if not before:
                raise SlipstreamError(f"no key with id {key_id}: `slipstream keys list` shows them")
            newest = max(before.values(), key=lambda k: k.created)
            end = now + grace
            ending = {h: replace(k, until=min(end, k.until or end)) for h, k in before.items()} if grace else {}
            left = {h: k for h, k in self._given().items() if h not in before and not k.ended}
            self._save({**left, **ending, _hash(secret): replace(newest, created=now, until=None)})
            self._note("key_rotate", newest)
        return secret

    def revoke(self, key_id: str) -> bool:
        """Returns whether there was such a key. The proxy knows within a second."""
        with self._changing():
            left = {h: k for h, k in self._given().items() if k.id != key_id}
            found = len(left) < len(self._given())
            gone = [k for k in self._given().values() if k.id == key_id]
            if found:
                self._save(left)
                self._note("key_revoke", gone[0])
        return found

    def note_removal(self, tenant: str) -> None:
        """Whoever comes under the tenant's name has nothing to do with its keys."""
        self._log(TENANT_REMOVED_ACTION, tenant, {"tenant": tenant})

    def _note(self, action: str, key: Key) -> None:
        whose = {"tenant": key.tenant} if key.tenant else {}
        self._log(action, key.id, {"name": key.name, "scopes": list(key.scopes), **whose})

    def _log(self, action: str, target: str, detail: JsonObject) -> None:
        """Into the log that the audit log is filled from. It is done, whether that works or not."""
        said = {"at": time.time(), "by": _user(), "action": action, "key": target}
        line = json.dumps({**said, "detail": detail}) + "\n"
        with contextlib.suppress(OSError):
            fd = os.open(log_of(self.path), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w") as file:
                file.write(line)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Nobody else changes the file meanwhile: else their key would be lost, or a revoked one come back."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            self._load()
            yield
        finally:
            os.close(fd)

    def check(self, secret: str) -> Key | None:
        """The key of a secret. Compared by hash, so that time tells nothing about the secret. One that is not known may
        have been made a moment ago: the file is looked at.
        """
        found = _hash(secret)
        if found not in self._file.by_hash or time.monotonic() - self._looked > 1.0:
            self._load()
        key = self._file.by_hash.get(found) or self._file.reserved.get(found)  # a closed proxy's own, whatever goes
        return None if key is None or key.ended else key

    def _load(self) -> None:
        self._looked = time.monotonic()
        try:
            stat = self.path.stat()
            stamp = (stat.st_mtime_ns, stat.st_ino)
            if stamp == self._file.stamp:
                return
            read = json.loads(self.path.read_text())
            by_hash = {k.pop("hash"): _key_of(k) for k in read["keys"]}
            reserved = {k.pop("hash"): _key_of(k) for k in read.get("reserved", ())}
        except (FileNotFoundError, NotADirectoryError):
            self._file, self.broken = _KeysFile(), None
            self._generation += 1
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
            if self._file.stamp is not None:
                return  # half-written by another hand, or out of reach: what was known stays valid
            what = f"cannot be read: {e.strerror}" if isinstance(e, OSError) else f"not a keys file: {e}"
            self.broken = f"{self.path}: {what}"
            if not self.serving:
                raise SlipstreamError(self.broken) from e
            return
        self._file, self.broken = _KeysFile(stamp, {**reserved, **by_hash} if by_hash else {}, reserved), None
        self._generation += 1

    def _save(self, given: dict[str, Key], reserved: dict[str, Key] | None = None) -> None:
        """``reserved`` None: as they are."""
        parts = {"keys": given, "reserved": self._file.reserved if reserved is None else reserved}
        members = {name: [{"hash": h, **_members(k)} for h, k in keys.items()] for name, keys in parts.items() if keys}
        text = json.dumps({"keys": [], **members}, indent=1)
        fd, temp = tempfile.mkstemp(dir=self.path.parent, prefix=".keys-")  # mkstemp makes it 0600
        with os.fdopen(fd, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temp).replace(self.path)
        self._load()


_FIELDS = frozenset(f.name for f in fields(Key))


def _key_of(members: JsonObject) -> Key:
    """A key of the file. What a newer version has written beside it is passed over."""
    known = {name: value for name, value in members.items() if name in _FIELDS}
    return Key(**{**known, "scopes": tuple(known["scopes"])})


def _members(key: Key) -> JsonObject:
    """As the file has it. Older versions read no ``until`` and no ``tenant``: these stand there if they say so."""
    return {name: value for name, value in asdict(key).items() if value or name not in ("until", "tenant")}


def log_of(keys_file: Path) -> Path:
    """Where it is written down who made and revoked keys: a line of JSON each, without secrets."""
    return keys_file.with_name(f"{keys_file.stem}.log.jsonl")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"  # a container's user has no name


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
