"""``slipstream init``: a commented ``slipstream.toml`` for this machine and this agent."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass

import tomli_w
from pydantic import JsonValue

from slipstream.operate.setup.frameworks import lines_for
from slipstream.operate.setup.profiles import SETTING_PROFILES
from slipstream.shared.machine import has_gpu

STARTER_MODELS = (
    (0.0, "Qwen/Qwen3-0.6B"),
    (14.0, "Qwen/Qwen3-1.7B"),
    (22.0, "Qwen/Qwen3-4B"),
    (44.0, "Qwen/Qwen3-8B"),
    (78.0, "Qwen/Qwen3-14B"),
)
"""GiB of GPU memory from which the trainer fits beside vLLM."""
SETTINGS_FILE_NAME = "slipstream.toml"
"""What every command reads where it lies in the folder."""
SETTING_NOTES = {
    "engine": "the model that is served and trained",
    "engine.model": "a folder, or a name on the Hugging Face hub",
    "engine.name": "the name that your agent asks for",
    "engine.share": "one GPU: vLLM sleeps while the trainer steps",
    "proxy": "where your agents call",
    "judge": "scores runs by comparing them with each other; rewards that you post need none of this",
    "judge.model": "a LiteLLM name; its key stays in the environment",
    "reward": "what trains: reward name → weight. `reward` is what you post, `judge` what the judge gives",
    "identity": "which calls belong together, where nothing tags them",
    "groups": "runs that are compared with each other",
    "trainer": "how steps are made",
    "trainer.min_groups": "groups of runs that make a step",
    "trainer.max_wait": "seconds after which fewer groups are enough",
    "trainer.lora_rank": "engine.max_lora_rank must be as large",
}


@dataclass(slots=True)
class Answers:
    model: str
    name: str
    framework: str
    judge: str | None
    """LiteLLM model; None: rewards are posted."""
    profile: str
    port: int = 8100
    share: bool = False
    file: str = SETTINGS_FILE_NAME
    """What is written."""

    @property
    def up(self) -> str:
        """The command that starts everything from the file."""
        return (
            "slipstream up" if self.file == SETTINGS_FILE_NAME else f"slipstream up --config {shlex.quote(self.file)}"
        )


def gpu_gib() -> float:
    """Memory of the largest GPU in GiB; 0 where there is none, or where the driver does not answer."""
    if not has_gpu():
        return 0.0
    ask = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(ask, check=True, capture_output=True, text=True, timeout=30).stdout
        return max(float(line) for line in told.split()) / 1024
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0.0


def model_for(gib: float) -> str:
    return next(name for least, name in reversed(STARTER_MODELS) if gib >= least)


def settings_of(answers: Answers) -> dict[str, dict[str, JsonValue]]:
    """Section → its settings: what was answered, then the profile's."""
    tree: dict[str, dict[str, JsonValue]] = {
        "engine": {"model": answers.model, "name": answers.name},
        "proxy": {"port": answers.port},
    }
    if answers.share:
        tree["engine"]["share"] = True
    if answers.judge:
        tree["judge"] = {"model": answers.judge}
        tree["reward"] = {"weights": {"judge": 1.0}}
    for section, values in SETTING_PROFILES[answers.profile].settings.items():
        assert isinstance(values, dict)
        if section == "reward" and not answers.judge:
            continue  # a judge's weight without a judge: nothing would ever be trained on
        tree[section] = {**values, **tree.get(section, {})}
    return tree


def render(answers: Answers) -> str:
    """The file's text."""
    reads = f"`{answers.up}` in this folder reads it; `slipstream config` has the others."
    lines = [
        f"# Written by `slipstream init`. {reads}",
        f"# Profile {answers.profile}: {SETTING_PROFILES[answers.profile].text}.",
    ]
    for section, values in settings_of(answers).items():
        lines += ["", *([f"# {SETTING_NOTES[section]}"] if section in SETTING_NOTES else []), f"[{section}]"]
        for name, value in values.items():
            note = SETTING_NOTES.get(f"{section}.{name}")
            lines += [f"# {note}"] if note else []
            lines.append(tomli_w.dumps({name: value}).strip() if not isinstance(value, dict) else _inline(name, value))
    return "\n".join(lines) + "\n"


def _inline(name: str, value: dict[str, JsonValue]) -> str:
    pairs = (tomli_w.dumps({k: v}).strip() for k, v in value.items())
    return f"{name} = {{ {', '.join(pairs)} }}"


def next_steps(answers: Answers) -> list[str]:
    """What to do now, with the lines to paste."""
    root = f"http://127.0.0.1:{answers.port}"
    steps = [
        "1. Start everything:",
        f"     {answers.up}",
        f"2. Point your agent at the proxy ({answers.framework}; `slipstream connect NAME` has the lines of others,",
        "   and connects coding agents). run_id: one id a run. task: what it was asked.",
        *(f"     {line}" for line in lines_for(answers.framework, answers.name, root)),
    ]
    if answers.judge:
        return [*steps, f"3. Nothing more: {answers.judge} compares the runs of a task with each other."]
    curl = f"curl {root}/slipstream/v1/episodes/RUN_ID/rewards --json '{{\"value\": 1.0}}'"
    return [*steps, "3. When a run has ended, say how it went (any number, more is better):", f"     {curl}"]
