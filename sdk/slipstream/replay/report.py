"""What a replay found: as text, Markdown, JUnit XML and JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree as ET

from slipstream.replay.comparison import CasePair, PairedTest, guard
from slipstream.replay.steps import JsonObject, ReplayCase, ReplayStep

WORST = 3
LIMITS = (
    "Each step was asked at the recorded prompt. What tools and users would have answered to another action is not "
    "known, so this says nothing of whole runs."
)
SHOWN = 300
"""Characters of a reply that a report shows."""


@dataclass(slots=True)
class ReplayReport:
    """``short``: why the cases are too few or too incomplete for a verdict; None: they are enough."""

    candidate: str
    control: str
    tests: list[PairedTest]
    cases: list[ReplayCase]
    """All that were begun."""
    samples: int
    tokens: int
    stopped: str | None = None
    not_begun: int = 0
    short: str | None = None
    notes: list[str] = field(default_factory=list)
    limits: str = LIMITS

    @property
    def worse(self) -> bool:
        return any(t.verdict == "worse" for t in self.tests)

    @property
    def exit_code(self) -> int:
        """1: the candidate is worse. 2: there is no verdict. 0: no evidence that it is worse."""
        return 1 if self.worse else 2 if self.short else 0

    @property
    def verdict(self) -> str:
        if self.worse:
            return "worse"
        return "no verdict" if self.short else "not shown to be worse"

    def remarks(self) -> list[str]:
        """What is to be known beside the numbers, a sentence each."""
        failed = Counter(c.error for c in self.cases if c.error)
        skipped = sum(c.skipped for c in self.cases)
        asked = [s for c in self.cases if not c.error for s in c.steps if s.candidate]
        exact = sum(s.exact for s in asked)
        return [
            *([f"No verdict: {self.short}."] if self.short else []),
            *([f"Stopped early: {self.stopped}; {self.not_begun} cases were not begun."] if self.stopped else []),
            *(f"{n} cases are not compared: {why}" for why, n in failed.most_common(3)),
            *([f"{skipped} calls were not asked again: not a chat call, or without a good reply."] if skipped else []),
            *([f"{exact} of {len(asked)} steps were asked with the recorded token ids."] if exact else []),
            *self.notes,
            self.limits,
        ]


def _text(message: object) -> str:
    parts: JsonObject = message if isinstance(message, dict) else {"content": message}
    calls = parts.get("tool_calls")
    said = json.dumps([c.get("function") for c in calls], ensure_ascii=True) if calls else parts.get("content")
    return str(said or "")[:SHOWN].replace("\n", " ")


def beside(messages: Sequence[object], candidate: object, control: object) -> tuple[str, str, str]:
    """The last message of a prompt, and a reply of each side."""
    asked = messages[-1] if messages else {}
    return _text(asked), _text(candidate), _text(control)


def differing(step: ReplayStep) -> tuple[JsonObject, JsonObject]:
    """A message of each side: the first that the other side did not give too."""
    sides = [[r["message"] for r in replies] for replies in (step.candidate, step.control)]
    texts = [{_text(m) for m in side} for side in sides]
    a, b = (next((m for m in side if _text(m) not in texts[1 - n]), side[0]) for n, side in enumerate(sides))
    return a, b


def _worst_step(pair: CasePair) -> tuple[str, str, str]:
    """Where the candidate lost most."""
    assert pair.case is not None
    step = next(s for s in pair.case.steps if s.call.number == pair.step)
    return beside(step.call.messages, *differing(step))


def line_of(test: PairedTest) -> str:
    seen = f"a loss of about {test.visible:.2f} would have been seen" if test.verdict == "undecided" else test.verdict
    if test.verdict == "undecided" and -test.difference > test.visible:
        seen = "too few cases to be sure"
    a, b = (sum(x) / len(test.pairs) for x in zip(*((p.candidate, p.control) for p in test.pairs), strict=True))
    return f"{test.question}: {a:.3f} against {b:.3f} ({test.difference:+.3f}) over {len(test.pairs)} cases; {seen}"


def markdown(report: ReplayReport) -> str:
    spent = f"{report.samples} samples a step, {report.tokens} tokens"
    lines = [f"# Replay: {report.verdict}", "", f"`{report.candidate}` against `{report.control}`, {spent}.", ""]
    lines += [f"- {line_of(t)}" for t in report.tests]
    for test in report.tests:
        if worst := test.worst(WORST):
            lines += ["", f"## Worst cases by {test.question}"]
        for pair in worst:
            head = f"### {pair.name}, call {pair.step}: {pair.candidate:.2f} against {pair.control:.2f}"
            texts = _worst_step(pair) if pair.case is not None else ()
            parts = zip(("prompt ends", "candidate", "control"), texts, strict=pair.case is not None)
            lines += ["", head, "", *(f"- {name}: {json.dumps(text)}" for name, text in parts)]
    return "\n".join([*lines, "", *report.remarks(), ""])


def junit(report: ReplayReport) -> str:
    """A test case for each question. The failure names the worst cases."""
    suite = ET.Element("testsuite", name="slipstream replay", tests=str(len(report.tests)))
    failures = 0
    for test in report.tests:
        case = ET.SubElement(suite, "testcase", classname="replay", name=test.question)
        if test.verdict == "worse":
            failures += 1
            worst = "\n".join(f"{p.name}, call {p.step}: {p.difference:+.2f}" for p in test.worst(WORST))
            ET.SubElement(case, "failure", message=line_of(test)).text = worst
        elif report.short:
            ET.SubElement(case, "error", message=report.short)
    suite.set("failures", str(failures))
    suite.set("errors", str(len(report.tests) - failures if report.short else 0))
    return ET.tostring(suite, encoding="unicode", xml_declaration=True)


def as_json(report: ReplayReport) -> JsonObject:
    guards = {
        side: Counter(why for c in report.cases for s in c.steps for r in getattr(s, side) if (why := guard(r)))
        for side in ("candidate", "control")
    }
    return {
        "verdict": report.verdict,
        "candidate": report.candidate,
        "control": report.control,
        "tokens": report.tokens,
        "exact_steps": sum(s.exact for c in report.cases if not c.error for s in c.steps if s.candidate),
        "guards": guards,
        "remarks": report.remarks(),
        "tests": [
            {
                "question": t.question,
                "verdict": t.verdict,
                "alpha": t.alpha,
                "cases": len(t.pairs),
                "difference": t.difference,
                "worst": [{"episode": p.name, "call": p.step, "difference": p.difference} for p in t.worst(WORST)],
            }
            for t in report.tests
        ],
    }
