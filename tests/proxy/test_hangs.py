"""What the workers of a proxy tell each other of engines that hang."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import httpx
import pytest
import tomli_w
from tests.support import process, slipstream, until, wait_for
from tests.support.dataplane import ASK, post, read_request
from tests.support.fake_engine import FakeEngine

from slipstream.config import Config
from slipstream_proxy.data.engines import hangs as module
from slipstream_proxy.data.engines.hangs import HangTable
from slipstream_proxy.data.engines.live import LiveView
from slipstream_proxy.data.wire.errors import RequestRefused

URLS = ["http://a/", "http://b"]
A, B = "http://a", "http://b"
STREAM = {**ASK, "stream": True}


def tables(tmp_path: Path, count: int = 2) -> list[HangTable]:
    return [HangTable(600.0, tmp_path / "hangs", n) for n in range(count)]


@pytest.fixture
def views(tmp_path):
    config = Config(data_dir=str(tmp_path), engine={"urls": URLS, "name": "tiny"}, proxy={"workers": 2})
    return [LiveView(config, table) for table in tables(tmp_path)]


def refused(view: LiveView, url: str, call: str) -> bool:
    try:
        view.try_out(url, call)
    except RequestRefused as e:
        assert (e.status, e.retry_after) == (503, 1.0)
        return True
    return False


def test_what_one_worker_finds_out_all_know_at_once(views):
    one, two = views
    looked = []
    two.changed = lambda: looked.append(1)
    one.failed(A, "timeout", "c1", silent=True)
    for view in views:
        assert view.servers("tiny", "e") == [B] and view.lost() == [A] and refused(view, A, "c2")
    assert looked, "its health checks begin"
    two.mark_up(A)
    assert sorted(one.servers("tiny", "e")) == [A, B] and not one.trouble and not one.lost()


def test_an_engine_that_comes_later_is_shared_and_the_longest_silent_one_gives_its_row_away(tmp_path, monkeypatch):
    one, two = tables(tmp_path)
    assert two.hung("http://later") == 0.0
    one.hang("http://later")
    assert two.hung("http://later/") and two.claim("http://later") and not one.claim("http://later")
    monkeypatch.setattr(module, "_ROWS", 8)
    few = [HangTable(600.0, tmp_path / "few", n) for n in range(2)]
    for n in range(8):
        few[0].hang(f"http://e{n}")
    few[1].hang("http://new")
    assert few[0].hung("http://new") and all(few[0].hung(f"http://e{n}") for n in range(1, 8))
    assert few[0].hung("http://e0") == 0.0 == few[1].hung("http://e0"), (
        "what was known of it is gone, and is no other's"
    )


def test_one_call_over_all_workers_tries_it_out(views):
    one, two = views
    one.mark_down(A, hung=True)
    for view in views:
        view.servers("tiny", "e")
        view.found(A)  # a health check that answers
        assert view.trouble[A].kind == "trial" and view.servers("tiny", "e") == [B, A]
    assert not refused(two, A, "c1")
    assert all(view.servers("tiny", "e") == [B] and refused(view, A, "c2") for view in views)
    one.release(A, "c0")
    two.release(A, "c0")
    assert refused(one, A, "c2"), "only its own end frees it"
    two.failed(A, "timeout", "c1", silent=True)
    assert all(view.servers("tiny", "e") == [B] and view.lost() == [A] for view in views), "it hangs on"
    one.found(A)
    assert not refused(one, A, "c3")
    two.mark_down(A)
    two.found(A)
    assert refused(two, A, "c4"), "that it refused a connection does not make it well"
    one.mark_up(A, "c3")
    assert not refused(two, A, "c4") or two.servers("tiny", "e") == [B]
    assert sorted(two.servers("tiny", "e")) == [A, B] and not two.trouble and not one.trying


def test_a_call_that_waits_where_others_are_answered_is_no_hang(views):
    one, two = views
    two.hangs.hear(A, time.monotonic() - 10.0)
    one.failed(A, "timeout", "c", silent=True)
    assert not one.trouble and not two.lost()
    two.hangs.hear(B, time.monotonic() - 601.0)
    one.failed(B, "timeout", "c", silent=True)
    assert two.lost() == [B]


def test_a_worker_that_starts_again_knows_and_frees_what_it_tried(tmp_path):
    code = """
    import os, signal, sys
    from pathlib import Path
    from slipstream_proxy.data.engines.hangs import HangTable
    table = HangTable(600.0, Path(sys.argv[1]), 0)
    table.hang("http://a")
    assert table.claim("http://a") and not table.claim("http://a")
    os.kill(os.getpid(), signal.SIGKILL)
    """
    other = tables(tmp_path)[1]
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "hangs")], check=False)
    assert other.hung(A) and other.taken(A) and not other.claim(A) and not other.hung(B)
    again = HangTable(600.0, tmp_path / "hangs", 0)
    assert again.hung(A) and not other.taken(A) and other.claim(A)


def test_a_worker_that_never_comes_back_holds_nothing_for_ever(tmp_path, monkeypatch):
    one, two = tables(tmp_path)
    assert one.claim(A) and two.taken(A)
    later = time.monotonic() + 620.0
    monkeypatch.setattr(module.time, "monotonic", lambda: later)  # type: ignore[attr-defined]
    assert not two.taken(A) and two.claim(A)
    one.release(A)
    assert one.taken(A), "it is the other's now"


def test_without_the_table_a_worker_goes_on_alone(tmp_path, caplog):
    (tmp_path / "hangs").mkdir()
    with caplog.at_level(logging.ERROR):
        one, two = tables(tmp_path)
    assert len(caplog.records) == 2 and "alone" in caplog.text
    one.hang(A)
    assert one.hung(A) and not two.hung(A) and one.claim(A) and not one.claim(A) and two.claim(A)
    one.close()


class Stuck(FakeEngine):
    """Counts the calls that it keeps waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = self.most = 0

    async def chat(self, request):
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        try:
            return await super().chat(request)
        finally:
            self.waiting -= 1


