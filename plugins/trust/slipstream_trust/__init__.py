"""How far a judge can be trusted: measure it, look at one judgement, judge stored runs again. A plug-in."""

from slipstream.plugins import Command, Plugin

TRUST_PLUGIN = Plugin(
    name="trust",
    text="measure a judge, look at a judgement, judge stored runs again",
    commands={
        "judge eval": Command(
            "start", "measure a judge on episodes whose right score is known", "slipstream_trust.eval_command"
        ),
        "judge show": Command(
            "start",
            "print one judgement: scores, reasons, votes, spread, cost, prompt",
            "slipstream_trust.show_command",
        ),
        "judge rerun": Command(
            "start", "score stored episodes again; earlier scores stay", "slipstream_trust.rerun_command"
        ),
    },
)
