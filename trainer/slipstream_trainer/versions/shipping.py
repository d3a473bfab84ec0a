"""An adapter's way to the proxy: by a folder that both see, or over HTTP.

The proxy's answer says whether it sees the folder. If not, the files are uploaded: a trainer on another machine needs
no shared folder.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from slipstream.client import Client
from slipstream.config import Config
from slipstream.contract import Adapter, AdapterIn, AdapterTrial, AdapterTrialIn, folder_of
from slipstream.errors import ApiError, SlipstreamError, StartError
from slipstream.shared.adapter_config import CONFIG_FILE_NAME, WEIGHTS_FILE_NAME
from slipstream.shared.files import sha256_of
from slipstream_trainer.model.adapter import check_adapter
from slipstream_trainer.versions.adapter_folder import rename_whole, temporary_of
from slipstream_trainer.versions.learner import LearnerRecord

log = logging.getLogger(__name__)
T = TypeVar("T")
PART_BYTES = 32 * 2**20
"""Of a weights file that is uploaded: a larger one goes in parts, and goes on where it broke off."""
UPLOAD_TRIES = 3
MOUNT_LAG_S, LOOK_INTERVAL_S = 10.0, 1.0
"""Seconds that a shared folder's other side may be behind, and between looks."""


class NameTaken(SlipstreamError):
    """Another version has this name, or a folder that nobody claimed."""


class Patiently(Protocol):
    def __call__(self, ask: Callable[[], T], /) -> T: ...


def has_weights(folder: Path, sha256: str) -> bool:
    weights = folder / WEIGHTS_FILE_NAME
    return weights.is_file() and sha256_of(weights) == sha256


def unseen(error: ApiError) -> bool:
    """Whether the proxy does not see the folder, or sees other files in it."""
    return (error.status, error.field) in ((404, "body.path"), (409, "body.sha256"))


