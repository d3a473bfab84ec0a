"""What a replay found: as text, Markdown, JUnit XML and JSON."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree as ET

from slipstream_replay.comparison import GUARDS_MEASURE, CasePair, PairedTest, guard
from slipstream_replay.steps import JsonObject, ReplayCase, ReplayStep

WORST_CASES_SHOWN = 3
LIMIT_TEXTS = (
    "Each step was asked at the recorded prompt. What tools and users would have answered to another action is not "
    "known, so this says nothing of whole runs."
)
NOT_ASKED = "of a format that a replay does not ask, or without a good reply"
SHOWN_REPLY_CHARS = 300
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
    limits: str = LIMIT_TEXTS

    @property
    def worse(self) -> bool:
        return any(t.verdict == "worse" for t in self.tests)

    @property
    def no_verdict(self) -> str | None:
        """Why nobody can tell. A large loss that may still be chance is no reason to pass."""
        unsure = next((t for t in self.tests if _unsure(t)), None)
        if self.short or self.worse or unsure is None:
            return self.short
        lost = f"{unsure.question}: {len(unsure.pairs)} cases are too few to tell a loss of {-unsure.difference:.2f}"
        return f"{lost} from chance; ask more cases"

    @property
    def exit_code(self) -> int:
        """1: the candidate is worse. 2: there is no verdict. 0: no evidence that it is worse."""
        return 1 if self.worse else 2 if self.no_verdict else 0

    @property
    def verdict(self) -> str:
        if self.worse:
            return "worse"
        return "no verdict" if self.no_verdict else "not shown to be worse"

    @property
    def headline(self) -> str:
        """The verdict, and whether what the replies say was looked at."""
        alone = self.exit_code == 0 and {t.question for t in self.tests} == {GUARDS_MEASURE}
        return self.verdict + (" (only guards were compared)" if alone else "")

    def guards(self) -> dict[str, Counter[str]]:
        """Why replies of each side were of no use, and how often."""
        return {side: Counter(filter(None, map(guard, self._replies(side)))) for side in ("candidate", "control")}

    def guarded(self) -> str | None:
        """The same in words. None: every reply was of use."""
        found = self.guards()
        if not any(found.values()):
            return None
        sides = (
            f"{side}: {', '.join(f'{n} {why}' for why, n in whys.most_common()) or 'none'} "
            f"of {len(self._replies(side))} replies"
            for side, whys in found.items()
        )
        return f"Guards failed in the {'; '.join(sides)}."

    def _replies(self, side: str) -> list[JsonObject]:
        return [r for c in self.cases for s in c.steps for r in getattr(s, side)]

    def remarks(self) -> list[str]:
        """What is to be known beside the numbers, a sentence each."""
        failed = Counter(c.error for c in self.cases if c.error)
        skipped = sum(c.skipped for c in self.cases)
        asked = [s for c in self.cases if not c.error for s in c.steps if s.candidate]
        exact = sum(s.exact for s in asked)
        return [
            *([f"No verdict: {why}."] if (why := self.no_verdict) and not self.worse else []),
            *([why] if (why := self.guarded()) else []),
            *([f"Stopped early: {self.stopped}; {self.not_begun} cases were not begun."] if self.stopped else []),
            *(f"{n} cases are not compared: {why}" for why, n in failed.most_common(3)),
            *([f"{skipped} calls were not asked again: {NOT_ASKED}."] if skipped else []),
            *([f"{exact} of {len(asked)} steps were asked with the recorded token ids."] if exact else []),
            *self.notes,
            *([self.limits] if self.cases else []),
        ]


def _text(message: object) -> str:
    parts: JsonObject = message if isinstance(message, dict) else {"content": message}
    calls = parts.get("tool_calls")
    said = json.dumps([c.get("function") for c in calls], ensure_ascii=True) if calls else parts.get("content")
    return str(said or "")[:SHOWN_REPLY_CHARS].replace("\n", " ")


def beside(messages: Sequence[object], candidate: object, control: object) -> tuple[str, str, str]:
    """The last message of a prompt, and a reply of each side."""
    asked = messages[-1] if messages else {}
    return _text(asked), _text(candidate), _text(control)


def worst_step(pair: CasePair) -> tuple[ReplayStep, JsonObject, JsonObject]:
    """Where the candidate lost most, and the reply of each side that shows it."""
    assert pair.case is not None
    step = next(s for s in pair.case.steps if s.call.number == pair.step)
    a, b = pair.shown
    return step, step.candidate[a]["message"], step.control[b]["message"]


def _shown(pair: CasePair) -> list[str]:
    """What people see of a case, a line each."""
    texts: tuple[str, ...] = pair.why or ()
    if pair.case is not None:
        step, *replies = worst_step(pair)
        texts = tuple(json.dumps(text) for text in beside(step.call.messages, *replies))
    return [f"- {n}: {x}" for n, x in zip(("prompt ends", "candidate", "control")[-len(texts) :], texts, strict=False)]


def _unsure(test: PairedTest) -> bool:
    """It saw a loss that so many cases would mostly have shown, and did not show it."""
    return test.verdict == "undecided" and -test.difference > test.visible


def line_of(test: PairedTest) -> str:
    seen = f"a loss of about {test.visible:.2f} would have been seen" if test.verdict == "undecided" else test.verdict
    if _unsure(test):
        seen = "not enough to tell"
    a, b = (sum(x) / len(test.pairs) for x in zip(*((p.candidate, p.control) for p in test.pairs), strict=True))
    return f"{test.question}: {a:.3f} against {b:.3f} ({test.difference:+.3f}) over {len(test.pairs)} cases; {seen}"


def markdown(report: ReplayReport) -> str:
    spent = f"{report.samples} samples a step, {report.tokens} tokens"
    lines = [f"# Replay: {report.headline}", "", f"`{report.candidate}` against `{report.control}`, {spent}.", ""]
    lines += [f"- {line_of(t)}" for t in report.tests]
    for test in report.tests:
        if worst := test.worst(WORST_CASES_SHOWN):
            lines += ["", f"## Worst cases by {test.question}"]
        for pair in worst:
            head = f"### {_place(pair)}: {pair.candidate:.2f} against {pair.control:.2f}"
            lines += ["", head, "", *_shown(pair)]
    return "\n".join([*lines, "", *report.remarks(), ""])


def _place(pair: CasePair) -> str:
    return pair.name if pair.why else f"{pair.name}, call {pair.step}"


def junit(report: ReplayReport) -> str:
    """A test case for each question. The failure names the worst cases, with both replies."""
    questions = [t.question for t in report.tests] or ["replay"]
    suite = ET.Element("testsuite", name="slipstream replay", tests=str(len(questions)))
    failures, why = 0, report.no_verdict
    cases = [ET.SubElement(suite, "testcase", classname="replay", name=name) for name in questions]
    for test, case in zip(report.tests, cases, strict=False):
        if test.verdict == "worse":
            failures += 1
            worst = [
                x for p in test.worst(WORST_CASES_SHOWN) for x in (f"{_place(p)}: {p.difference:+.2f}", *_shown(p))
            ]
            told = report.guarded() if test.question.startswith(GUARDS_MEASURE) else None
            ET.SubElement(case, "failure", message=_xml(line_of(test))).text = _xml("\n".join([*worst, told or ""]))
        elif why:
            ET.SubElement(case, "error", message=_xml(why))
    if not report.tests:
        ET.SubElement(cases[0], "error", message=_xml(why or "nothing was compared"))
    suite.set("failures", str(failures))
    suite.set("errors", str(len(questions) - failures if why or not report.tests else 0))
    ET.SubElement(suite, "system-out").text = _xml("\n".join(report.remarks()))
    return ET.tostring(suite, encoding="unicode", xml_declaration=True)


def _xml(text: str) -> str:
    """Without the control characters that XML has no way to write."""
    return re.sub("[^\\t\\n\\r\\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)


def as_json(report: ReplayReport) -> JsonObject:
    return {
        "verdict": report.verdict,
        "candidate": report.candidate,
        "control": report.control,
        "tokens": report.tokens,
        "exact_steps": sum(s.exact for c in report.cases if not c.error for s in c.steps if s.candidate),
        "guards": report.guards(),
        "remarks": report.remarks(),
        "tests": [
            {
                "question": t.question,
                "verdict": t.verdict,
                "alpha": t.alpha,
                "cases": len(t.pairs),
                "difference": t.difference,
                "worst": [
                    {"episode": p.name, "call": p.step, "difference": p.difference} for p in t.worst(WORST_CASES_SHOWN)
                ],
            }
            for t in report.tests
        ],
    }
