"""``slipstream train``: one step on what waits, or training on an export, without a loop around it."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterable
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from slipstream.client import Client
from slipstream.config import Config
from slipstream.contract import TrainedOn, folder_of
from slipstream.errors import ApiError, StartError
from slipstream_trainer.batch.dataset import group_batches, read_rows, samples_of
from slipstream_trainer.batch.rows import Sample, exact_continuations, untrainable
from slipstream_trainer.versions.adapter_folder import next_version, write_adapter
from slipstream_trainer.versions.checkpoint import Checkpoints, CheckpointState, only_one
from slipstream_trainer.versions.events import line
from slipstream_trainer.versions.reporting import Reporter
from slipstream_trainer.versions.shipping import AdapterShipping

log = logging.getLogger(__name__)


def train(
    config: Config,
    *,
    once: bool = False,
    from_export: Path | None = None,
    resume: bool = False,
    out: str | Path | None = None,
    url: str | None = None,
    key: str | None = None,
) -> int:
    """Exit code: 0 when something was trained. Raises ``StartError`` and ``ConfigError``.

    ``once``: one step. ``resume``: go on from the newest checkpoint (otherwise its weights are not looked at,
    except online, where the trainer's own state always counts). ``out``: folder of the adapter; default the next
    version in the adapters folder, which is also registered when the proxy at ``url`` answers.
    """
    from slipstream_trainer.model.policy import check_lora

    check_lora(config)
    if from_export is None:
        return _online(config, once=once, url=url, key=key)
    if not from_export.is_file():
        raise StartError(f"--from-export {from_export}: no such file")
    return _from_export(config, from_export, once=once, resume=resume, out=Path(out) if out else None, url=url, key=key)


def _online(config: Config, *, once: bool, url: str | None, key: str | None) -> int:
    from slipstream_trainer.run.process import main
    from slipstream_trainer.run.start import start_trainer
    from slipstream_trainer.run.worker import Worker

    if not once:
        return main(config, lambda: url, key)
    with only_one(config.checkpoints_dir), Client(url, key) as client:
        worker = Worker(config, client, *start_trainer(config, client))
        try:
            worker.begin()
            before = worker.current.state.step
            if not worker.once():
                log.warning("nothing to train on: `slipstream status` says what is missing")
            worker.publisher.finish()
        finally:
            worker.stop.set()  # what is still to be told waits for no proxy that is away
            with contextlib.suppress(ApiError):
                worker.learner.end()
        return 0 if worker.current.state.step > before else 1


def _from_export(
    config: Config, export: Path, *, once: bool, resume: bool, out: Path | None, url: str | None, key: str | None
) -> int:
    from slipstream_trainer.run.start import start_trainer
    from slipstream_trainer.step.step import train as step

    t = config.trainer
    if out is not None and out.exists():
        raise StartError(f"{out} is there already: adapters are immutable")
    trainer, _ = start_trainer(config, None)
    samples = samples_of(
        read_rows(export), trainer.processing_class, sft=t.algorithm == "sft", vocab=trainer.learner.vocab
    )
    exact, later = exact_continuations(samples)
    log.info(
        "%d samples of %d episodes, %d to train on; of %d later calls %d continue an earlier one token by token",
        len(samples),
        len({s.run for s in samples}),
        sum(s.trainable for s in samples),
        later,
        exact,
    )
    if not any(s.trainable for s in samples):
        raise StartError(f"{export}: nothing to train on ({untrainable(samples) or 'no calls with tokens'})")
    checkpoints = Checkpoints(config.root / "offline", t.keep_checkpoints)
    state, skip = CheckpointState(weights=config.model_name), 0
    found = checkpoints.latest() if resume else None
    if found is not None:
        state = checkpoints.load(found, trainer.learner)
        skip = int(state.event.get("batches", 0)) if state.event.get("export") == str(export) else 0
    batches = group_batches(samples, t.max_groups)
    bar = _bar(len(batches), skip)
    stepped, reporter = 0, Reporter(trainer, config)
    taught = [s for batch in batches[:skip] for s in batch]
    for number, batch in enumerate(batches):
        if number < skip or (t.max_steps is not None and state.step >= t.max_steps) or (once and stepped):
            continue
        result = step(trainer, batch, state.pace, state.step)
        if result.outcome == "step":
            stepped += 1
            state.step += 1
            taught += batch
            log.info("%s", line(result.figures | {"step": state.step}))
            reporter.step(state.step, result.figures)
        else:
            log.warning("batch %d %s: %s", number, result.outcome, result.reason)
        bar.update(1)
        state.event = {"export": str(export), "batches": number + 1}
        checkpoints.set_told(checkpoints.save(trainer.learner, trainer.learner.save(keep=True), state))
        checkpoints.prune({state.weights})
    bar.close()
    reporter.end()
    if stepped:
        meta: dict[str, JsonValue] = {"offline": True}
        publish_adapter(config, trainer.learner.adapter, out, state.step, url, key, meta, trained_on(taught))
    return 0 if stepped else 1


def trained_on(taught: Iterable[Sample]) -> list[TrainedOn]:
    """The samples' episodes. A file that ``slipstream export`` did not write may name none."""
    found = {(s.key, s.episode): s for s in taught if s.trainable and s.key}
    return [
        TrainedOn(
            key=s.key,
            episode=s.episode,
            group=s.group if "/" not in s.group else None,  # made up: the file names no group
            reward=float(s.reward) if isfinite(s.reward) else None,
        )
        for s in found.values()
    ]


def _bar(total: int, initial: int) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, initial=initial, unit="batch", disable=not sys.stderr.isatty())


def publish_adapter(
    config: Config,
    write: Callable[[Path], None],
    out: Path | None,
    step: int | None,
    url: str | None,
    key: str | None,
    meta: dict[str, JsonValue],
    episodes: list[TrainedOn],
) -> str:
    """Have ``write`` make the adapter in ``out``. None: as the next version, which the proxy is told of if it answers.

    → The version's name, or where it is.
    """
    model = config.model_name
    if out is not None:
        write_adapter(write, out, config.engine.max_lora_rank)
        log.info("wrote %s", out)
        return str(out)
    from slipstream.contract import AdapterIn, NameClaimIn

    with Client(url, key) as client:
        try:
            known = client.adapters()
        except ApiError:
            known = None
        number = next_version(model, config.adapters_dir, known)
        name = f"{model}@{number}"
        if known is not None:
            name = client.claim_name(NameClaimIn(model=model, above=number - 1)).name
        folder = config.adapters_dir / folder_of(name)
        write_adapter(write, folder, config.engine.max_lora_rank)
        log.info("wrote %s", folder)
        if known is not None:
            begun = Path(config.trainer.init_adapter or "").name
            parent = next((a.name for a in known.adapters if a.model == model and a.path == begun), None)
            made = AdapterIn(path=folder.name, model=model, step=step, parent=parent, episodes=episodes, meta=meta)
            AdapterShipping(config, client, lambda ask: ask(), threading.Event()).register(folder, made)
    return name
