from __future__ import annotations

import argparse
import asyncio
import functools
import hashlib
import json
import os
import re
import traceback
from pathlib import Path

from slipstream.cli.common import add_client, connect, finite, proxy_url, read_config
from slipstream.client import Client
from slipstream.config import Config
from slipstream.errors import ApiError, ConfigError, StartError, Unavailable
from slipstream.shared.files import private_file
from slipstream.shared.functions import load_function, need
from slipstream_replay.cases import file_cases, stored_cases
from slipstream_replay.comparison import (
    JUDGE_MEASURE,
    Detect,
    PairedTest,
    Questions,
    Score,
    by_tools,
    checked,
    groups_of,
    least,
)
from slipstream_replay.keeping import KeptVersions, models_asked
from slipstream_replay.report import ReplayReport, as_json, junit, markdown
from slipstream_replay.runs import RUN_LIMITS, RunReplayer, by_command, by_function, by_record
from slipstream_replay.steps import (
    RECORDED_PROMPT_NOTE,
    RECORDED_SIDE,
    ReplayBudget,
    ReplayCase,
    Replayer,
    Side,
    case_of,
    knowing,
    side_of,
)

SIDE_HELP = (
    "a model or adapter, a base URL (with #MODEL), a file .txt with a system prompt, NAME=VALUE of sampling; "
    "several count together"
)


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument("cases", metavar="SET", help="a set's name, or a file of `slipstream cases export` (.jsonl)")
    parser.add_argument("--version", type=int, help="as the set was at this version")
    parser.add_argument("--against", nargs="+", required=True, metavar="SIDE", help=f"the candidate: {SIDE_HELP}")
    parser.add_argument(
        "--control",
        nargs="+",
        default=[],
        metavar="SIDE",
        help="the same, or `recorded`: the replies of the record; default: each call's own model",
    )
    parser.add_argument(
        "--by",
        metavar="MODULE:FUNCTION|judge",
        help="a function (call, message) -> 0 to 1; judge: RULER as [judge] says, side by side in both orders; "
        "default: tool calls of rewarded episodes",
    )
    parser.add_argument(
        "--run",
        metavar="MODULE:FUNCTION|COMMAND|recorded",
        help="play whole runs again: (episode, base_url[, tools]) -> 0 to 1, or a command whose last line is the "
        "number; recorded: from the first prompt with the recorded tools, --by scores the last message",
    )
    parser.add_argument("--samples", type=int, default=8, help="samples of each step (8)")
    parser.add_argument("--steps", type=int, help="calls of a case that are asked at most, evenly chosen; default: all")
    parser.add_argument("--concurrency", type=int, default=8, help="cases at once (8)")
    parser.add_argument("--tokens", type=int, help="no case begins after so many tokens")
    parser.add_argument("--seconds", type=finite, help="no case begins after so many seconds")
    parser.add_argument("--alpha", type=finite, help="probability that an equal candidate fails; default: gate.alpha")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the report as Markdown")


def run(args: argparse.Namespace) -> int:
    """Exit status: 0 not shown to be worse, 1 worse, 2 no verdict."""
    for path in filter(None, (args.junit, args.markdown)):
        try:  # before anything is asked
            path.parent.mkdir(parents=True, exist_ok=True)
            private_file(path, append=True).close()
        except OSError as e:
            raise ConfigError(f"{path}: {e.strerror or e}") from e
    try:
        report = _compared(args)
    except Exception as e:  # 1 says that the candidate is worse, and nothing else
        known = isinstance(e, ConfigError | StartError | ModuleNotFoundError)
        why = str(e) if known else f"{type(e).__name__}: {e}"
        candidate, control = (" ".join(words) or RECORDED_PROMPT_NOTE for words in (args.against, args.control))
        _write(args, ReplayReport(candidate, control, [], [], args.samples, 0, short=" ".join(why.split())))
        if known:
            raise
        traceback.print_exc()
        raise StartError(why) from e
    _write(args, report)
    print(json.dumps(as_json(report)) if args.json else markdown(report))
    return report.exit_code


def _write(args: argparse.Namespace, report: ReplayReport) -> None:
    for path, form in ((args.junit, junit), (args.markdown, markdown)):
        if path:
            with private_file(path) as out:  # it shows what agents were asked
                out.write(form(report).encode())


def _compared(args: argparse.Namespace) -> ReplayReport:
    if min(args.samples, args.concurrency, 1 if args.steps is None else args.steps) < 1:
        raise ConfigError("--samples, --concurrency and --steps are at least 1")
    config = read_config(args)
    alpha = config.gate.alpha if args.alpha is None else args.alpha
    if not 0 < alpha < 0.5:
        raise ConfigError(f"--alpha {alpha}: between 0 and 0.5")
    detector = need("slipstream_proxy.control.gate.detector", "proxy").BettingDetector
    detect: Detect = functools.partial(detector, lump=1.0, rate=0.0, shifts=False)
    score = checked(load_function("--by", args.by), args.by) if args.by not in (None, JUDGE_MEASURE) else None
    base = f"{Client(proxy_url(args), args.key).url}/v1"
    sides = [side_of(args.against, base), side_of(args.control, base)]
    _check_adapters(args, sides, base)
    cases = _cases(args)
    budget = ReplayBudget(args.tokens, args.seconds)
    key = args.key or os.environ.get("SLIPSTREAM_API_KEY") or os.environ.get("OPENAI_API_KEY")
    usable = [c for c in cases if c.steps]
    with KeptVersions(models_asked(sides, usable), key):
        return _asked(args, config, sides, cases, budget, key, alpha, detect, score)


