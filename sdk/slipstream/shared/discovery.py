"""Addresses of engines that come and go: a DNS name with one for each engine, as a headless Service of Kubernetes
has, or a file with one address a line.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

DNS_SCHEME = "dns+http"
FILE_SCHEME = "file"


class NotResolved(Exception):
    """The name has no address now, or the file cannot be read."""


def is_source(url: str) -> bool:
    """Whether it stands for several addresses."""
    return urlsplit(url).scheme in (DNS_SCHEME, FILE_SCHEME)


def addresses_of(source: str) -> list[str]:
    """What a name or a file says now, in one order whatever order it says it in. Raises ``NotResolved``."""
    parts = urlsplit(source)
    if parts.scheme == FILE_SCHEME:
        try:
            lines = Path(parts.path).read_text(encoding="utf-8").split()
        except (OSError, ValueError) as e:
            raise NotResolved(f"{source}: {e}") from e
        return [line.rstrip("/").removesuffix("/v1") for line in lines if line.startswith(("http://", "https://"))]
    port = parts.port or 80
    try:
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except OSError as e:
        raise NotResolved(f"{source}: {e}") from e
    hosts = {str(address[0]) for _, _, _, _, address in found}
    return sorted(f"http://{f'[{host}]' if ':' in host else host}:{port}{parts.path.rstrip('/')}" for host in hosts)


def addresses(urls: Iterable[str]) -> list[str]:
    """Of all: each once. What cannot be resolved now is left out."""
    found: dict[str, None] = {}
    for url in urls:
        if not is_source(url):
            found[url] = None
            continue
        try:
            found.update(dict.fromkeys(addresses_of(url)))
        except NotResolved:
            continue
    return list(found)