async def asked(url: str) -> tuple[int, float, str | None]:
    """Status, seconds, Retry-After."""
    began = time.monotonic()
    status, headers, _ = await post(url, ASK)
    return status, time.monotonic() - began, headers.get("retry-after")


@pytest.mark.slow
async def test_two_workers_and_an_engine_that_hangs(tmp_path):
    engine = await Stuck().start()
    data, log, config = tmp_path / "data", tmp_path / "proxy.log", tmp_path / "slipstream.toml"
    tree = {
        "data_dir": str(data),
        "proxy": {"port": 0, "workers": 2, "upstream_timeout": 2.0, "durability": "process"},
        "engine": {"urls": [engine.url], "name": "tiny"},
    }
    config.write_text(tomli_w.dumps(tree))
    stale = HangTable(2000.0, data / "hangs", 5)
    stale.hang(engine.url)
    assert stale.claim(engine.url)

    def refusals() -> list[bool]:
        """Of each worker: whether it has refused a call."""
        files = [data / "metrics" / f"data{n}.json" for n in range(2)]
        return ["slipstream_requests_refused_total" in f.read_text() for f in files]

    try:
        with process(slipstream("proxy", "--config", str(config)), log) as p:

            def up() -> str:
                assert p.poll() is None, log.read_text()[-3000:]
                url = json.loads((data / "proxy.json").read_text())["url"]
                return url if httpx.get(url + "/readyz", timeout=10, trust_env=False).is_success else ""

            url = await asyncio.to_thread(wait_for, up, 90, 0.1, "the proxy is up")
            first = await asyncio.gather(*(asked(url) for _ in range(16)))
            assert [status for status, _, _ in first] == [200] * 16, "what an earlier run knew is forgotten"
            engine.hold = asyncio.Event()
            assert (await asked(url))[0] == 504
            engine.most = 0
            got: list[tuple[int, float, str | None]] = []
            probing: set[asyncio.Task[tuple[int, float, str | None]]] = set()
            end = time.monotonic() + 12.0
            while time.monotonic() < end or not all(refusals()):
                assert time.monotonic() < end + 60.0, "both workers are asked"
                calls = {asyncio.create_task(asked(url)) for _ in range(8)}
                done, waits = await asyncio.wait(calls | probing, timeout=0.5)
                got += [call.result() for call in done]
                probing = waits
            got += await asyncio.gather(*probing)
            assert engine.most == 1, "one call over both workers"
            at_once = [(seconds, retry) for status, seconds, retry in got if status == 503]
            tried = [seconds for status, seconds, _ in got if status == 504]
            assert len(at_once) + len(tried) == len(got) and all(retry == "1" for _, retry in at_once)
            assert 2 <= len(tried) <= (time.monotonic() - end + 12.0) / 2.0 + 1
            assert sorted(seconds for seconds, _ in at_once)[len(at_once) * 9 // 10] < 0.5
            said = log.read_text()
            assert "is up again" not in said and "answers health checks" in said and f"{engine.url} hangs" in said
            engine.hold.set()
            engine.hold = None
            well = []

            async def recovers() -> None:
                while well[-8:].count(200) < 8:
                    well.extend(status for status, _, _ in await asyncio.gather(*(asked(url) for _ in range(8))))
                    await asyncio.sleep(0.1)

            await asyncio.wait_for(recovers(), 30.0)
            results = await asyncio.gather(*(asked(url) for _ in range(32)))
            assert [status for status, _, _ in results] == [200] * 32 and set(well) <= {200, 503}
            assert "answers calls again" in log.read_text()
            p.send_signal(signal.SIGTERM)
            await until(lambda: p.poll() is not None)
    finally:
        await engine.stop()
    assert os.path.exists(data / "hangs")


def test_neither_a_head_nor_an_error_clears_a_hang(views):
    one, _ = views
    one.mark_down(A, hung=True)
    one.found(A)
    assert not refused(one, A, "c1")
    one.mark_reached(A)
    one.finished(A, "c1", well=False)
    assert one.trouble[A].hung and not refused(one, A, "c2"), "the next call tries it out"
    one.finished(A, "c2", well=True)
    assert not one.trouble and not one.trying
    one.mark_doubtful(B)
    one.mark_reached(B)
    assert not one.trouble


class HalfAlive:
    """An engine whose server lives and whose model hangs: streams get a head and ``first``, bad requests an error."""

    def __init__(self, first: bytes) -> None:
        self.first, self.asked, self.well = first, 0, False

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                asked = await read_request(reader)
                if b"GET /health" in asked:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                elif b"bad" in asked:
                    writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}")
                else:
                    self.asked += 1
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + self.first)
                    await writer.drain()
                    if not self.well:
                        await asyncio.sleep(60)
                    writer.write(b"data: [DONE]\n\n")
                    writer.close()
        except (asyncio.IncompleteReadError, ConnectionError):
            return


