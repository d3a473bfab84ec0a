"""Learning by imitation: stored runs of any model become an adapter of one's own, by SFT, DPO or KTO. A plug-in."""

from slipstream.plugins import Command, Plugin

IMITATION_PLUGIN = Plugin(
    name="imitation",
    text="stored runs of any model become an adapter of your own: SFT, DPO, KTO",
    commands={
        "distill": Command(
            "steer", "train your own model on stored runs of another one", "slipstream_imitation.command"
        )
    },
)
