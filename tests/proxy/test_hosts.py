"""Web pages that ask a proxy without keys."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from aiohttp.test_utils import make_mocked_request

from slipstream_proxy.data.access.hosts import AllowedHosts
from slipstream_proxy.data.wire.errors import RequestRefused


def hosts(*, keyed: bool = False) -> AllowedHosts:
    return AllowedHosts(SimpleNamespace(open=not keyed), ["Example.org"])


def asked(**headers: str):
    return make_mocked_request("GET", "/", headers=headers)


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000", "example.org"])
def test_served_names(host):
    hosts().check(asked(Host=host, Origin=f"http://{host}"))


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "a b", "localhost:80:80"])
def test_dns_rebinding_shows_in_host(host):
    with pytest.raises(RequestRefused) as e:
        hosts().check(asked(Host=host))
    assert e.value.status == 403 and e.value.param == "host"
    hosts(keyed=True).check(asked(Host=host))


def test_another_sites_page_shows_in_origin():
    for origin in ("http://evil.example", "null", "http://["):
        with pytest.raises(RequestRefused) as e:
            hosts().check_origin(asked(Host="localhost", Origin=origin))
        assert e.value.param == "origin"
        hosts(keyed=True).check_origin(asked(Origin=origin))
