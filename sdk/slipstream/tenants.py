"""A tenant's own configuration: that of a whole Slipstream, in a folder of its own."""

from __future__ import annotations

import contextlib
import json
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from pydantic import ValidationError

from slipstream.errors import ConfigError
from slipstream.settings import Config, RewardConfig
from slipstream.settings.tenants import TenantConfig
from slipstream.shared.tenant_names import TENANTS_FOLDER_NAME, check_tenant_name
from slipstream.shared.urls import without_password

SETTINGS_TOLD_FILE_NAME, TENANT_STATES_FILE_NAME = "settings.json", "tenants.json"
"""In the proxy's folder: what it read in the settings file, and tenant → why its control plane does not run."""
_OWN_SECTIONS = tuple(name for name in TenantConfig.model_fields if name not in ("quota", "share"))


def tenant_config(config: Config, name: str) -> Config:
    """The settings of the tenant ``name``; of one that is not declared they are those of all. An empty name stands for
    the proxy's own folder. Raises ``ConfigError``: no name, or settings of its own that cannot be.
    """
    if not name:
        return config
    check_tenant_name(name)
    if config.engine.share:
        raise ConfigError(
            f"the tenant {name} cannot be served: engine.share = true lets the engine sleep while one trains, for all. "
            "Set it to false, and give the trainer a GPU of its own"
        )
    own = config.tenants.get(name, TenantConfig())
    tree = config.model_dump(exclude={"tenants"})
    if config.reward.weights in (RewardConfig().weights, dict.fromkeys(config.judge.names[:1], 1.0)):
        del tree["reward"]["weights"]  # what follows from the judge follows from the tenant's own
    for section in _OWN_SECTIONS:
        tree[section].update(getattr(own, section))
    root = config.root / TENANTS_FOLDER_NAME / name
    tree |= {"tenant": name, "data_dir": str(root), "quota": own.quota.model_dump(), "share": own.share}
    if config.adapters.dir:
        tree["adapters"]["dir"] = str(config.adapters_dir / TENANTS_FOLDER_NAME / name)
    if config.store.archive:
        tree["store"]["archive"] = config.store.archive_of(TENANTS_FOLDER_NAME, name)
    tree["store"]["url"] = _own_store(config.store.url, name)
    _bound(tree, own)
    try:
        return Config.model_validate(tree)
    except ValidationError as e:
        said = [
            f'tenants."{name}".{".".join(map(str, error["loc"]))}: {error["msg"].removeprefix("Value error, ")}'
            for error in e.errors()
        ]
        raise ConfigError("\n".join(said)) from e


def check_tenants(config: Config, source: str) -> None:
    """Raises ``ConfigError`` for declared tenants whose own settings cannot be. ``source``: where they were read."""
    wrong = []
    for name, own in config.tenants.items():
        if own.model_fields_set or config.engine.share:
            try:
                tenant_config(config, name)
            except ConfigError as e:
                wrong += str(e).splitlines()
    if wrong:
        raise ConfigError("\n".join(f"{source}: {line}" for line in wrong))


def _bound(tree: dict[str, Any], own: TenantConfig) -> None:
    """Quotas that another setting keeps."""
    if own.quota.adapters is not None:
        tree["adapters"]["keep"] = min(tree["adapters"]["keep"], own.quota.adapters)
    if (most := own.quota.judge_dollars_per_day) is not None:
        budget = tree["judge"].get("dollars_per_day")
        tree["judge"]["dollars_per_day"] = most if budget is None else min(budget, most)


def known_tenants(config: Config) -> tuple[Config, set[str]]:
    """(The settings with all tenants that are declared by now, and the names of all), as far as this folder tells: the
    proxy on it writes there what has changed since it started.
    """
    declared, named = dict(config.tenants), set[str]()
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        told = json.loads((config.root / SETTINGS_TOLD_FILE_NAME).read_bytes())["tenants"]
        declared = {name: TenantConfig.model_validate(own) for name, own in told.items()}
    with contextlib.suppress(OSError, ValueError):
        named = {*json.loads((config.root / TENANT_STATES_FILE_NAME).read_bytes())}
    return config.model_copy(update={"tenants": declared}), {*declared, *named}


def schema_of(name: str) -> str:
    """The PostgreSQL schema of a tenant's tables."""
    return f"slipstream_{name.replace('-', '_')}"


def _own_store(url: str | None, name: str) -> str | None:
    """None: DuckDB in the tenant's folder, whatever file the others have. PostgreSQL: a schema of its own."""
    if url is None or not url.startswith("postgres"):
        return None
    if "options" in parse_qs(urlsplit(url).query):
        raise ConfigError(
            f"store.url {without_password(url)} has options, and each tenant's URL needs its own: set them for the "
            "database's user (ALTER ROLE … SET …)"
        )
    joint = "&" if "?" in url else "?"
    return f"{url}{joint}options={quote('-csearch_path=' + schema_of(name), safe='')}"
