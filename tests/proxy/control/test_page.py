from __future__ import annotations

import gzip
import re
from pathlib import Path

from slipstream_proxy.control import page

SOURCES = Path(__file__).parents[3] / "page" / "src"


async def test_the_page_asks_nobody_else_and_runs_nothing_of_others(plane):
    for path, (_, kind) in page.PAGE_FILES.items():
        r = await plane.client.get(path, headers=plane.as_())
        assert (r.status, r.content_type) == (200, kind)
        policy = r.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "require-trusted-types-for 'script'" in policy
        assert "unsafe" not in policy
        text = await r.text()
        assert text.strip()
        foreign = [u for u in re.findall(r"https?://[^\"'` )]+", text) if "www.w3.org" not in u]
        assert not foreign, f"{path} names {foreign}"


async def test_a_page_that_is_known_is_not_sent_again(plane):
    for path, (name, _) in page.PAGE_FILES.items():
        plain = await plane.client.get(path, headers={**plane.as_(), "accept-encoding": "identity"})
        packed = await plane.client.get(path, headers={**plane.as_(), "accept-encoding": "gzip, br"})
        body = (page.PAGE_FOLDER / name).read_bytes()
        assert await plain.read() == body == await packed.read()
        assert "content-encoding" not in plain.headers and packed.headers["content-encoding"] == "gzip"
        assert int(packed.headers["content-length"]) <= len(gzip.compress(body)) + 32
        again = await plane.client.get(path, headers={**plane.as_(), "if-none-match": plain.headers["etag"]})
        assert (again.status, await again.read()) == (304, b"")


def test_no_source_makes_html_out_of_text():
    files = [f for f in SOURCES.rglob("*.ts*") if ".test." not in f.name]
    assert files
    for file in files:
        found = re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|srcdoc", file.read_text())
        assert not found, f"{file.name}: {found}"


def test_the_first_view_is_small():
    packed = sum(len(gzip.compress((page.PAGE_FOLDER / name).read_bytes())) for name, _ in page.PAGE_FILES.values())
    assert packed <= 150_000
