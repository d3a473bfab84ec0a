"""``slipstream proxy``: what is checked before anything runs."""

from __future__ import annotations

import os
import socket

import pytest

from slipstream import __version__
from slipstream.config import Config
from slipstream.errors import ConfigError, StartError
from slipstream.shared.files import DATA_FOLDER_FORMAT
from slipstream_proxy.keys import Keys
from slipstream_proxy.main import run
from slipstream_proxy.process.parent import lock
from slipstream_trainer.versions.checkpoint import only_one


def config(folder, **proxy) -> Config:
    return Config.model_validate({"data_dir": str(folder), "proxy": {"port": 0, **proxy}})


def test_one_clear_line_for_a_wrong_start(tmp_path):
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    with pytest.raises(StartError, match=f"{port}"):
        run(config(tmp_path, port=port))
    taken.close()
    with pytest.raises(StartError, match="keys add"):
        run(config(tmp_path, host="0.0.0.0"))
    with pytest.raises(ConfigError, match="redact"):
        run(config(tmp_path, redact="no_such_module:f"))


def test_a_failed_start_gives_the_data_folder_back(tmp_path):
    taken = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(StartError):
        run(config(tmp_path, port=taken.getsockname()[1]))
    taken.close()
    os.close(lock(tmp_path))


def test_a_folder_in_use_is_left_alone(tmp_path):
    held = lock(tmp_path)
    with pytest.raises(StartError, match="another proxy"):
        run(config(tmp_path))
    os.close(held)


def test_with_a_key_a_wide_address_passes_the_first_check(tmp_path):
    Keys(tmp_path / "keys.json").add("a", ["admin"])
    held = lock(tmp_path)
    with pytest.raises(StartError, match="another proxy"):  # the next check, and not the address
        run(config(tmp_path, host="0.0.0.0"))
    os.close(held)


def test_a_folder_of_a_newer_version_is_refused_in_words(tmp_path):
    """One without a format is of an older version, and opens."""
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, pytest.raises(StartError, match="cannot bind"):  # the next check
        run(config(tmp_path, port=taken.getsockname()[1]))
    assert (tmp_path / "format").read_text() == f"{DATA_FOLDER_FORMAT} {__version__}\n"
    (tmp_path / "format").write_text(f"{DATA_FOLDER_FORMAT + 1} 9.9.0\n")
    with pytest.raises(
        StartError, match=r"written by slipstream 9\.9\.0 .*: install 9\.9\.0 or newer, or restore a backup"
    ):
        run(config(tmp_path))
    with pytest.raises(StartError, match=r"9\.9\.0"), only_one(tmp_path / "checkpoints"):
        pass
    (tmp_path / "format").write_text("rubbish")
    with pytest.raises(StartError, match="format cannot be read"):
        run(config(tmp_path))
