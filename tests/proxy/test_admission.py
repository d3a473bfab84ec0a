"""Who may call, and how often."""

from __future__ import annotations

import time

import pytest
from tests.support.dataplane import ASK, post

from slipstream_proxy.data.access.admission import Admission, credential
from slipstream_proxy.data.wire.errors import RequestRefused
from slipstream_proxy.keys import KEYLESS_CALLER, Keys


def test_without_keys_anybody(tmp_path):
    admission = Admission(Keys(tmp_path / "keys.json"))
    assert admission.open and admission.who({}) == (KEYLESS_CALLER, None)
    assert admission.who({b"authorization": b"Bearer any:e1"}) == (KEYLESS_CALLER, "e1")
    Keys(tmp_path / "keys.json").add("a", ["inference"])
    admission.keys._looked = 0.0
    assert not admission.open and not Admission(Keys(tmp_path / "keys.json"), keyed=False).open


def test_a_key_is_known_until_it_is_revoked(tmp_path):
    keys = Keys(tmp_path / "keys.json")
    uid, secret = keys.add("a", ["inference"])
    admission = Admission(keys)
    headers = {b"authorization": f"Bearer {secret}".encode()}
    key, suffix = admission.who(headers)
    assert (key.id, suffix) == (uid, None) and admission.who(headers)[0] is key
    assert admission.who({b"x-api-key": f"{secret}:task:e1".encode()}) == (key, "task:e1")
    keys.revoke(uid)
    for bad in (headers, {}, {b"authorization": b"Bearer nope"}, {b"authorization": b"Basic eDp5"}):
        with pytest.raises(RequestRefused) as e:
            admission.who(bad)
        assert e.value.status == 401


@pytest.mark.parametrize("other", [b"", b"Basic dTpw"])
def test_what_stood_beside_a_key_is_no_key(tmp_path, other):
    keys = Keys(tmp_path / "keys.json")
    uid, secret = keys.add("a", ["inference"])
    admission = Admission(keys)
    assert admission.who({b"authorization": other, b"x-api-key": secret.encode()})[0].id == uid
    with pytest.raises(RequestRefused):
        admission.who({b"authorization": other})


def test_scopes(tmp_path):
    keys = Keys(tmp_path / "keys.json")
    _, secret = keys.add("a", ["reward"])
    admission = Admission(keys)
    key, _ = admission.who({b"api-key": secret.encode()})
    with pytest.raises(RequestRefused) as e:
        admission.enter(key)
    assert e.value.status == 403
    admission.enter(key, "reward")
    admission.leave(key)


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({b"authorization": b"Bearer s"}, ("s", None)),
        ({b"authorization": b"bearer s:e"}, ("s", "e")),
        ({b"authorization": b"Bearer s:t:e"}, ("s", "t:e")),
        ({b"authorization": b"Basic s"}, (None, None)),
        ({b"api-key": b" s "}, ("s", None)),
        ({b"x-api-key": b"s", b"api-key": b"t"}, ("s", None)),
        ({b"authorization": b"Basic dTpw", b"x-api-key": b"s:e"}, ("s", "e")),
        ({b"authorization": b"", b"api-key": b"s"}, ("s", None)),
        ({b"authorization": b"Bearer t", b"x-api-key": b"s"}, ("t", None)),
        ({b"authorization": b"  BEARER   t  "}, ("t", None)),
        ({}, (None, None)),
    ],
)
def test_credentials(headers, found):
    assert credential(headers) == found


async def test_an_open_proxy_closes_with_the_first_key(start, fake):
    proxy = await start()
    assert (await post(proxy.url, ASK))[0] == 200
    keys = Keys(proxy.config.keys_file)
    key_id, secret = keys.add("agent", ["inference"])
    proxy.plane.admission.keys._looked = 0.0
    assert (await post(proxy.url, ASK))[0] == 401
    (count, at) = proxy.plane.services.metrics.turned_away[401]
    assert count == 1 and time.time() - at < 60, "status says that agents have no key"
    assert (await post(proxy.url, ASK, headers={"authorization": f"Bearer {secret}"}))[0] == 200
    keys.revoke(key_id)
    proxy.plane.admission.keys._looked = 0.0
    assert (await post(proxy.url, ASK))[0] == 401  # for good


@pytest.mark.parametrize("when", ["before", "later"])
async def test_a_keys_file_that_cannot_be_read_is_answered_at_once_and_opens_no_door(start, tmp_path, when):
    """A worker that starts beside it serves: with 503 until the file is whole, as a worker that died has no caller's answer."""
    file = tmp_path / "data" / "keys.json"
    file.parent.mkdir(exist_ok=True)
    if when == "before":
        file.write_text("{")
    proxy = await start()
    assert proxy.config.keys_file == file
    keys = proxy.plane.admission.keys
    if when == "later":
        assert (await post(proxy.url, ASK))[0] == 200
        file.write_text('{"keys": [1]}')
        keys._looked = 0.0
    for headers in ({}, {"authorization": "Bearer sk-slip-any"}):
        status, fields, body = await post(proxy.url, ASK, headers=headers)
        assert (status, fields["retry-after"]) == (503, "1")
        assert b"cannot read its keys file" in body
    file.unlink()
    _, secret = Keys(file).add("agent", ["inference"])
    keys._looked = 0.0
    assert (await post(proxy.url, ASK, headers={"authorization": f"Bearer {secret}"}))[0] == 200
    assert (await post(proxy.url, ASK))[0] == 401
