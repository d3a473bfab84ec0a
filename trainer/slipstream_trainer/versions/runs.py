"""A run for each adapter, in the loggers that have runs: its settings, its figures, and what it came of.

The trainer's own run goes on for weeks. What people compare, register and go back to is a version.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from slipstream.config import Config

MOST_TEXT = 500
"""Characters of a value: MLflow takes no longer parameter."""


class VersionRun(NamedTuple):
    name: str
    parent: str
    """The adapter that it was trained from, or the base model."""
    step: int
    batches: Sequence[str]
    """What it was trained on since its parent (``slipstream batches``)."""
    path: Path
    figures: Mapping[str, float]


def settings_of(config: Config) -> dict[str, str]:
    """What decides how a version comes out."""
    parts = {
        "engine": {"model": config.engine.model},
        "trainer": config.trainer.model_dump(),
        "reward": config.reward.model_dump(),
    }
    return {
        f"{part}.{name}": str(value)[:MOST_TEXT]
        for part, found in parts.items()
        for name, value in found.items()
        if value is not None
    }


def lineage_of(version: VersionRun) -> dict[str, str]:
    return {
        "slipstream.adapter": version.name,
        "slipstream.parent": version.parent,
        "slipstream.batches": " ".join(version.batches)[: 10 * MOST_TEXT],
        "slipstream.path": str(version.path),
    }


def to_mlflow(version: VersionRun, config: Config, _: Path) -> None:
    """A child of the trainer's run."""
    import mlflow
    from mlflow.entities import Metric, Param

    client, own = mlflow.MlflowClient(), mlflow.active_run()
    tags = lineage_of(version) | ({"mlflow.parentRunId": own.info.run_id} if own else {})
    run = client.create_run(own.info.experiment_id if own else "0", tags=tags, run_name=version.name).info.run_id
    now = int(1000 * time.time())
    metrics = [Metric(name, value, now, version.step) for name, value in version.figures.items()]
    client.log_batch(run, metrics, [Param(name, value) for name, value in settings_of(config).items()])
    client.set_terminated(run)


def to_wandb(version: VersionRun, config: Config, _: Path) -> None:
    """Beside the trainer's run, in its project, and in a group with the other versions."""
    import wandb

    own = wandb.run
    run = wandb.init(
        project=own.project if own else None,
        name=version.name,
        group=own.name if own else None,
        job_type="adapter",
        config=settings_of(config) | lineage_of(version),
        reinit="create_new",
    )
    run.log(dict(version.figures), step=version.step)
    run.finish()


def to_tensorboard(version: VersionRun, config: Config, folder: Path) -> None:
    """A folder of the version's name: its settings under HPARAMS, what it came of under TEXT."""
    package = "torch.utils.tensorboard" if importlib.util.find_spec("tensorboard") else "tensorboardX"
    with importlib.import_module(package).SummaryWriter(str(folder / version.name)) as board:
        for name, text in lineage_of(version).items():
            board.add_text(name, text, version.step)
        for name, text in settings_of(config).items():
            board.add_text(name, text, version.step)
        for name, value in version.figures.items():
            board.add_scalar(f"version/{name}", value, version.step)


RUN_TRACKERS: Mapping[str, Callable[[VersionRun, Config, Path], None]] = {
    "mlflow": to_mlflow,
    "wandb": to_wandb,
    "tensorboard": to_tensorboard,
}
"""Logger → what makes a version's run there; it gets the folder of the trainer's own."""
