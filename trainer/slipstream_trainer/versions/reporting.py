"""A step's figures to W&B, TensorBoard, MLflow and transformers' other callbacks (``trainer.report_to``)."""

from __future__ import annotations

import difflib
import importlib.util
import logging
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.config import Config
from slipstream.contract import folder_of
from slipstream.errors import ConfigError
from slipstream_trainer.versions.events import clean
from slipstream_trainer.versions.runs import RUN_TRACKERS, VersionRun

if TYPE_CHECKING:
    from slipstream_trainer.step.trainer import CapturedGRPOTrainer
    from slipstream_trainer.versions.checkpoint import CheckpointState

log = logging.getLogger(__name__)
REPORTED_PACKAGES = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "comet_ml": ("comet_ml",),
    "trackio": ("trackio",),
    "neptune": ("neptune",),
    "clearml": ("clearml",),
    "dvclive": ("dvclive",),
    "swanlab": ("swanlab",),
}
"""Reporter → its packages. One of them must be installed."""


LOGGERS_LOCK = threading.Lock()
"""Tenants have the same loggers."""


def check_report_to(config: Config) -> None:
    """Raises ``ConfigError`` for a logger that nobody knows or that is not installed."""
    for name in config.trainer.report_to:
        packages = REPORTED_PACKAGES.get(name)
        if packages is None:
            near = difflib.get_close_matches(name, REPORTED_PACKAGES, 1, 0.5)
            raise ConfigError(
                f"trainer.report_to: {name!r} is not known; known are {', '.join(near or REPORTED_PACKAGES)}"
            )
        if not any(importlib.util.find_spec(p) for p in packages):
            raise ConfigError(f"trainer.report_to: {name} is not installed: pip install {packages[0]}")


def numbers_of(figures: Mapping[str, object]) -> dict[str, float]:
    return {k: v for k, v in clean(figures).items() if isinstance(v, int | float) and not isinstance(v, bool)}


class Reporter:
    """A logger that fails is said and left alone: it never costs a step."""

    def __init__(self, trainer: CapturedGRPOTrainer, config: Config) -> None:
        self.trainer, self.config = trainer, config
        self.names = list(config.trainer.report_to)
        self.begun = False
        self._bar: Any = None

    def show(self, outcome: str, step: int, figures: Mapping[str, object]) -> None:
        """A progress bar, where a person looks."""
        if not sys.stderr.isatty():
            return
        from tqdm import tqdm

        most = self.config.trainer.max_steps
        self._bar = self._bar or tqdm(total=most, initial=step - 1, unit="step", dynamic_ncols=True)
        self._bar.update(1 if outcome == "step" else 0)
        shown = {k: f"{x:.3g}" for k in ("reward", "kl", "entropy") if isinstance(x := figures.get(k), float)}
        self._bar.set_postfix(shown)

    def _do(self, what: str, *args: Any) -> None:
        handler = self.trainer.callback_handler
        getattr(handler, what)(self.trainer.args, self.trainer.state, self.trainer.control, *args)

    def step(self, step: int, figures: Mapping[str, object]) -> None:
        if not self.names:
            return
        try:
            with LOGGERS_LOCK:
                self.trainer.state.global_step = step
                if not self.begun:
                    self.begun = True
                    self._do("on_train_begin")
                prefix = f"{self.config.tenant}/" if self.config.tenant else ""
                self.trainer.log({prefix + name: value for name, value in numbers_of(figures).items()})
                self.trainer.state.log_history.clear()  # an endless run's would grow for ever
        except Exception:
            log.exception("step %d could not be reported to %s", step, ", ".join(self.names))

    def version(self, state: CheckpointState, figures: Mapping[str, object]) -> None:
        """A run for the adapter that this step made."""
        config, name = self.config, state.adapter
        for made in [RUN_TRACKERS[n] for n in self.names if n in RUN_TRACKERS] if name else []:
            version = VersionRun(
                str(name),
                state.base,
                state.step,
                state.batches,
                config.adapters_dir / folder_of(str(name)),
                numbers_of(figures),
            )
            try:
                made(version, config, Path(str(self.trainer.args.output_dir)) / "runs")
            except Exception:
                log.exception("no run was made for the adapter %s", name)

    def end(self) -> None:
        if self.begun:
            try:
                self._do("on_train_end")
            except Exception:
                log.exception("%s could not be closed", ", ".join(self.names))
