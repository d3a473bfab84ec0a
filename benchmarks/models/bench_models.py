"""Tiny models of many families: does the trainer load one, make a step and write an adapter that vLLM takes whole?

``--families llama,gpt_oss`` sweeps over some. Prints a table; the last line is JSON. It writes
``benchmarks/results/models.json`` and the tables of ``docs/reference/families.md``.

``--whole`` takes a family through the whole product instead (``whole.py``), some minutes each, and writes its row to
``--out FILE``. ``--model FOLDER`` takes a real model there. ``--merge FILES`` puts such rows into the results and the page.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, ROOT, report
from benchmarks.models.speakers import SECONDS, SPEAKERS
from benchmarks.models.whole import CELLS, Whole, run
from tests.support.families import FAMILIES, make_family
from tests.support.tiny import adapter_state, conversation, make_config, make_trainer

from slipstream.engines.vllm.command import _cpu_env, unserved_on_cpu
from slipstream.shared.hub import model_config
from slipstream_proxy.control.adapters.files import check_folder
from slipstream_trainer.batch.layout import make_plan
from slipstream_trainer.model.policy import choose_targets, skeleton
from slipstream_trainer.versions.adapter_folder import write_adapter

MODELS_RESULT = RESULTS / "models.json"
PAGE = ROOT / "docs" / "reference" / "families.md"
BEGIN, END = "<!-- table: benchmarks/models/bench_models.py -->\n", "<!-- end of the table -->\n"
BEGIN_WHOLE, END_WHOLE = "<!-- table: benchmarks/models/whole.py -->\n", "<!-- end of the whole table -->\n"
RANK = 16
COLUMNS = ("loads", "trains", "publishes", "vllm")
"""Each is ``yes``, or why not."""


@dataclass
class Row:
    family: str
    loads: str = ""
    trains: str = ""
    publishes: str = ""
    vllm: str = ""
    cpu: str = "yes"
    """Whether vLLM's CPU build serves adapters for it."""
    targets: list[str] = field(default_factory=list)
    left_out: str = ""
    seconds: float = 0.0

    @property
    def whole(self) -> bool:
        return all(getattr(self, column) == "yes" for column in COLUMNS)


def told(do: Callable[[], object]) -> str:
    try:
        do()
    except Exception as e:  # a family's own reason is what is looked for
        return f"{type(e).__name__}: {e}".splitlines()[0][:300]
    return "yes"


def train(family: str, folder: Path) -> Row:
    """The trainer's part. The adapter lies in ``folder/<family>@1`` if it could be written."""
    row, began = Row(family), time.perf_counter()
    model, adapter = folder / family, folder / f"{family}@1"
    made: dict[str, Any] = {}

    def load() -> None:
        make_family(family, model)
        said = choose_targets(skeleton(str(model)), "all-linear").says
        row.left_out = said.partition("leaves out")[2].strip()
        row.cpu = unserved_on_cpu(model_config(str(model))) or "yes"
        made["trainer"] = make_trainer(make_config(model, folder / f"{family}-data"))

    def step() -> None:
        trainer = made["trainer"]
        before = adapter_state(trainer.model)
        row.targets = sorted({n.split(".lora_")[0].rpartition(".")[2] for n in before})
        trainer.backward(trainer.start(make_plan(conversation(), layout="merged")))
        trainer.learner.step(1e-2)
        after = adapter_state(trainer.model)
        if still := sorted(n for n in before if (before[n] == after[n]).all()):
            raise ValueError(f"no gradient in {len(still)} of {len(before)} tensors, such as {still[0]}")

    def publish() -> None:
        write_adapter(made["trainer"].learner.adapter, adapter, RANK)
        check_folder(adapter, RANK, None)

    for column, do in zip(COLUMNS, (load, step, publish), strict=False):
        setattr(row, column, told(do))
        if getattr(row, column) != "yes":
            break
    row.seconds = round(time.perf_counter() - began, 1)
    return row


def load_into_vllm(rows: Iterable[Row], folder: Path) -> None:
    """vLLM's own LoRA manager with the plugin, which refuses what vLLM would ignore. All in one process of its own."""
    ready = [row for row in rows if row.publishes == "yes"]
    paths = [str(folder / name) for row in ready for name in (row.family, f"{row.family}@1")]
    command = [sys.executable, "-m", "tests.support.lora_manager", *paths]
    ran = subprocess.run(command, env=os.environ | _cpu_env(), capture_output=True, text=True, check=False, cwd=ROOT)
    said = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    adapters = said[-1] if said and "model" not in said[-1] else {}
    errors = {line["model"]: line["error"] for line in said if "error" in line}
    for row in ready:
        found = errors.get(row.family) or adapters.get(f"{row.family}@1", f"vLLM ended: {ran.stderr.strip()[-200:]}")
        row.vllm = "yes" if found is None else str(found).splitlines()[0][:300]


