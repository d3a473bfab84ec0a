"""The plug-in's part in the control plane."""

from __future__ import annotations

from slipstream_backup.routes import BACKUP_ROUTES
from slipstream_proxy.control.api.plugins import ControlPlugin


class BackupPlugin(ControlPlugin):
    """``GET backup``."""

    routes = tuple(BACKUP_ROUTES)
