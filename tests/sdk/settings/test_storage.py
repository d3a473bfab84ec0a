"""Where things are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from slipstream.config import load_config
from slipstream.settings import AdaptersConfig, Config, StoreConfig
from slipstream.tenants import tenant_config


def test_the_defaults_lie_in_the_data_folder(tmp_path: Path) -> None:
    config = Config(data_dir=str(tmp_path))
    assert config.store_url == f"duckdb:///{tmp_path / 'slipstream.duckdb'}"
    assert config.adapters_dir == tmp_path / "adapters"


def test_what_is_given_is_used(tmp_path: Path) -> None:
    url = "postgresql://db/slip"
    config = Config.model_validate({"store": {"url": url}, "adapters": {"dir": str(tmp_path / "a")}})
    assert (config.store_url, config.adapters_dir) == (url, tmp_path / "a")


@pytest.mark.parametrize("wrong", [{"keep_days": 0}, {"threads": 0}, {"sql_timeout": 0}])
def test_limits_of_the_store(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        StoreConfig.model_validate(wrong)


def test_at_least_one_retired_adapter_is_kept() -> None:
    with pytest.raises(ValidationError):
        AdaptersConfig(keep=0)
    assert StoreConfig().keep_days is None  # for ever


def test_an_archive_may_be_a_bucket(tmp_path: Path) -> None:
    """A URL is no path beside the file, and a tenant's place comes before its options."""
    place = "s3://cold/calls?region=eu-central-1"
    (tmp_path / "a.toml").write_text(f'[store]\narchive = "{place}"\n[tenants."acme"]\n')
    config = load_config(tmp_path / "a.toml", env={})
    assert config.store.archive == place
    assert tenant_config(config, "acme").store.archive == "s3://cold/calls/tenants/acme?region=eu-central-1"
    with pytest.raises(ValidationError, match=r"archive(.|\n)*begins with s3:// or gs://"):
        StoreConfig(archive="ftp://cold/calls")
