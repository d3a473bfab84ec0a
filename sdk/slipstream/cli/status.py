from __future__ import annotations

import argparse

from slipstream.cli.common import add_client, connect, when


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)


def counts(by: dict[str, int]) -> str:
    return ", ".join(f"{v} {k}" for k, v in by.items()) or "none"


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        status = client.status()
    if args.json:
        print(status.model_dump_json(indent=2))
        return 0
    print(f"slipstream {status.version}, up since {when(status.started)}")
    for model, live in status.models.items():
        print(f"  {model}: new episodes get {live}")
    for engine in status.engines:
        print(f"  engine {engine.get('url')}: {'ok' if engine.get('ok') else 'down'}")
    for sidecar in status.sidecars:
        print(f"  {sidecar.name}: {sidecar.state} since {when(sidecar.since)}")
    print(f"  calls {status.calls} ({status.capture_lost} lost), episodes {counts(status.episodes)}")
    print(f"  groups {counts(status.groups)}")
    print(f"  steps {status.steps}, last {when(status.last_step)}; ingest is {status.ingest_lag_seconds:.1f} s behind")
    if (left := status.forgetting).episodes:
        why = f": {left.error}" if left.error else ""
        print(f"  forgetting: {left.episodes} episodes still in files ({left.step}){why}")
    if status.funnel.lines:
        print("  why there is no step yet (! = none can come until it changes):")
    for line in status.funnel.lines:
        print(f"  {'!' if line.blocks else '-'} {line.sentence}")
    return 0
