"""Web pages that ask a proxy without keys."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from aiohttp.test_utils import make_mocked_request

from slipstream_proxy.data.access.hosts import AllowedHosts
from slipstream_proxy.data.wire.errors import RequestRefused


def hosts(*, keyed: bool = False) -> AllowedHosts:
    return AllowedHosts(SimpleNamespace(open=not keyed), ["localhost", "host.docker.internal", "example.org"])  # type: ignore[arg-type]


def asked(**headers: str):
    return make_mocked_request("GET", "/", headers=headers)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8000",
        "127.0.0.1:1",
        "127.8.9.1",
        "[::1]:8000",
        "EXAMPLE.org",
        "host.docker.internal:1",
        "localhost.",
        "localhost.:80",
    ],
)
def test_served_names(host):
    served = hosts()
    served.check(asked(Host=host, Origin=f"http://{host}"))
    assert served.serves(host.encode()) and served.serves(host.encode())


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "",
        "a b",
        "localhost:80:80",
        "10.0.0.1",
        "[::2]",
        "ë",
        "localhost, b",
        ".",
        "localhost..",
        "evil.example.",
    ],
)
def test_dns_rebinding_shows_in_host(host):
    with pytest.raises(RequestRefused) as e:
        hosts().check(asked(Host=host))
    assert e.value.status == 403 and e.value.param == "host"
    assert not hosts().serves(host.encode())
    hosts(keyed=True).check(asked(Host=host))
    assert hosts(keyed=True).serves(host.encode())


def test_what_was_found_fine_is_kept_within_bounds():
    served = hosts()
    for port in range(2000):
        assert served.serves(b"localhost:%d" % port)
    assert len(served._fine) < 2000 and served.serves(b"localhost:1999") and not served.serves(b"evil.example")


def test_another_sites_page_shows_in_origin():
    for origin in ("http://evil.example", "null", "http://["):
        with pytest.raises(RequestRefused) as e:
            hosts().check(asked(Host="localhost", Origin=origin))
        assert e.value.param == "origin"
        hosts(keyed=True).check(asked(Host="localhost", Origin=origin))