@pytest.mark.parametrize("first", [b"", b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'])
async def test_an_engine_that_begins_each_stream_and_ends_none(start, serve, first):
    """A call that begins every tenth of a second keeps nothing alive, nor does what a server says by itself."""
    engine = HalfAlive(first)
    proxy = await start(engine={"urls": [await serve(engine)]}, proxy={"upstream_timeout": 3.0})
    if first:  # its first tokens are heard for as long as calls may begin
        await asyncio.gather(*(post(proxy.url, STREAM) for _ in range(3)), return_exceptions=True)
    calls: list[asyncio.Task[tuple[int, object, bytes]]] = []

    def refusals() -> int:
        return sum(c.done() and not c.exception() and c.result()[0] == 503 for c in calls)

    async with asyncio.timeout(60.0):
        while refusals() < 20:
            calls.append(asyncio.create_task(post(proxy.url, STREAM)))
            calls.append(asyncio.create_task(post(proxy.url, {**ASK, "user": "bad"})))
            await asyncio.sleep(0.1)
    began = engine.asked
    more = await asyncio.gather(*(post(proxy.url, STREAM) for _ in range(30)), return_exceptions=True)
    assert engine.asked - began <= 2, "one call at a time"
    assert sum(isinstance(r, tuple) and r[0] == 503 for r in more) >= 28
    engine.well = True

    async def answered() -> bool:
        status, _, body = await post(proxy.url, STREAM)
        return status == 200 and b"[DONE]" in body

    async with asyncio.timeout(30.0):
        while not await answered():
            await asyncio.sleep(0.1)
    assert not proxy.plane.live.trouble and not proxy.plane.live.trying
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
