"""Name images by their digest, in place of a tag that may come to mean another image.

    python scripts/digests.py            rewrite deploy/compose.yaml and deploy/kubernetes
    python scripts/digests.py --check    exit 1 where an image of somebody else is named by a tag alone; asks nobody

Docker's buildx asks the registry (``docker buildx imagetools inspect``). The tag stays behind it as a comment.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMED = re.compile(r"^(?P<before>\s*(?:- )?image: )(?P<name>[\w./-]+):(?P<tag>[\w.-]+)\s*$", re.MULTILINE)
"""An image by its tag. A Compose file takes a tag or a digest, and not both."""
OURS = "slipstream-"


def files() -> list[Path]:
    return [ROOT / "deploy" / "compose.yaml", *sorted((ROOT / "deploy" / "kubernetes").rglob("*.yaml"))]


def undigested(text: str) -> list[str]:
    """Images of others in it that have a tag alone."""
    found = [f"{m['name']}:{m['tag']}" for m in NAMED.finditer(text)]
    return [image for image in found if not image.startswith(OURS)]


def digest_of(image: str) -> str:
    """``sha256:…`` of a tag's image, all of its platforms. Raises ``SystemExit``."""
    argv = ["docker", "buildx", "imagetools", "inspect", image, "--format", "{{.Manifest.Digest}}"]
    try:
        run = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=120)
    except OSError as e:
        sys.exit(f"docker cannot be run: {e}")
    if run.returncode or not re.fullmatch(r"sha256:[0-9a-f]{64}\s*", run.stdout):
        sys.exit(f"no digest of {image}: {run.stderr.strip()[-500:]}")
    return run.stdout.strip()


def rewritten(text: str, digests: dict[str, str]) -> str:
    """With a digest in place of the tag of each of these images."""

    def one(m: re.Match[str]) -> str:
        digest = digests.get(f"{m['name']}:{m['tag']}")
        return m[0] if digest is None else f"{m['before']}{m['name']}@{digest}  # {m['name']}:{m['tag']}"

    return NAMED.sub(one, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    texts = {path: path.read_text() for path in files()}
    tagged = {image for text in texts.values() for image in undigested(text)}
    if check:
        print("\n".join(f"by its tag alone: {image}" for image in sorted(tagged)))
        return bool(tagged)
    digests = {image: digest_of(image) for image in sorted(tagged)}
    for path, text in texts.items():
        if (fresh := rewritten(text, digests)) != text:
            path.write_text(fresh)
            print(f"written: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
