"""The plug-in's part in the control plane."""

from __future__ import annotations

from slipstream_imports.server.conversations import CONVERSATION_ROUTES
from slipstream_imports.server.log_files import FILE_ROUTES, NamesFiles


class ImportsPlugin(NamesFiles):
    """``POST import``, ``import/conversations`` and ``import/files``."""

    routes = (*CONVERSATION_ROUTES, *FILE_ROUTES)
