"""A learner behind the Tinker API (``trainer.backend = "tinker"``): a plug-in, experimental."""

from slipstream.plugins import Plugin

TINKER_PLUGIN = Plugin(
    name="tinker",
    text="steps are computed by a service behind the Tinker API (experimental)",
    settings="slipstream_tinker.settings:TinkerSettings",
)
