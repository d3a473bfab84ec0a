"""Everything in one file, while the proxy runs: a plug-in."""

from slipstream.plugins import Command, Plugin

BACKUP_PLUGIN = Plugin(
    name="backup",
    text="everything in one file, while it runs",
    commands={
        "backup": Command("data", "back up everything into one file, while it runs", "slipstream_backup.command")
    },
    control="slipstream_backup.part:BackupPlugin",
)
