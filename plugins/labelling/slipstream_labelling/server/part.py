"""The plug-in's part in the control plane."""

from __future__ import annotations

from typing import ClassVar

from slipstream_labelling.contract import CommentIn
from slipstream_labelling.server.queue import agreement
from slipstream_labelling.server.routes import LABEL_ROUTES
from slipstream_proxy.control.api.plugins import ControlPlugin
from slipstream_proxy.control.deps import Deps


class LabellingPlugin(ControlPlugin):
    """``GET labels/queue`` and ``episodes/{id}/comments``."""

    routes = tuple(LABEL_ROUTES)
    free_texts: ClassVar = {CommentIn: "comment"}

    def __init__(self, deps: Deps, settings: None) -> None:
        super().__init__(deps, settings)
        deps.judges.read_people = agreement
