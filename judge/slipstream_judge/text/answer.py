"""The judge's answer: what models really write, read where its meaning is certain and refused where it is not.

Prose, fences, thoughts and end tokens around the JSON are passed over. Ids are matched whatever their case. A score may
be text (``"0.8"``, ``"80 %"``, ``"8/10"``). What could mean two things is refused: a list of bare numbers, two answers
that differ, a score beyond its scale, scores on different scales.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

MAX_ANSWER_CHARS = 200_000
"""Characters of an answer that are read."""
MAX_BRACKETS_TRIED = 64
"""Brackets in vain after which no JSON is looked for any more."""
MAX_WRAPPER_DEPTH = 4
"""Wrappers around the entries, as ``{"result": {"scores": …}}``."""
_THOUGHTS = r"(?:seed:)?think(?:ing)?|thought|reason(?:ing)?|reflection|scratchpad"
THOUGHT_PATTERN = re.compile(rf"(?is).*(?:</(?:{_THOUGHTS})>|\[/THINK\]|◁/think▷|<channel\|>)")
FINAL_CHANNEL_PATTERN = re.compile(r"(?s).*<\|channel\|>final[^<]*<\|message\|>")
UNENDED_THOUGHT_PATTERN = re.compile(
    rf"(?i)\s*(?:<(?:{_THOUGHTS})>|\[THINK\]|◁think▷|<\|channel>|(?:<\|start\|>assistant)?<\|channel\|>(?!final))"
)
ID = re.compile(r"(?i)\W*(?:(?:run|score)[\w-]*?[\W_]+)?(e\d+)(?:[\W_]+score)?\W*")
ID_KEYS = ("id", "run_id", "run", "name", "label", "episode", "trajectory_id")
SCORE_KEYS = ("score", "value", "rating", "grade", "final_score")
REASON_KEYS = ("reason", "reasoning", "explanation", "comment", "justification", "rationale")
NUMBER_REGEX = r"([+-]?(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:[eE][+-]?\d+)?)"
THOUSANDS_PATTERN = re.compile(r"[+-]?[1-9]\d*,\d{3}(?!\d)")
"""A comma here may part thousands."""
SCORE_PATTERN = re.compile(rf"\s*{NUMBER_REGEX}\s*(?:(%)|(?:/|out of)\s*{NUMBER_REGEX})?\s*")
_STRING = r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)'
COMMENT_PATTERN = re.compile(
    rf"({_STRING}|'(?:[^'\\]|\\.)*+(?:'|\\?\Z))|(?://[^\n]*|/\*(?:[^*]|\*(?!/))*+(?:\*/|\Z))", re.DOTALL
)
TRAILING_COMMA = re.compile(rf"({_STRING})|,(?=\s*+[}}\]])", re.DOTALL)
"""What never ends goes to the end: else each quote in it would be a beginning anew."""
SCORE_LINE_PATTERN = re.compile(r"(?i)[\W\d]*?((?:run\W+)?e\d+)\W*?[:=|]\W*?([+-]?\d[^|]*?)[\s|*`]*")
"""An id and its score on a line of their own, or in a row of a table."""
TABLE_FRAME_PATTERN = " \t|:=*`-"
TABLE_HEAD_PATTERN = re.compile(r"(?i)(?:run|id|run id)\s*\|\s*score")
"""Of a table."""
LONGEST_ENTRY = 200
"""Characters of an id, a score, or a line with both. Longer ones are none: a pattern could take minutes for them."""
MISSING_ENDS = ("", "}", "]", "]}", "}}")
"""Brackets that may be missing at the end, after a whole entry."""
QUOTE_CHARACTERS = "\"'“”‘’„«»"
PLAIN_QUOTES = str.maketrans("“”„", '"""')


