"""The page as a person uses it: opened at a view, read, clicked, filled in."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from tests.support.browser import Page, browser
from tests.support.plane import Plane

ROWS = "document.querySelectorAll('tbody tr[data-id]').length"
SIDEWAYS = """(() => { const edge = document.documentElement.clientWidth;
    return document.documentElement.scrollWidth <= edge ? [] : [...document.querySelectorAll('main *')]
        .filter(e => e.getBoundingClientRect().right > edge + 1 && !e.closest('.scroll, .runs, nav, .tree, .lineage'))
        .map(e => e.outerHTML.slice(0, 120)).slice(0, 5).concat(['page']) })()"""
"""What stands beyond the right edge of the page."""


@contextlib.asynccontextmanager
async def opened(plane: Plane, tmp_path: Path, where: str = "") -> AsyncIterator[tuple[Page, str]]:
    """The page of this plane, asked as a data plane would forward it. ``where``: the fragment of the first view."""
    home = str(plane.client.make_url("/"))
    async with browser(tmp_path, "about:blank") as page:
        await page.ask("Network.enable")
        await page.ask("Network.setExtraHTTPHeaders", headers=plane.as_())
        await page.screen(1440)
        await page.go(home + where)
        yield page, home


async def text(page: Page) -> str:
    return str(await page.js("document.body.innerText"))


async def click(page: Page, label: str, within: str = "document") -> None:
    found = f"[...{within}.querySelectorAll('button, a')].find(b => b.textContent.trim() === {label!r})"
    await page.until(f"!!({found})")
    await page.js(f"({found}).click()")


async def fill(page: Page, name: str, value: str) -> None:
    """Types into a field."""
    await page.js(f"""(() => {{ const i = document.querySelector('[name={name}]'); i.value = {value!r};
        i.dispatchEvent(new Event(i.tagName === 'SELECT' ? 'change' : 'input', {{bubbles: true}})) }})()""")
