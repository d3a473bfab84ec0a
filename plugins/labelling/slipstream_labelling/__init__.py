"""What people are asked to label, their comments, and how far they agree: a plug-in."""

from slipstream.plugins import Plugin

LABELLING_PLUGIN = Plugin(
    name="labelling",
    text="a queue of runs for people to label, comments, how far people agree",
    control="slipstream_labelling.server.part:LabellingPlugin",
)
