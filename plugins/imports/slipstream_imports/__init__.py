"""Logs of other programs, read in as episodes: a plug-in."""

from slipstream.plugins import Command, Plugin

IMPORTS_PLUGIN = Plugin(
    name="imports",
    text="logs of other programs, as episodes",
    commands={
        "import": Command("data", "read logs: OpenAI-format JSONL, trajectory Parquet", "slipstream_imports.command")
    },
    control="slipstream_imports.server.part:ImportsPlugin",
)
