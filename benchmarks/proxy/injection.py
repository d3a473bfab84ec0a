"""What a record of every call costs: an engine's tokens a second bare, and through Slipstream with ids and log-probabilities captured.

    python -m benchmarks.proxy.injection ENGINE MODEL [--stock URL] [--streams 256,64,8] [--tokens 256] [--rounds 3]
                                         [--swaps N --adapters FOLDER] [--workers 4] [--out FILE]

ENGINE: a vLLM with the plugin. ``--stock``: a vLLM without it, with one API server, which is asked for nothing but text. The ways take
turns; each figure is the median over the rounds of the ratio to ``bare`` in the same round. ``--swaps``: after a first one, that many adapters go live
under as many streams as the first number of ``--streams`` says (``benchmarks/engine/swaps.py``). The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.engine.streams import Way, measure
from benchmarks.engine.swaps import swap
from benchmarks.harness import report
from tests.support.running import run_settings

FORMS = {"whole": False, "stream": True}


def rates(options: argparse.Namespace, ways: dict[str, Way]) -> dict[str, float]:
    """Medians of tokens/s, and of the ratio to ``bare`` in the same round."""
    found: dict[str, list[float]] = defaultdict(list)
    for way in ways.values():
        measure(way, options.model, 64, 64, stream=False)  # what compiles at the first call
    for streams in options.streams:
        for form, stream in FORMS.items():
            for _ in range(options.rounds):
                now: dict[str, float] = {}
                for name, way in ways.items():
                    if name == "stock" and not (stream and streams == options.streams[0]):
                        continue
                    made = measure(way, options.model, streams, options.tokens, stream=stream)
                    print(json.dumps({"way": name, "streams": streams, "form": form, **vars(made)}), flush=True)
                    now[name] = made.tokens_per_second
                    found["failed"].append(made.failed)
                for name, value in now.items():
                    found[f"{name}_{form}_{streams}"].append(value)
                found[f"share_{form}_{streams}"].append(now["captured"] / now["bare"])
                if "stock" in now:
                    found[f"vs_stock_{form}_{streams}"].append(now["captured"] / now["stock"])
    failed = sum(found.pop("failed"))
    return {"failed": failed} | {k: round(statistics.median(v), 3) for k, v in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of a vLLM with the plugin, without /v1")
    parser.add_argument("model")
    parser.add_argument("--stock", help="of a vLLM with one API server and without the plugin")
    parser.add_argument("--streams", type=lambda s: [int(n) for n in s.split(",")], default=[256, 64, 8])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=4, help="of Slipstream")
    parser.add_argument("--swaps", type=int, default=0)
    parser.add_argument("--adapters", type=Path, help="folder with MODEL@1, MODEL@2, …")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tree: dict[str, Any] = {
        "proxy": {"port": 0, "workers": options.workers},
        "engine": {"urls": [options.url], "name": options.model},
        "adapters": {"dir": str(options.adapters)} if options.swaps else {},
        "gate": {"pace": "go"},
    }
    with tempfile.TemporaryDirectory() as name, run_settings(Path(name), tree) as proxy:
        ways = {"bare": Way(options.url), "captured": Way(proxy.url)}
        if options.stock:
            ways["stock"] = Way(options.stock)
        found: dict[str, object] = dict(rates(options, ways))
        print(json.dumps(found), flush=True)
        if options.swaps:
            found |= swap(options.url, proxy.url, options.model, options.streams[0], options.swaps, options.adapters)
    report(found, options.out)


if __name__ == "__main__":
    main()