def _asked(
    args: argparse.Namespace, config: Config, sides: list[Side], cases: list[ReplayCase], budget: ReplayBudget,
    key: str | None, alpha: float, detect: Detect, score: Score | None,
) -> ReplayReport:  # fmt: skip
    usable = [c for c in cases if c.steps]
    if args.run:
        return _runs(args, sides, usable, budget, key, alpha, detect, score)
    rewards = [c.episode.reward for c in usable if c.episode.reward is not None]
    groups = [groups_of(c.episode.tags, c.episode.task) for c in usable]
    questions = Questions(detect, alpha, args.by, score, rewards, groups, alike=not sides[1].recorded)
    replayer, begun = asyncio.run(_replayed(args, config, sides, usable, questions, budget, key))
    good = [c for c in begun if c.error is None]
    notes = [note] if good and (note := questions.note()) else []
    if without := len(cases) - len(usable):
        notes.append(f"{without} cases have no call that can be asked again.")
    report = ReplayReport(
        replayer.candidate.name, replayer.control.name, questions.asked, begun, args.samples, budget.spent,
        replayer.stopped, len(usable) - len(begun), notes=notes,
    )  # fmt: skip
    report.short = questions.short(len(begun) - len(good))
    return report


def _check_adapters(args: argparse.Namespace, sides: list[Side], base: str) -> None:
    """Raises ``ConfigError`` for a version that the proxy does not have, before anything is asked."""
    named = {str(side.model) for side in sides if side.base == base and "@" in str(side.model or "")}
    if not named:
        return
    with Client(proxy_url(args), args.key, tenant=args.tenant) as client:
        try:
            known = sorted(a.name for a in client.adapters().adapters)
        except ApiError:
            return  # a key that may not list them: the answers say whether there is such a version
    for name in sorted(named.difference(known)):
        raise ConfigError(f"there is no version {name}; there are {', '.join(known) or 'none'}")


def _runs(
    args: argparse.Namespace, sides: list[Side], cases: list[ReplayCase], budget: ReplayBudget, key: str | None,
    alpha: float, detect: Detect, score: Score | None,
) -> ReplayReport:  # fmt: skip
    """Whole runs, played again."""
    if any(side.recorded for side in sides) or args.by == JUDGE_MEASURE:
        raise ConfigError("--run plays both sides' runs: `recorded` is no side of it, and --by is a function")
    if args.run == RECORDED_SIDE:
        play = by_record(score or by_tools)
    elif re.fullmatch(r"[\w.]+:\w+", args.run):
        play = by_function(load_function("--run", args.run))
    else:
        play = by_command(args.run)
    candidate, control = sides
    more = {"samples": args.samples, "concurrency": args.concurrency}
    replayer = RunReplayer(candidate, control, play, budget=budget, key=key, **more)
    test = PairedTest("runs", alpha, detect)
    played = asyncio.run(replayer.run(cases))
    for _, pair in played:
        if pair is not None:
            test.see(pair)
    begun = [case for case, _ in played]
    notes = [replayer.note] if replayer.note and args.run != RECORDED_SIDE else []
    report = ReplayReport(
        sides[0].name, sides[1].name, [test] if test.pairs else [], begun, args.samples, budget.spent,
        replayer.stopped, len(cases) - len(begun), limits=RUN_LIMITS, notes=notes,
    )  # fmt: skip
    needed = least(detect, alpha)
    if 2 * len(test.pairs) < len(begun):
        report.short = f"{len(begun) - len(test.pairs)} of {len(begun)} cases were not compared"
    if len(test.pairs) < needed:
        report.short = f"{len(test.pairs)} cases were compared, and fewer than {needed} cannot show even a total loss"
    return report


async def _replayed(
    args: argparse.Namespace, config: Config, sides: list[Side], cases: list[ReplayCase], questions: Questions,
    budget: ReplayBudget, key: str | None,
) -> tuple[Replayer, list[ReplayCase]]:  # fmt: skip
    """Ask all cases, and again while ``questions`` lean. → What the first round began."""
    judge = None
    if args.by == JUDGE_MEASURE:
        judge = need("slipstream_replay.by_judge", "judge").SideBySide(config.judge).case
    candidate, control = [await knowing(side, key) for side in sides]
    replayer = Replayer(
        candidate, control, samples=args.samples, concurrency=args.concurrency, budget=budget, key=key, after=judge
    )
    begun = await replayer.run(cases)
    stopped, good = replayer.stopped, [c for c in begun if c.error is None]
    for case in good:
        questions.see(case)
    while questions.leans and not budget.over():
        questions.again()
        for case in await replayer.run([c.unasked() for c in good]):
            if case.error is None:
                questions.see(case)
    replayer.stopped = stopped
    return replayer, begun


def _cases(args: argparse.Namespace) -> list[ReplayCase]:
    """In an order that has nothing to do with what they are: the replay may stop at any of them."""
    if Path(args.cases).suffix == ".jsonl":
        if args.version is not None:
            raise ConfigError("--version is of a set: a file has one version")
        found = list(file_cases(Path(args.cases)))
    else:
        try:
            with connect(args) as client:
                found = list(stored_cases(client, args.cases, args.version))
        except (ApiError, Unavailable) as e:  # 1 says that the candidate is worse, and nothing else
            raise StartError(f"{args.cases}: {e}" + (f" ({e.fix})" if e.fix else "")) from e
    if not found:
        raise ConfigError(f"{args.cases}: no cases in it")
    found.sort(key=lambda e: hashlib.sha256(f"{e.key}/{e.id}".encode()).digest())
    return [case_of(e, args.steps) for e in found]