class BadAnswer(Exception):
    """The judge's answer cannot be used. ``problems`` are in our words only, so that they may be told to the judge."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = list(problems)


@dataclass(slots=True)
class Grade:
    """``score``: 0 to 1."""

    score: float
    reason: str


@dataclass(slots=True)
class _Item:
    id: str | None
    score: object
    reason: str


def parse(text: str, ids: Sequence[str], others: Sequence[str] = ()) -> dict[str, Grade]:
    """The grade of each id. Raises ``BadAnswer`` with all that is wrong.

    ``others``: ids that the prompt showed and asked nothing about; what an answer says of them is passed over.
    """
    entries = [
        entry
        for value, whole in _values(_spoken(text))
        for entry in _entries(value, ids, MAX_WRAPPER_DEPTH, whole=whole)
    ]
    if not entries:
        raise BadAnswer(["it held no JSON object with a score for each id"])
    problems: list[str] = []
    found: dict[str, Grade] = {}
    scales: set[str] = set()
    for number, entry in enumerate(entries, 1):
        name = _id_of(entry.id, ids) if entry.id is not None or len(ids) > 1 else ids[0]
        if name is None and entry.id is not None and _id_of(entry.id, others) is not None:
            continue
        if name is None:
            problems.append(f"entry {number} has an id that was not asked for")
            continue
        read = _score(entry.score, f"id {name}", problems)
        if read is None:
            found.setdefault(name, Grade(0.0, ""))
            continue
        score, scale = read
        scales.add(scale)
        if name in found and found[name].score != score:
            problems.append(f"id {name} stood more than once")
        found[name] = Grade(score, entry.reason[:4000])
    if len(scales) > 1:
        problems.append("its scores are on different scales")
    problems += [f"id {i} was missing" for i in ids if i not in found]
    if problems:
        raise BadAnswer(problems)
    return found


def spoken_values(text: str) -> Iterator[object]:
    """The JSON values that an answer says, thoughts apart."""
    return (value for value, _ in _values(_spoken(text)))


def _spoken(text: str) -> str:
    """What stands after the thoughts. Thoughts that never end are no answer."""
    text = text[:MAX_ANSWER_CHARS].lstrip("\ufeff")
    for end in (THOUGHT_PATTERN, FINAL_CHANNEL_PATTERN):
        if found := end.match(text):
            text = text[found.end() :]
    return "" if UNENDED_THOUGHT_PATTERN.match(text) else text.strip()


def _values(text: str) -> Iterator[tuple[object, bool]]:
    """JSON values in a text, none inside another, and whether each is whole.

    One that is not was found inside a broken one. One that a sentence quotes is passed over.
    """
    if text.startswith('"'):  # JSON inside a JSON string
        try:
            inner = json.loads(text)
        except ValueError:
            inner = ""
        text = inner if isinstance(inner, str) else ""
    if _full(SCORE_PATTERN, text):
        yield text, True
        return
    at = tries = 0
    whole = True
    if _bracket(text, 0) is None and (lines := _lines(text)) is not None:
        yield lines, True
    while tries < MAX_BRACKETS_TRIED and (start := _bracket(text, at)) is not None:
        tries += 1
        read = _read(text, start)
        if read is None:
            at, whole = start + 1, False
            continue
        value, at = read
        if not _is_quoted(text, start, at):
            tries = 0
            yield value, whole


def _full(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return pattern.fullmatch(text) if len(text) <= LONGEST_ENTRY else None


def _lines(text: str) -> list[list[str]] | None:
    """Ids and scores of an answer that has nothing but a line for each."""
    found = []
    for line in text.splitlines():
        if (entry := _full(SCORE_LINE_PATTERN, line)) is not None:
            found.append([entry[1], entry[2]])
        elif (rest := line.strip(TABLE_FRAME_PATTERN)) and not _full(TABLE_HEAD_PATTERN, rest):
            return None
    return found or None


def _bracket(text: str, at: int) -> int | None:
    found = [i for mark in "{[" if (i := text.find(mark, at)) >= 0]
    return min(found) if found else None


def _is_quoted(text: str, start: int, end: int) -> bool:
    """A judge may quote what a run wrote: in quotation marks, or in the middle of a sentence."""
    before, after = text[:start].rstrip(" `"), text[end:].lstrip(" `")
    goes_on = after[:1] == "," and after[1:].lstrip()[:1].isalpha()
    return (
        before[-1:] in tuple(QUOTE_CHARACTERS)
        or before[-1:].isalnum()
        or after[:1] in tuple(QUOTE_CHARACTERS)
        or goes_on
    )


def _read(text: str, start: int) -> tuple[object, int] | None:
    """A JSON value that begins there, and where it ends.

    Commas too many, brackets missing at the end, line breaks within strings and Python's quotes are
    forgiven; a key that stands twice is not.
    """
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        pass
    end = text.rfind("}" if text[start] == "{" else "]", start) + 1
    if end <= start:
        return None
    piece = text[start:end].replace("\u00a0", " ")
    if '"' not in piece:
        piece = piece.translate(PLAIN_QUOTES)
    for left_out in (COMMENT_PATTERN, TRAILING_COMMA):
        piece = left_out.sub(lambda m: m[1] or "", piece)
    for missing in MISSING_ENDS if end == len(text) else MISSING_ENDS[:1]:
        try:
            value, used = _DECODER.raw_decode(piece + missing)
        except (ValueError, RecursionError):
            continue
        return (value, end) if used == len(piece + missing) else None
    try:
        tree = ast.parse(piece, mode="eval")
        keys = [[ast.dump(k) for k in node.keys if k] for node in ast.walk(tree) if isinstance(node, ast.Dict)]
        return None if any(len(set(k)) < len(k) for k in keys) else (ast.literal_eval(tree), end)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len({k for k, _ in pairs}) < len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_no_constant, strict=False)


def _entries(value: object, ids: Sequence[str], depth: int, *, whole: bool) -> list[_Item]:
    """The entries of a value in any of its forms; none where it is something else.

    Where one run is asked about and the answer is ``whole``, its score needs no id.
    """
    alone = whole and len(ids) == 1
    if isinstance(value, str):
        return [_Item(None, value, "")] if alone else []
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and _full(ID, value[0]):
        return [_of_id(value[0], value[1])]
    if isinstance(value, list) and depth > 0:
        items = [item for item in value if isinstance(item, dict | list)]
        whole = whole and len(items) == 1
        return [entry for item in items for entry in _entries(item, ids, depth - 1, whole=whole)]
    if not isinstance(value, dict) or depth <= 0:
        return []
    by_id = [_of_id(k, v) for k, v in value.items() if isinstance(k, str) and _full(ID, k)]
    fields = _fields(value)
    name, score = _first(fields, ID_KEYS), _first(fields, SCORE_KEYS)
    if by_id:
        return by_id
    if not isinstance(score, list | dict) and any(k in fields for k in SCORE_KEYS):
        if isinstance(name, str):
            return [_Item(name, score, _reason(fields))]
        return [_Item(None, score, _reason(fields))] if alone and name is None else []
    wrapped = [fields["scores"]] if "scores" in fields else [*fields.values()]
    if isinstance(call := fields.get("arguments"), str) and (told := _read(call, 0)) is not None:
        wrapped = [told[0]]  # a tool's call
    inner = [
        found for v in wrapped if isinstance(v, list | dict) and (found := _entries(v, ids, depth - 1, whole=whole))
    ]
    return inner[0] if len(inner) == 1 else []


def _of_id(name: str, value: object) -> _Item:
    if not isinstance(value, dict):
        return _Item(name, value, "")
    fields = _fields(value)
    return _Item(name, _first(fields, SCORE_KEYS), _reason(fields))


def _fields(value: Mapping[object, object]) -> dict[str, object]:
    """By lower case. Two spellings of one name are as good as none where they differ: neither is certain."""
    found: dict[str, object] = {}
    for key, told in value.items():
        if isinstance(key, str):
            name = key.strip().lower().replace(" ", "_")
            found[name] = told if found.get(name, told) == told else None
    return found


def _first(fields: Mapping[str, object], names: Sequence[str]) -> object:
    return next((fields[name] for name in names if name in fields), None)


def _reason(fields: Mapping[str, object]) -> str:
    found = _first(fields, REASON_KEYS)
    return found if isinstance(found, str) else ""


def _id_of(name: str | None, ids: Sequence[str]) -> str | None:
    found = _full(ID, name or "")
    return found[1].lower() if found and found[1].lower() in ids else None


def _score(value: object, where: str, problems: list[str]) -> tuple[float, str] | None:
    """A score from 0 to 1, and the scale that it was said on ("": none was said)."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        problems.append(f"{where} has no number as its score")
        return None
    if not isinstance(value, str):
        number, most, scale = value, 1.0, ""
    elif (found := _full(SCORE_PATTERN, value)) and not THOUSANDS_PATTERN.match(found[1]):
        number, percent, of = float(found[1].replace(",", ".")), found[2], found[3]
        most = 100.0 if percent else float(of.replace(",", ".")) if of else 1.0
        scale = f"{most:g}" if percent or (of and most != 1) else ""
    else:
        problems.append(f"{where} has no number as its score")
        return None
    if not (most > 0 and 0 <= number <= most):  # NaN too
        problems.append(f"{where} has a score outside 0 to {most:g}")
        return None
    return float(number) / most, scale
