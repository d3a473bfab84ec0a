from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slipstream.errors import SlipstreamError
from slipstream_proxy.data.access.admission import Admission
from slipstream_proxy.data.wire.errors import RequestRefused
from slipstream_proxy.keys import Keys


def bearer(secret):
    return {b"authorization": f"Bearer {secret}".encode()}


def test_add_list_check_revoke(tmp_path):
    path = tmp_path / "keys.json"
    keys = Keys(path)
    key_id, secret = keys.add("ci", ["inference", "reward"], rate=5, concurrency=2)
    assert oct(path.stat().st_mode)[-3:] == "600" and secret not in path.read_text()
    key = keys.check(secret)
    assert key is not None and (key.id, key.name, key.rate, key.concurrency) == (key_id, "ci", 5, 2)
    assert key.may("reward") and not key.may("admin") and keys.check("sk-slip-other") is None
    assert [k.id for k in keys.list()] == [key_id]
    assert keys.revoke(key_id) and not keys.revoke(key_id) and keys.check(secret) is None


def test_a_key_may_be_a_tenants(tmp_path):
    keys = Keys(tmp_path / "keys.json")
    uid, secret = keys.add("ci", ["admin"], tenant="acme")
    _, own = keys.add("ops", ["admin"])
    assert keys.tenants() == {"acme"} and keys.check(secret).tenant == "acme" and keys.check(own).tenant == ""
    assert keys.check(keys.rotate(uid)).tenant == "acme"
    assert keys.path.read_text().count('"tenant"') == 1, "older versions read the others"
    with pytest.raises(SlipstreamError, match="no tenant's name"):
        keys.add("ci", ["admin"], tenant="../x")


def test_a_key_with_another_secret_is_the_same_key(tmp_path, monkeypatch):
    keys = Keys(tmp_path / "keys.json")
    uid, first = keys.add("ci", ["inference"], concurrency=2)
    limits, admission = keys.check(first), Admission(keys)
    assert admission.who(bearer(first))[0].id == uid
    second = keys.rotate(uid, grace=60.0)
    third = keys.rotate(uid, grace=3600.0)
    for secret in (first, second, third):
        key = admission.who(bearer(secret))[0]
        assert (key.id, key.concurrency) == (uid, limits.concurrency)
    assert len(keys.list()) == 1 and len(keys.secrets()) == 3
    later = time.time() + 61.0
    monkeypatch.setattr("slipstream_proxy.keys.time.time", lambda: later)
    assert admission.who(bearer(second))[0].id == admission.who(bearer(third))[0].id == uid
    with pytest.raises(RequestRefused):
        admission.who(bearer(first))
    fourth = keys.rotate(uid)
    assert keys.check(third) is keys.check(second) is None and keys.check(fourth).until is None
    assert [len(k) for k in (keys.list(), keys.secrets())] == [1, 1]
    assert keys.revoke(uid) and keys.check(fourth) is None
    with pytest.raises(SlipstreamError, match="no key with id"):
        keys.rotate(uid)


def test_what_a_newer_version_wrote_beside_a_key_is_passed_over(tmp_path):
    path = tmp_path / "keys.json"
    _, secret = Keys(path).add("ci", ["inference"])
    assert "until" not in path.read_text(), "an older version reads it too"
    path.write_text(path.read_text().replace('"name"', '"region": "eu", "name"'))
    assert Keys(path).check(secret) is not None


def test_the_file_is_read_again_when_it_changes(tmp_path):
    here, there = Keys(tmp_path / "k"), Keys(tmp_path / "k")
    _, secret = there.add("a", ["inference"])
    here._looked = 0.0
    assert here.check(secret) is not None


def test_several_hands_at_once_lose_nothing(tmp_path):
    path = tmp_path / "data" / "k"
    gone = [Keys(path).add(f"g{i}", ["admin"])[0] for i in range(20)]

    def change(i: int) -> str:
        assert Keys(path).revoke(gone[i])
        return Keys(path).add(f"k{i}", ["inference"])[0]

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(change, range(20)))
    assert sorted(k.id for k in Keys(path).list()) == sorted(made)


@pytest.mark.parametrize(
    "bad",
    [
        {"name": ""},
        {"name": " "},
        {"name": "a\nb"},
        {"name": "a\x1b[31m"},
        *({"rate": r} for r in (0.0, -1.0, float("nan"), float("inf"))),
        {"concurrency": 0},
        {"concurrency": -1},
    ],
)
def test_names_and_limits_that_mean_nothing(tmp_path, bad):
    with pytest.raises(SlipstreamError):
        Keys(tmp_path / "k").add(**{"name": "a", "scopes": ["inference"], **bad})
    assert not (tmp_path / "k").exists()


