"""Sets of recorded cases, and new versions that are tried on them before anybody meets them: a plug-in."""

from slipstream.plugins import Command, Plugin

REPLAY_PLUGIN = Plugin(
    name="replay",
    text="sets of recorded cases, and versions that are tried on them first",
    commands={
        "adapters replay": Command(
            "steer",
            "how it did on recorded steps, with its worst cases side by side",
            "slipstream_replay.shown_command",
        ),
        "cases": Command("data", "keep episodes as sets of cases for a replay", "slipstream_replay.cases_command"),
        "replay": Command(
            "data", "compare a new version with the old one on recorded cases", "slipstream_replay.replay_command"
        ),
    },
    control="slipstream_replay.server.part:ReplayPlugin",
)