class AdapterShipping:
    def __init__(self, config: Config, client: Client, patiently: Patiently, stop: threading.Event) -> None:
        self.config, self.client, self.patiently, self.stop = config, client, patiently, stop
        self.shared: bool | None = None
        """Whether the proxy sees ``adapters.dir`` here; None: it was not asked yet."""

    def register(self, source: Path, wanted: AdapterIn) -> Adapter:
        """A version with the files in ``source``. Again changes nothing. Raises ``NameTaken``, ``ApiError`` for what is
        refused, ``SlipstreamError`` for what vLLM would refuse, and ``OSError``.
        """
        sha256 = sha256_of(source / WEIGHTS_FILE_NAME)
        wanted = wanted.model_copy(update={"sha256": sha256})
        if self.shared is not False:
            final, owner = self.config.adapters_dir / wanted.path, LearnerRecord.read(self.config.checkpoints_dir).name
            try:
                put_adapter(source, final, self.config.engine.max_lora_rank, sha256, owner)
                made = self._seen(wanted)
            except OSError as e:
                if self.shared:
                    raise
                log.warning("adapters.dir cannot be written here, %s is uploaded: %s", wanted.path, e)
                made = None
            if made is not None:
                self.shared = True
                return made
        return self._upload(source, sha256, lambda files: self.client.upload_adapter(wanted, files))

    def _seen(self, wanted: AdapterIn) -> Adapter | None:
        """None: the proxy does not see the folder, or not yet all of it."""
        waited = 0.0
        while True:
            try:
                return self.patiently(lambda: self.client.add_adapter(wanted))
            except ApiError as e:
                if not unseen(e):
                    raise _taken(e) or e from e
                if not self.shared or waited >= MOUNT_LAG_S or self.stop.wait(LOOK_INTERVAL_S):
                    log.warning("the proxy does not see %s of this machine, it is uploaded: %s", wanted.path, e)
                    return None
                waited += LOOK_INTERVAL_S

    def try_out(self, folder: Path) -> AdapterTrial:
        """Ask about an adapter that is to be no version."""
        sha256 = sha256_of(folder / WEIGHTS_FILE_NAME)
        wanted = AdapterTrialIn(path=folder.name, sha256=sha256)
        if self.shared is not False:
            try:
                found = self.patiently(lambda: self.client.try_adapter(wanted))
            except ApiError as e:
                if not unseen(e):
                    raise
                self.shared = False
                log.warning(
                    "the proxy does not see adapters.dir of this machine (%s): adapters are uploaded to it. "
                    "Checkpoints stay here, in %s",
                    self.config.adapters_dir,
                    self.config.checkpoints_dir,
                )
            else:
                self.shared = True
                return found
        return self._upload(folder, sha256, lambda files: self.client.upload_trial(wanted, files))

    def fetch(self, adapter: str, sha256: str | None) -> Path:
        """The folder of a version: the one here, or what the proxy sends. ``sha256``: of its weights, as far as that is
        known. Raises ``StartError`` where neither has it.
        """
        here = self.config.adapters_dir / folder_of(adapter)
        if here.is_dir() and (self.shared or sha256 is None or has_weights(here, sha256)):
            return here
        made = self.config.checkpoints_dir / f".tmp-trainer-fetched-{folder_of(adapter)}"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        try:
            for file in (CONFIG_FILE_NAME, WEIGHTS_FILE_NAME):
                (made / file).write_bytes(self.patiently(partial(self.client.adapter_file, adapter, file)))
        except ApiError as e:
            raise StartError(f"{adapter} is not in {here.parent}, and the proxy does not send it: {e}") from e
        if sha256 is not None and not has_weights(made, sha256):
            raise StartError(f"the weights of {adapter} that the proxy sent have another hash")
        return made

    def _upload(self, source: Path, sha256: str, post: Callable[[dict[str, Path]], T]) -> T:
        if why := check_adapter(source, self.config.engine.max_lora_rank):
            raise SlipstreamError(f"vLLM would refuse it: {why}")
        weights = source / WEIGHTS_FILE_NAME
        files = {CONFIG_FILE_NAME: source / CONFIG_FILE_NAME}
        in_parts = weights.stat().st_size > PART_BYTES
        for n in range(UPLOAD_TRIES):
            if in_parts:
                self._send_parts(weights, sha256)
            try:
                return self.patiently(lambda: post(files if in_parts else files | {WEIGHTS_FILE_NAME: weights}))
            except ApiError as e:
                if e.field != "body.adapter.sha256" or n == UPLOAD_TRIES - 1:
                    raise _taken(e) or e from e
        raise AssertionError

    def _send_parts(self, weights: Path, sha256: str) -> None:
        size = weights.stat().st_size
        at = min(size, self.patiently(lambda: self.client.upload_state(sha256)).bytes)
        with weights.open("rb") as file:
            while at < size:
                file.seek(at)
                at = self.patiently(partial(self.client.upload_part, sha256, at, file.read(PART_BYTES))).bytes


def _taken(error: ApiError) -> NameTaken | None:
    if error.status == 409 and error.field in ("body.path", "body.adapter.path"):
        return NameTaken(str(error))
    return None


def _link(source: str, target: str) -> None:
    """One file under two names, where both folders are of one file system: neither is ever written to again."""
    try:
        Path(target).hardlink_to(source)
    except OSError:
        shutil.copy2(source, target)


def put_adapter(source: Path, final: Path, max_rank: int, sha256: str, owner: str | None = None) -> None:
    """Link or copy an adapter's files so that ``final`` appears whole. Nothing, if these weights are there already.

    Raises ``NameTaken`` where others are, and ``SlipstreamError`` if vLLM would refuse them.
    """
    if why := check_adapter(source, max_rank):
        raise SlipstreamError(f"vLLM would refuse it: {why}")
    if final.exists():
        if not has_weights(final, sha256):
            raise NameTaken(f"{final} is there already, with other weights")
        return
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_of(final, owner)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        shutil.copytree(source, temporary, copy_function=_link)
        rename_whole(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
