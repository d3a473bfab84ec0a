"""Machines of a cluster as namespaces of this one: each has a host name, an interface, an address and a loopback of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

BRIDGE_NAME, NETWORK_PREFIX = "slipbr0", "10.213.77"
"""This machine's own address there ends with 254, that of the first of the others with 1."""


@dataclass(frozen=True, slots=True)
class Machine:
    namespace: str
    host: str

    def argv(self, *words: str) -> list[str]:
        """To run ``words`` there. Host names resolve to addresses, as a cluster's DNS has them."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.host.partition(".")[0]]
        return ["ip", "netns", "exec", self.namespace, *named, *words]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


def _undo(*words: str) -> None:
    subprocess.run(["ip", *words], check=False, capture_output=True, timeout=20)


@contextmanager
def machines(hosts: Sequence[str]) -> Iterator[tuple[str, list[Machine]]]:
    """→ This machine's address as they see it, and they. Skips where namespaces are not permitted."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and iproute2")
    with ExitStack() as stack:
        try:
            _ip("link", "add", BRIDGE_NAME, "type", "bridge")
            stack.callback(_undo, "link", "del", BRIDGE_NAME)
            _ip("addr", "add", f"{NETWORK_PREFIX}.254/24", "dev", BRIDGE_NAME)
            _ip("link", "set", BRIDGE_NAME, "up")
            found = [_add(stack, n, hosts) for n in range(len(hosts))]
        except subprocess.CalledProcessError as e:
            pytest.skip(f"no network namespaces here: {e.stderr.decode().strip()}")
        yield f"{NETWORK_PREFIX}.254", found


def _add(stack: ExitStack, n: int, hosts: Sequence[str]) -> Machine:
    namespace, inside, outside = f"slipnode{n}", f"slip{n}", f"slipout{n}"
    _ip("netns", "add", namespace)
    stack.callback(_undo, "netns", "del", namespace)
    _ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", namespace)
    _ip("link", "set", outside, "master", BRIDGE_NAME, "up")
    _ip("-n", namespace, "addr", "add", f"{NETWORK_PREFIX}.{n + 1}/24", "dev", inside)
    for interface in (inside, "lo"):
        _ip("-n", namespace, "link", "set", interface, "up")
    folder = Path("/etc/netns") / namespace  # what lies there takes the place of /etc/hosts inside
    folder.mkdir(parents=True, exist_ok=True)
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    lines = [f"{NETWORK_PREFIX}.{i + 1} {host} {host.partition('.')[0]}" for i, host in enumerate(hosts)]
    (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n")
    return Machine(namespace, hosts[n])
