"""Datasets out of the store: JSON lines, Parquet, rows for SFT and DPO. A plug-in."""

from slipstream.plugins import Command, Plugin

EXPORT_PLUGIN = Plugin(
    name="export",
    text="datasets: parquet, jsonl, sft, dpo",
    commands={"export": Command("data", "write datasets: parquet, jsonl, sft, dpo", "slipstream_export.command")},
    control="slipstream_export.part:ExportPlugin",
)
