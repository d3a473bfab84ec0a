"""Versions copied out of Slipstream, and versions that are trained anew: a plug-in."""

from slipstream.plugins import Command, Plugin

MODELS_PLUGIN = Plugin(
    name="models",
    text="copy a version to a folder, a hub or a bucket; train one anew",
    commands={
        "adapters push": Command(
            "steer",
            "copy an adapter out, with a card that says what it was trained on",
            "slipstream_models.push_command",
        ),
        "adapters retrain": Command(
            "steer",
            "train anew from the store, without episodes that were forgotten or named",
            "slipstream_models.retrain_command",
        ),
    },
)
