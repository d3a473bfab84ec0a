"""Make the README's pictures: play the demo, keep its curve, and photograph its page.

python scripts/pictures.py            docs/images/demo.png and docs/images/page.png (minutes, all cores)
python scripts/pictures.py --page URL of a proxy that runs already: page.png alone
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
sys.path.insert(0, str(ROOT))


async def photograph(url: str, path: Path) -> None:
    """The page's first view, once it has heard from the control API."""
    from tests.support.browser import browser

    with tempfile.TemporaryDirectory() as folder:
        async with browser(Path(folder), "about:blank") as page:
            await page.screen(1280, 800)
            await page.go(url)
            await page.holds("@")  # the name of an adapter
            await asyncio.sleep(3)  # charts are drawn after the figures
            await page.picture(path)


def play(seed: int) -> None:
    """The demo stays up behind its summary (``--keep``), so that its page can be seen."""
    folder = Path(tempfile.mkdtemp(prefix="slipstream-pictures-"))
    argv = [sys.executable, "-m", "slipstream.cli", "demo", "--keep", "--seed", str(seed), "--data-dir", str(folder)]
    demo = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert demo.stdout is not None
        summary = next((line for line in demo.stdout if line.startswith("{")), "{}")
        told = json.loads(summary)
        assert told, "the demo ended without a summary"
        shutil.copy(folder / f"seed-{seed}" / "success.png", IMAGES / "demo.png")
        url = json.loads(next(folder.rglob("proxy.json")).read_text())["url"]
        asyncio.run(photograph(url, IMAGES / "page.png"))
    finally:
        demo.terminate()
        demo.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the README's pictures.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", help="URL of a proxy that runs already: its page alone")
    given = parser.parse_args()
    IMAGES.mkdir(parents=True, exist_ok=True)
    if given.page:
        asyncio.run(photograph(given.page, IMAGES / "page.png"))
    else:
        play(given.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
