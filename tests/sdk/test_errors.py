from __future__ import annotations

from slipstream.errors import ApiError, ConfigError, SlipstreamError, StartError, Unavailable


def test_one_root() -> None:
    assert all(issubclass(e, SlipstreamError) for e in (ConfigError, StartError, ApiError))
    assert issubclass(Unavailable, ApiError)


def test_an_api_error_carries_what_helps() -> None:
    e = ApiError(422, "no", field="value", fix="send a number")
    assert (str(e), e.status, e.field, e.fix) == ("no", 422, "value", "send a number")
    away = Unavailable("away")
    assert (str(away), away.status) == ("away", 0)
    assert away.fix
