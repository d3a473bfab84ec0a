from __future__ import annotations

import argparse
import json

from slipstream.cli.common import TextColour, add_client, proxy_url, read_config, say
from slipstream.cli.start.proxy import own_flags
from slipstream.engines.findings import Finding
from slipstream.shared.progress import wanted

OUTCOME_MARKS = {"fail": "FAIL", "warn": "WARN", "ok": "ok  "}
"""The worst first."""
FINDING_LOOKS = {"fail": TextColour.BAD, "warn": TextColour.DOUBTFUL}


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument("--engine", metavar="URL", action="append", default=[])
    parser.add_argument("--name", help="the model's name in the engine")
    parser.set_defaults(host=None, port=None)


def badness(finding: Finding) -> int:
    return list(OUTCOME_MARKS).index(finding.level)


def run(args: argparse.Namespace) -> int:
    """Exit code 0: nothing fails (warnings may be there); 1: something does."""
    from slipstream.operate.doctor.doctor import as_json, examine

    progress = wanted(asked=False)
    looked = progress.now if progress else lambda _: None
    findings = sorted(examine(read_config(args, own_flags(args)), proxy_url(args), args.key, looked), key=badness)
    if progress:
        progress.clear()
    if args.json:
        print(json.dumps(as_json(findings), indent=2))
    else:
        for f in findings:
            say(f"{OUTCOME_MARKS[f.level]}  {f.what}", look=FINDING_LOOKS.get(f.level))
            for name, text in (("why", f.why), ("fix", f.fix)):
                if text:
                    say(f"      {name}: {text}")
    return 1 if any(f.level == "fail" for f in findings) else 0
