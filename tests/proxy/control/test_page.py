from __future__ import annotations

import re

from slipstream_proxy.control import page


async def test_the_page_asks_nobody_else_and_runs_nothing_of_others(plane):
    for path, (_, kind) in page.FILES.items():
        r = await plane.client.get(path, headers=plane.as_())
        assert (r.status, r.content_type) == (200, kind)
        assert "default-src 'none'" in r.headers["content-security-policy"]
        text = await r.text()
        assert text.strip()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|style=", text)
        assert not [u for u in re.findall(r"https?://[^\"' ]+", text) if "www.w3.org" not in u]


def test_every_element_that_the_script_asks_for_is_there():
    html = (page.HERE / "index.html").read_text()
    script = (page.HERE / "page.js").read_text()
    ids = set(re.findall(r'id="([^"]+)"', html))
    assert set(re.findall(r'\$\("([a-z-]+)"\)', script)) <= ids | {"f-"}