def table(rows: Iterable[Row]) -> str:
    """Markdown."""
    lines = [
        "| family | trains and publishes | vLLM loads the adapter | on a CPU | adapted | left out |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        bad = next((getattr(row, c) for c in COLUMNS[:3] if getattr(row, c) != "yes"), "yes")
        cells = (row.family, bad, row.vllm or "–", row.cpu, ", ".join(row.targets), row.left_out)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def whole_table(rows: Iterable[Whole]) -> str:
    """Markdown, and below it the reasons of all cells that are no yes."""
    rows = list(rows)
    names = [cell.replace("_", " ") for cell in CELLS]
    lines = [f"| family | {' | '.join(names)} | parsers | ran on |", "|---" * (len(names) + 3) + "|"]
    why = []
    for row in rows:
        values = {cell: getattr(row, cell) for cell in CELLS}
        why += [f"- **{row.family}**, {c.replace('_', ' ')}: {v}" for c, v in values.items() if v and v[:3] != "yes"]
        shown = ["no" if v else "–" for v in values.values()]
        for n, v in enumerate(values.values()):
            if v.startswith("yes"):  # the mean gap in nats, where the engine rounds
                gap = re.search(r"mean ([\d.e+-]+)", v) if row.dtype != "float32" else None
                shown[n] = f"yes, {gap[1]}" if gap else "yes"
        where = f"{row.device}, {row.dtype}, vLLM {row.vllm}"
        lines.append(f"| {row.family} | {' | '.join(shown)} | {row.parsers} | {where} |")
    return "\n".join([*lines, "", *why]) + "\n"


def write(rows: Iterable[Row], out: Path, product: Iterable[Whole] = ()) -> dict[str, Any]:
    """A sweep over some families replaces their rows, and leaves the others as they are."""
    kept = json.loads(out.read_text()) if out.is_file() else {}
    found = {row["family"]: row for row in (*kept.get("rows", ()), *map(asdict, rows))}
    ordered = [Row(**found[family]) for family in FAMILIES if family in found]
    put_through = {row["family"]: row for row in (*kept.get("product", ()), *map(asdict, product))}
    known = [*SPEAKERS, *(family for family in put_through if family not in SPEAKERS)]
    products = [Whole(**put_through[family]) for family in known if family in put_through]
    result = {
        "families": len(ordered),
        "whole": sum(row.whole for row in ordered),
        "refused_on_a_cpu": sum(row.cpu != "yes" for row in ordered),
        "through_the_product": len(products),
        "whole_through_the_product": sum(row.whole for row in products),
        "rows": [asdict(row) for row in ordered],
        "product": [asdict(row) for row in products],
    }
    out.write_text(json.dumps(result, indent=1) + "\n")
    return result


def write_page(result: dict[str, Any]) -> None:
    """Both tables of the page."""
    tables = {
        (BEGIN, END): table([Row(**row) for row in result["rows"]]),
        (BEGIN_WHOLE, END_WHOLE): whole_table([Whole(**row) for row in result["product"]]),
    }
    text = PAGE.read_text()
    for (begin, end), made in tables.items():
        before, _, rest = text.partition(begin)
        text = before + begin + made + end + rest.partition(end)[2]
    PAGE.write_text(text)


def sweep_whole(args: argparse.Namespace) -> int:
    """Each family is written as soon as it is done: a later one may take longer than the machine is there."""
    rows: list[Whole] = []
    for family in args.families.split(","):
        rows.append(run(family, args.seconds, args.engine_arg, args.keep, args.learn, args.model, args.set))
        args.out.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
    print(whole_table(rows))
    report({"families": len(rows), "whole": sum(row.whole for row in rows)})
    return 0 if all(row.whole for row in rows) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", help="names with commas; default: all")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--whole", action="store_true", help="through the whole product")
    parser.add_argument("--seconds", type=float, default=460.0, help="--whole: the most a family takes")
    parser.add_argument("--engine-arg", action="append", default=[], help="--whole: one more flag of vLLM")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="--whole: a setting")
    parser.add_argument("--learn", type=float, default=SECONDS, help="--whole: seconds for the model's own learning")
    parser.add_argument("--model", type=Path, help="--whole: a model's folder instead of the family's tiny model")
    parser.add_argument("--keep", type=Path, help="--whole: a folder for the logs")
    parser.add_argument("--merge", type=Path, nargs="+", help="files that --whole wrote")
    args = parser.parse_args()
    if args.whole:
        args.families, args.out = args.families or ",".join(SPEAKERS), args.out or Path("whole.jsonl")
        return sweep_whole(args)
    if args.merge:
        lines = [line for path in args.merge for line in path.read_text().splitlines()]
        merged = write([], args.out or MODELS_RESULT, [Whole(**json.loads(line)) for line in lines])
        if args.out is None:
            write_page(merged)
        return 0
    args.families, args.out = args.families or ",".join(FAMILIES), args.out or MODELS_RESULT
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for family in args.families.split(","):
            rows.append(train(family, folder))
            print(*(f"{c} {getattr(rows[-1], c) or '-'}" for c in ("family", *COLUMNS[:3])), sep="   ", flush=True)
        load_into_vllm(rows, folder)
    print(table(rows))
    result = write(rows, args.out)
    if args.out == MODELS_RESULT:
        write_page(result)
    report({name: value for name, value in result.items() if name not in ("rows", "product")})
    return 0 if result["whole"] == result["families"] else 1


if __name__ == "__main__":
    sys.exit(main())
