"""An agent's calls sent through the proxy: lines for its framework, or its program's own file. A plug-in."""

from slipstream.plugins import Command, Plugin

CONNECT_PLUGIN = Plugin(
    name="connect",
    text="an agent's own file, or its framework's lines",
    commands={
        "connect": Command(
            "start", "connect your agent: its framework's lines, or its own file", "slipstream_connect.command"
        )
    },
)