@pytest.mark.parametrize("scopes", [[], ["nope"]])
def test_bad_scopes(tmp_path, scopes):
    with pytest.raises(SlipstreamError):
        Keys(tmp_path / "k").add("a", scopes)


def test_a_file_that_is_out_of_reach_is_not_taken_for_none(tmp_path, monkeypatch):
    """Of another user, or on a disk that fails: "no keys" would open what they close."""
    path = tmp_path / "keys.json"
    _, secret = Keys(path).add("a", ["admin"])
    known = Keys(path, serving=True)
    assert known.check(secret)

    def refuse(self, **kwargs):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(SlipstreamError, match=r"keys\.json: cannot be read: Permission denied"):
        Keys(path)
    known._looked = -10.0
    assert known.check(secret) and len(known) == 1


def test_a_broken_file_is_said_at_the_start_and_survived_later(tmp_path):
    path = tmp_path / "k"
    keys = Keys(path)
    _, secret = keys.add("a", ["inference"])
    path.write_text("{")
    os.utime(path, (time.time() + 5, time.time() + 5))
    keys._looked = 0.0
    assert keys.check(secret) is not None
    with pytest.raises(SlipstreamError):
        Keys(path)


def test_admission(tmp_path):
    keys = Keys(tmp_path / "k")
    _, secret = keys.add("a", ["inference"], rate=2, concurrency=1)
    _, judge = keys.add("j", ["judge"])
    admission = Admission(keys)
    key, suffix = admission.who(bearer(f"{secret}:task:ep"))
    assert suffix == "task:ep"
    assert admission.who({b"x-api-key": secret.encode()})[0] == key
    for headers, status in (({}, 401), (bearer("x"), 401), ({b"authorization": b"Basic abc"}, 401)):
        with pytest.raises(RequestRefused) as e:
            admission.who(headers)
        assert e.value.status == status
    with pytest.raises(RequestRefused) as e:
        admission.enter(admission.who(bearer(judge))[0])
    assert e.value.status == 403
    admission.enter(key)
    with pytest.raises(RequestRefused) as e:
        admission.enter(key)
    assert e.value.status == 429 and b"retry-after: 1" in e.value.fields
    admission.leave(key)
    admission.enter(key)
    admission.leave(key)
    with pytest.raises(RequestRefused) as e:
        admission.enter(key)
    assert "rate" in e.value.message


def test_revoking_the_last_key_opens_no_door(tmp_path):
    keys = Keys(tmp_path / "k")
    key_id, secret = keys.add("a", ["inference"])
    admission = Admission(keys)
    keys.revoke(key_id)
    with pytest.raises(RequestRefused):
        admission.who(bearer(secret))


def test_without_keys_anyone_is_let_in(tmp_path):
    key, suffix = Admission(Keys(tmp_path / "k")).who(bearer("EMPTY:ep1"))
    assert key.id == "-" and suffix == "ep1"


def test_a_key_is_known_at_once_and_a_rotated_secret_too(tmp_path):
    serving = Keys(tmp_path / "keys.json", serving=True)
    other = Keys(tmp_path / "keys.json")
    for n in range(8):
        key_id, secret = other.add(f"k{n}", ["inference"])
        assert serving.check(secret) is not None
        assert serving.check(other.rotate(key_id, 60.0)) is not None
    assert serving.check("sk-slip-unknown") is None


def test_reserved_keys_close_no_proxy_and_are_in_force_with_the_first_key(tmp_path):
    keys = Keys(tmp_path / "keys.json")
    before = keys.reserve("up-1", ["judge"])
    after = keys.reserve("up-2", ["trainer"])
    assert len(keys) == 0 and keys.list() == []
    key_id, _ = keys.add("me", ["inference"])
    again = Keys(tmp_path / "keys.json")
    assert again.check(before) is None and again.check(after).may("trainer")
    secret = keys.rotate(key_id)
    assert again.check(after) is not None and again.check(secret) is not None
    admission = Admission(Keys(tmp_path / "keys.json", serving=True))
    keys.revoke(key_id)
    assert len(Keys(tmp_path / "keys.json")) == 0
    assert admission.keys.check("unknown, so the file is read again") is None
    assert admission.who(bearer(after))[0].may("trainer"), "who revokes the last key stops no trainer of `up`"
    with pytest.raises(RequestRefused):
        admission.who(bearer(secret))
