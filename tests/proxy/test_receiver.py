"""The handle of a request that was sent."""

from __future__ import annotations

from slipstream_proxy.data.wire.receiver import Sent


class Connection:
    def __init__(self) -> None:
        self.told = []

    def __getattr__(self, name):
        return lambda: self.told.append(name)


def test_before_a_connection_is_there_it_remembers():
    sent = Sent()
    sent.pause()
    assert sent.paused and not sent.dropped
    sent.resume()
    sent.drop()
    assert sent.dropped and not sent.paused


def test_then_the_connection_is_told():
    sent, connection = Sent(), Connection()
    sent.connection = connection  # type: ignore[assignment]
    sent.pause()
    sent.resume()
    sent.drop()
    assert connection.told == ["pause", "resume", "drop"]
