"""Make the README's pictures and figures of one run: play the demo, keep its curve, and photograph its page.

python scripts/pictures.py            docs/images/demo.png, docs/images/page.png, and README's figures (minutes, all cores)
python scripts/pictures.py --page URL of a proxy that runs already: page.png alone
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
README = ROOT / "README.md"
FIGURES = re.compile(r"(<!-- scripts/pictures.py writes this -->\n).*?(\n<!-- until here -->)", re.DOTALL)
"""README's place for what the run came to, the only one."""
sys.path.insert(0, str(ROOT))


async def photograph(url: str, path: Path) -> None:
    """The page's first view, once it has heard from the control API."""
    from tests.support.browser import browser

    with tempfile.TemporaryDirectory() as folder:
        async with browser(Path(folder), "about:blank") as page:
            await page.screen(1280, 800)
            await page.go(url)
            await page.holds("@")  # the name of an adapter
            if "has not asked for work" in str(
                await page.js("document.body.innerText")
            ):  # while the trainer loads again after the last measurement
                raise RuntimeError("the page shows an error: take the picture again")
            await asyncio.sleep(3)  # charts are drawn after the figures
            await page.picture(path)


def sentence(summary: dict[str, Any]) -> str:
    """What the run came to: of ``slipstream demo``'s last line."""
    version = str(summary["adapter"]).rpartition("@")[2]
    before, after = (f"{summary[name]:.2f}" for name in ("success_base", "success_last"))
    return (
        f"This is the agent of `make demo`, {summary['train_seconds']:.0f} s of training on two CPU cores. On tasks that "
        f"it never trained on, its mean reward\nis **{before} before** (the base model, left) and **{after} after** "
        f"(version {version}, right):"
    )


def with_figures(text: str, summary: dict[str, Any]) -> str:
    """README's text, with the figures of this run. Raises ``ValueError`` where it has no place for them, or two."""
    new, places = FIGURES.subn(lambda found: found[1] + sentence(summary) + found[2], text)
    if places != 1:
        raise ValueError(f"README.md has {places} places for the demo's figures")
    return new


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
        README.write_text(with_figures(README.read_text(), told))
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
