"""What stands in the spool."""

from __future__ import annotations

from dataclasses import MISSING, fields

from tests.support.dataplane import ASK, post

from slipstream_proxy.log.records import CallHead, Kind


async def test_a_call_fills_each_field_that_a_head_needs(start, fake):
    proxy = await start()
    await post(proxy.url, ASK)
    (frame,) = await proxy.record(1)
    needed = {f.name for f in fields(CallHead) if f.default is MISSING and f.default_factory is MISSING}
    assert frame.kind is Kind.CALL and needed <= frame.head.keys() <= {f.name for f in fields(CallHead)}
    head = CallHead(**frame.head)
    assert head.outcome == "ok" and head.tick > 0 and head.boot
