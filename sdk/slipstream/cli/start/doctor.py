from __future__ import annotations

import argparse
import json

from slipstream.cli.common import add_client, proxy_url, read_config
from slipstream.cli.start.proxy import own_flags
from slipstream.engines.findings import Finding

OUTCOME_MARKS = {"fail": "FAIL", "warn": "WARN", "ok": "ok  "}
"""The worst first."""


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

    findings = sorted(examine(read_config(args, own_flags(args)), proxy_url(args), args.key), key=badness)
    if args.json:
        print(json.dumps(as_json(findings), indent=2))
    else:
        for f in findings:
            more = "".join(f"\n      {name}: {text}" for name, text in (("why", f.why), ("fix", f.fix)) if text)
            print(f"{OUTCOME_MARKS[f.level]}  {f.what}{more}")
    return 1 if any(f.level == "fail" for f in findings) else 0
