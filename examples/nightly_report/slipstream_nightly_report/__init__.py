"""What the door reads: it imports nothing heavy."""

from slipstream.plugins import Command, Plugin

REPORT_PLUGIN = Plugin(
    name="nightly_report",
    text="each night, the day's rewards go to a webhook",
    commands={"nightly-report": Command("look", "print the last nightly report", "slipstream_nightly_report.command")},
    settings="slipstream_nightly_report.settings:ReportSettings",
    control="slipstream_nightly_report.control:NightlyReport",
)
