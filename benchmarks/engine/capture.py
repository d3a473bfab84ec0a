"""What capture costs a running vLLM: tokens a second bare, with ids and log-probabilities as JSON, and packed by the plugin.

    python benchmarks/engine/capture.py URL MODEL [--ways bare,packed] [--streams 8,64,256] [--tokens 256] [--rounds 2]

The load comes from eight processes, so that the client does not hold the figure. A line a measurement; the last line is one JSON object
with the ratio to ``bare`` of each way, number of streams and form (medians of the rounds).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict

from streams import Way, measure

MORE: dict[str, dict[str, object]] = {
    "bare": {},
    "json": {"return_token_ids": True, "logprobs": True},
    "packed": {"slipstream_capture": 1},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of vLLM, without /v1")
    parser.add_argument("model")
    parser.add_argument("--ways", default="bare,packed")
    parser.add_argument("--streams", default="8,64,256")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    ways = options.ways.split(",")
    rates: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    failed = 0
    measure(Way(options.url), options.model, 64, options.tokens, stream=False)  # what compiles at the first call
    for streams in (int(n) for n in options.streams.split(",")):
        for stream in (False, True):
            for _ in range(options.rounds):
                for way in ways:
                    target = Way(options.url, more=MORE[way], packed=way == "packed")
                    found = measure(target, options.model, streams, options.tokens, stream=stream)
                    form = "stream" if stream else "whole"
                    print(json.dumps({"way": way, "streams": streams, "form": form, **vars(found)}), flush=True)
                    rates[way, streams, form].append(found.tokens_per_second)
                    failed += found.failed
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratios = {
        f"{way}_{form}_{streams}": round(value / medians["bare", streams, form], 3)
        for (way, streams, form), value in medians.items()
        if way != "bare"
    }
    print(json.dumps({"failed": failed, **ratios}))


if __name__ == "__main__":
    main()
