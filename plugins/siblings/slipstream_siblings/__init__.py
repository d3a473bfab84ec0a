"""More samples of steps that agents took (``explore = "siblings"``): a plug-in."""

from slipstream.plugins import Plugin

SIBLINGS_PLUGIN = Plugin(
    name="siblings",
    text="agents' steps, sampled again in the engine's idle time",
    control="slipstream_siblings.part:SiblingsPlugin",
)
