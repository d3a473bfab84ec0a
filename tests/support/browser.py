"""A real browser, asked over Chrome's DevTools protocol: pages as people see them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

AXE = Path(__file__).parent / "axe.min.js"
"""axe-core 4.14.1 as npm has it (Mozilla Public License 2.0)."""
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)


STILL = """new Promise(done => { let last = performance.now(); const seen = () => { last = performance.now() }
    const changes = new MutationObserver(seen)
    changes.observe(document, {subtree: true, childList: true, attributes: true, characterData: true})
    const look = setInterval(() => { if (performance.now() - last >= %d) {
        clearInterval(look); changes.disconnect(); done(true) } }, 20) })"""
"""Until the document has not changed for so many milliseconds."""


class Navigated(AssertionError):
    """The page was opened anew before it had answered."""


class Page:
    """``errors``: what went wrong in the page: exceptions, console errors, refused requests, violations of its content security policy."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.errors: list[str] = []
        self._under_way: set[str] = set()
        """Requests without an answer, if the domain Network is enabled."""
        self._asked_or_answered = 0
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                if (future := self._waiting.pop(said["id"], None)) is not None and not future.done():
                    future.set_result(said)
            elif said["method"] == "Runtime.exceptionThrown":
                self.errors.append(str(said["params"]["exceptionDetails"])[:500])
            elif said["method"] == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
                self.errors.append(str(said["params"]["entry"])[:500])
            elif said["method"] == "Network.requestWillBeSent":
                self._under_way.add(said["params"]["requestId"])
                self._asked_or_answered += 1
            elif said["method"] in ("Network.responseReceived", "Network.loadingFailed"):
                self._under_way.discard(said["params"]["requestId"])
                self._asked_or_answered += 1

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(60):
            read = await future
        if "navigated" in read.get("error", {}).get("message", ""):
            raise Navigated(read)
        assert "error" not in read, read
        return dict(read["result"])

    async def js(self, expression: str) -> Any:
        """The value of an expression in the page."""
        read = await self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in read, read["exceptionDetails"]
        return read["result"].get("value")

    async def until(self, expression: str, seconds: float = 30.0) -> Any:
        async with asyncio.timeout(seconds):
            while True:
                with contextlib.suppress(Navigated):
                    if value := await self.js(expression):
                        return value
                await asyncio.sleep(0.05)

    async def settled(self, still: float = 0.3) -> None:
        """Until nothing was asked or answered and the document did not change for ``still`` seconds. Needs the domain Network."""
        async with asyncio.timeout(30.0):
            while True:
                heard = self._asked_or_answered
                with contextlib.suppress(Navigated):
                    await self.js(STILL % (still * 1000))
                    if not self._under_way and heard == self._asked_or_answered:
                        return

    async def go(self, url: str) -> None:
        """Opens ``url`` anew, also where only its fragment differs."""
        await self.ask("Page.navigate", url="about:blank")
        self._under_way.clear()  # nobody says what became of the left document's requests
        await self.ask("Page.navigate", url=url)

    async def screen(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        await self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 700
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.ask("Emulation.setEmulatedMedia", features=scheme)

    async def picture(self, path: Path) -> None:
        shot = await self.ask("Page.captureScreenshot")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    async def press(self, key: str) -> None:
        """One key, as a person presses it."""
        code = {"Escape": 27, "Enter": 13, "ArrowDown": 40, "ArrowUp": 38, "ArrowLeft": 37, "ArrowRight": 39}.get(
            key, 0
        )
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("rawKeyDown" if code else "keyDown", "keyUp"):
            await self.ask(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **(text if kind == "keyDown" else {}),
            )

    async def holds(self, text: str, seconds: float = 30.0) -> None:
        """Until the page shows this text."""
        try:
            await self.until(f"(document.body?.innerText ?? '').includes({json.dumps(text)})", seconds)
        except TimeoutError:
            shown = await self.js("location.href + ' ' + document.body?.innerText")
            raise AssertionError(f"{text!r} is not shown: {shown[:1500]} {self.errors}") from None

    async def offline(self, offline: bool) -> None:
        await self.ask(
            "Network.emulateNetworkConditions", offline=offline, latency=0, downloadThroughput=-1, uploadThroughput=-1
        )

    async def accessibility(self) -> list[str]:
        """axe's violations of WCAG 2 A and AA and its best practices, on what is shown now."""
        if not await self.js("'axe' in window"):
            await self.js(AXE.read_text() + ";0")
        found = await self.js("axe.run(document, {resultTypes: ['violations']}).then(r => r.violations)")
        return [f"{v['id']}: {v['help']}: {[n['html'][:160] for n in v['nodes'][:4]]}" for v in found]

    async def close(self) -> None:
        self._task.cancel()


@contextlib.asynccontextmanager
async def browser(folder: Path, url: str) -> AsyncIterator[Page]:
    """A page of a headless Chromium with an empty profile, opened at ``url``."""
    profile = folder / "profile"
    argv = [
        str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-extensions",
        "--no-proxy-server", "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
    ]  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={"HOME": str(folder), "PATH": "/usr/bin:/bin"},
    )
    try:
        async with aiohttp.ClientSession() as session:
            port = await _port(profile / "DevToolsActivePort", process)
            async with session.get(f"http://127.0.0.1:{port}/json/list") as reply:
                target = next(t for t in await reply.json() if t["type"] == "page")
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=2**26) as socket:
                page = Page(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await page.ask(f"{domain}.enable")
                await page.ask("Page.navigate", url=url)
                yield page
                await page.close()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _port(file: Path, process: asyncio.subprocess.Process) -> int:
    async with asyncio.timeout(90):
        while not file.is_file() or "\n" not in file.read_text():
            assert process.returncode is None, "the browser ended"
            await asyncio.sleep(0.05)
    return int(file.read_text().split("\n")[0])
