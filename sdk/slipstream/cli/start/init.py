from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from slipstream.cli.common import OLD_NAMES_GO, add_json
from slipstream.config import load_config
from slipstream.errors import ConfigError
from slipstream.operate.setup.frameworks import BY_NAME, detect
from slipstream.operate.setup.profiles import SETTING_PROFILES
from slipstream.operate.setup.starter import (
    SETTINGS_FILE_NAME,
    Answers,
    gpu_gib,
    model_for,
    next_steps,
    render,
    settings_of,
)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="PATH_OR_NAME", help="base model; default: what fits this machine's GPU")
    parser.add_argument("--name", help="the model's name for clients; default: the last part of --model")
    parser.add_argument("--framework", choices=sorted(BY_NAME), help=argparse.SUPPRESS)  # the old name of `connect`
    parser.add_argument("--judge", metavar="MODEL", help="a LiteLLM model scores the runs; default: you post rewards")
    parser.add_argument(
        "--profile",
        choices=sorted(SETTING_PROFILES),
        help="default: small without a GPU, else agents (chat with a judge)",
    )
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument(
        "--out",
        "--config",
        metavar="FILE",
        default=SETTINGS_FILE_NAME,
        help=f"the file to write; default: {SETTINGS_FILE_NAME}",
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.add_argument("--yes", action="store_true", help="do not ask: use the flags and what is detected")
    add_json(parser)


def ask(question: str, default: str, choices: tuple[str, ...] = ()) -> str:
    """An answer from the terminal; an empty one is the default."""
    while True:
        told = f" ({', '.join(choices)})" if choices else ""
        print(f"{question}{told} [{default}]: ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline().strip() or default
        if not choices or answer in choices:
            return answer
        print(f"  {answer}: not one of them", file=sys.stderr)


def gather(args: argparse.Namespace, *, interactive: bool) -> Answers:
    gib = gpu_gib()
    model = args.model or model_for(gib)
    framework = args.framework or detect(Path.cwd())
    profile = args.profile or ("small" if not gib else "chat" if args.judge else "agents")
    judge = args.judge
    if interactive:
        machine = f"a GPU with {gib:.0f} GiB" if gib else "no GPU: small models only"
        print(f"This machine: {machine}.", file=sys.stderr)
        model = args.model or ask("Model (a folder, or a name on the hub)", model)
        if judge is None and ask("Who scores a run?", "reward", ("reward", "judge")) == "judge":
            judge = ask("The judge (a LiteLLM name)", "openai/gpt-5-mini")
        profile = args.profile or ask("Profile", profile, tuple(SETTING_PROFILES))
    name = args.name or Path(model).expanduser().resolve().name
    return Answers(model, name, framework, judge, profile, args.port, share=False, file=args.out)


def step_of(profile: str) -> str:
    """When a step comes with its settings, and how to take another one."""
    trainer = SETTING_PROFILES[profile].settings["trainer"]
    assert isinstance(trainer, dict)
    few, wait = trainer["min_groups"], trainer["max_wait"]
    others = ", ".join(name for name in SETTING_PROFILES if name != profile)
    return f"A step takes {few} groups, or fewer after {wait:.0f} s. --profile has others: {others}."


def run(args: argparse.Namespace) -> int:
    path = Path(args.out)
    if path.exists() and not args.force:
        raise ConfigError(f"{path} already exists: --force overwrites it, --out writes elsewhere")
    answers = gather(args, interactive=sys.stdin.isatty() and not args.yes)
    text = render(answers)
    load_config(env={}, base=settings_of(answers))  # what is written can be read
    try:
        path.write_text(text)
    except OSError as e:
        raise ConfigError(f"{path}: {e.strerror}") from e
    if args.framework:
        print(
            f"slipstream init --framework is now `slipstream connect {args.framework}`; the old name goes with release "
            f"{OLD_NAMES_GO}",
            file=sys.stderr,
        )
    if args.json:
        said = {name: getattr(answers, name) for name in ("model", "framework", "judge", "profile")}
        print(json.dumps({"file": str(path), **said, "next": next_steps(answers)}))
        return 0
    print(f"{path} is written.\n")
    asked = sys.stdin.isatty() and not args.yes
    if not (asked or args.profile):
        print(f"Profile {answers.profile}: {SETTING_PROFILES[answers.profile].text}. {step_of(answers.profile)}\n")
    print("\n".join(next_steps(answers)))
    return 0
