"""``proxy.redact``: the user's function, and what it is shown, so that no secret passes it by.

It sees each text whole: a stream's reply put together, JSON with its letters as they are, a text with escaped signs and
JSON inside a text as they read. What is stored is what it has seen.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from slipstream import contract as c
from slipstream.config import Config
from slipstream.contract import name_of
from slipstream.shared.functions import load_function
from slipstream_proxy.dialects.base import Dialect, nulled, whole_events
from slipstream_proxy.dialects.token_arrays import null_members
from slipstream_proxy.json_types import Json, JsonObject
from slipstream_proxy.parse_weight import MOST_OF_REPLY, too_heavy

log = logging.getLogger(__name__)

Redact = Callable[[dict[str, str]], dict[str, str]]
"""``{"request": …, "reply": …, "tag.<name>": …, …}`` → the same as it may be stored."""
Run = list[tuple[JsonObject, str]]
"""Objects and the member of each that has a piece of one text."""

REDACTION_FAILED = "redaction failed"
_TOKENS: Final = frozenset(
    ("token_ids", "prompt_token_ids", "logprobs", "prompt_logprobs", "top_logprobs", "slipstream")
)
"""Members of a reply that say the same as its text, in other signs."""
_JSON: Final = ("request", "reply")
_NESTED: Final = 8
"""How deep JSON is looked for in the texts of JSON."""
_ESCAPE: Final = re.compile(r"\\u([0-9a-fA-F]{4})")
_USUAL: Final = 2**20
"""Characters of a text that nobody need weigh before it is read."""
_EVENT: Final = "data: "
_BLANK: Final = " \t\r\n"
"""What JSON takes for space."""
_PART_START: Final = re.compile(r"^(?:data:|[{\[])", re.MULTILINE)
_CONTROL: Final = re.compile("[\\x00-\\x08\\x0e-\\x1f]")
_UNDECODED: Final = re.compile("[\udc80-\udcff]")
_GENERATION: Final = re.compile(r"([^~]*)((?:~[0-9]{1,12}){1,2})", re.DOTALL)
"""A name and which run of it, ``~2``."""


class Redaction:
    """``secret``: of this data folder; it names what may not be named as it was."""

    def __init__(self, function: Redact, secret: bytes = b"") -> None:
        self.function, self._secret = function, secret
        self._known = lru_cache(maxsize=8192)(self._text)

    def text(self, field: str, text: str) -> str:
        """A short text that stands outside of a call's request and reply. Of one that the function fails on nothing is
        left.
        """
        return self._known(field, text)

    def name(self, field: str, text: str) -> str:
        """Likewise, and it is still a name (``contract.name_of``)."""
        after = self.text(field, text)
        slug = name_of(after) if after else ""
        return slug if after == text == slug else name_of(self.text(field, slug)) if slug else "redacted"

    def id(self, field: str, text: str, known_as: str | None = None) -> str:
        """Likewise, of a text that tells one thing from another: two of them stay two. ``known_as``: its id."""
        name = text if known_as is None else known_as
        slug, generation = (m[1], m[2]) if (m := _GENERATION.fullmatch(name)) else (name, "")
        if self.text(field, text) == text and self.text(field, slug) == slug:
            return name
        digest = hmac.new(self._secret, slug.encode("utf-8", "replace"), hashlib.sha256).hexdigest()[:16]
        return f"redacted-{digest}{generation}"

    def group(self, text: str) -> str:
        """Likewise, of ``tag.NAME=VALUE`` or ``task=NAME``: as the runs have it that are meant."""
        kind, _, value = text.partition("=")
        if kind == "task":
            return f"task={self.name('task', value)}"
        tag = self.name("tag_name", kind.removeprefix("tag."))
        return f"tag.{tag}={self.text(f'tag.{tag}', value) or 'redacted'}"

    def texts(self, record: Mapping[str, str]) -> dict[str, str]:
        """What may be stored of these texts; ``request`` and ``reply`` are JSON. Raises whatever the function does."""
        given = {name: _plain(text) if name in _JSON else text for name, text in record.items()}
        self._put_together(given)
        shown: dict[str, str] = {}
        """Texts as they read → what may be stored of them."""
        _texts_in(given, shown)
        found = self._asked(given, shown)
        more = {text: text for text in _texts_in(found, {}) if text not in shown and text not in shown.values()}
        if more:  # another text was changed beside them in one piece of JSON
            self._asked({}, more)
        for name in [n for n in _JSON if n in found]:
            tree = _read(found[name])
            if tree is not None:
                found[name] = _dumped(_walk(tree, lambda text: more.get(shown.get(text, text), shown.get(text, text))))
        return found

    def _put_together(self, given: dict[str, str]) -> None:
        """Pieces of a text become the first of them where the function knows more of the whole than of each."""
        trees = {name: tree for name in _JSON if (tree := _read(given.get(name, ""))) is not None}
        found = [(name, run, _texts_of(run)) for name, tree in trees.items() for run in _runs(tree)]
        if not found:
            return
        parts = {text: text for _, _, texts in found for text in ("".join(texts), *texts)}
        self._asked({}, parts)
        for name, run, texts in sorted(found, key=lambda one: -len(one[1])):
            whole = "".join(texts)
            known = parts[whole] not in (whole, "".join(parts[text] for text in texts))
            if known and _texts_of(run) == texts:  # else a longer run had them
                for holder, field in run:
                    holder[field], whole = whole, ""
                given[name] = _dumped(trees[name])

    def tree(self, field: str, value: Json) -> Json:
        """What may be stored of JSON that somebody wrote, each of its texts and numbers by itself. Raises likewise."""
        shown: dict[str, str] = {}
        _each_text(value, lambda text: shown.setdefault(text, text))
        names = {f"{field}.{number}": text for number, text in enumerate(shown)}
        found = self.texts(names)
        after = {text: found[name] for name, text in names.items()}
        return _each_text(value, lambda text: after[text])

    def _asked(self, given: dict[str, str], shown: dict[str, str]) -> dict[str, str]:
        """One question to the function. ``shown`` gets its answers where they lie."""
        numbered = {f"text.{number}": text for number, text in enumerate(shown)}
        after = self.function({"request": "{}", "reply": "{}"} | given | numbered)
        shown.update({text: _checked(after.get(name, text)) for name, text in numbered.items()})
        return {n: _checked(after[n] if n in _JSON else after.get(n, text)) for n, text in given.items()}

    def _text(self, field: str, text: str) -> str:
        try:
            return _checked(self.function({"request": "{}", "reply": "{}", field: text}).get(field, text))
        except BaseException as e:  # a tag never fails a call
            log.error("redaction failed, %s is left out: %s", field.partition(".")[0], type(e).__name__)
            return ""


FREE_TEXT_FIELDS: Final[dict[type[BaseModel], str]] = {
    c.RewardIn: "reward",
    c.FeedbackIn: "feedback",
    c.AnnotationIn: "note",
    c.PauseIn: "pause",
    c.GateIn: "gate",
    c.RerunIn: "rerun",
}
"""Bodies in which people and agents write → what ``proxy.redact`` knows their fields by: ``reward.reason``. Plug-ins
add their own (``ControlPlugin.free_texts``)."""
ID_FIELDS: Final = {"call", "key", "thumb", "group", "id"}
"""Fields of these that say which, or choose."""


def redacted_body(redaction: Redaction | None, body: BaseModel) -> BaseModel:
    """What ``proxy.redact`` leaves of the texts that somebody wrote. Raises whatever the function does."""
    if redaction is not None and isinstance(body, c.ScoresIn):
        return _redacted_scores(redaction, body)
    if redaction is None or type(body) not in FREE_TEXT_FIELDS:
        return body
    name = FREE_TEXT_FIELDS[type(body)]
    said = {field: value for field, value in body if field not in ID_FIELDS and value and isinstance(value, str | dict)}
    texts = redaction.texts({f"{name}.{field}": value for field, value in said.items() if isinstance(value, str)})
    found: dict[str, Json] = {field: texts.get(f"{name}.{field}", value) for field, value in said.items()}
    found |= {f: redaction.tree(f"{name}.{f}", value) for f, value in said.items() if isinstance(value, dict)}
    found |= {tag: name_of(found[tag]) if found[tag] else "redacted" for tag in ("name", "source") if tag in found}
    if key := getattr(body, "key", None):
        found["key"] = redaction.id(f"{name}.key", key)
    if group := getattr(body, "group", None):
        found["group"] = redaction.group(group)
    return body.model_copy(update=found)


def _redacted_scores(redaction: Redaction, body: c.ScoresIn) -> c.ScoresIn:
    """A judge may put together what a run said in pieces."""
    scores = [
        score.model_copy(
            update={
                "reason": redaction.texts({"reward.reason": score.reason})["reward.reason"],
                "meta": redaction.tree("reward.meta", score.meta),
            }
        )
        for score in body.scores
    ]
    failed = body.failed and redaction.texts({"judge.failed": body.failed})["judge.failed"]
    return body.model_copy(update={"scores": scores, "failed": failed})


def redaction_of(config: Config) -> Redaction | None:
    """None: nothing is redacted. Raises ``ConfigError`` if there is no such function."""
    spec = config.proxy.redact
    return _loaded(spec, config.root) if spec else None


@lru_cache(maxsize=64)
def _loaded(spec: str, root: Path) -> Redaction:
    return Redaction(load_function("proxy.redact", spec), _secret_of(root))


def _secret_of(root: Path) -> bytes:
    """Random bytes, made once and kept in the data folder. Several processes may ask at once."""
    file = root / "redaction-secret"
    if not file.is_file():
        root.mkdir(parents=True, exist_ok=True)
        fresh = root / f".redaction-secret-{os.getpid()}"
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
            f.write(secrets.token_bytes(32))
        try:
            os.link(fresh, file)
        except FileExistsError:  # another process was first
            pass
        finally:
            fresh.unlink(missing_ok=True)
    return file.read_bytes()


def make_texts(
    redact: Redaction | Redact | None,
    request: bytes,
    reply: bytes,
    tags: dict[str, str] | None = None,
    *,
    stream: Dialect | None = None,
) -> tuple[bytes, bytes, str | None]:
    """Request and reply as they may be stored. What was redacted loses its token ids, because they say the same in
    other signs.

    ``tags`` are changed where they lie; the function sees each as ``tag.<name>``. ``stream``: the reply is a stream of
    this format. It is stored as few events with each text whole: a secret in a stream lies in many.
    """
    if redact is None:
        return request, reply, None
    redaction = redact if isinstance(redact, Redaction) else Redaction(redact)
    tags = {} if tags is None else tags
    try:
        events = reply if stream is None or not reply else whole_events(stream, reply)
        before = {"request": _decoded(request), "reply": _joined(events) if stream is not None else _decoded(events)}
        before = {name: _plain(text) for name, text in before.items()}
        for text in before.values():
            _check_readable(text)
        after = redaction.texts({**before, **{f"tag.{name}": value for name, value in tags.items()}})
        tags.update({name: after[f"tag.{name}"].encode("utf-8", "replace").decode() for name in tags})
    except BaseException as e:  # a sys.exit() in it must not cost the client its reply either
        log.error("redaction failed, the call is stored without text: %s", type(e).__name__)
        tags.clear()
        return b"{}", b"", REDACTION_FAILED
    changed = any(after[name] != text for name, text in before.items())
    answer = _tokenless(after["reply"]) if changed else _encoded(after["reply"])
    if stream is not None:
        answer = _as_stream(answer)
    return _encoded(after["request"]), answer, "redacted" if changed else None


def _joined(events: bytes) -> str:
    """Events as one JSON text: a list."""
    return "[" + ",".join(_decoded(e).removeprefix(_EVENT) for e in events.split(b"\n\n") if e) + "]" if events else ""


def _as_stream(text: bytes) -> bytes:
    """A stream of these events. What is no list of them any more is one event that nobody can read."""
    read = _read(text.decode("utf-8", "surrogateescape"))
    events = read if isinstance(read, list) else [{"unreadable": text.decode("utf-8", "replace")}] if text else []
    return b"".join(_encoded(f"{_EVENT}{_dumped(event)}\n\n") for event in events)


def _decoded(raw: bytes) -> str:
    """As Python's reader of JSON takes it, UTF-16 too. Bytes that are no text stay as they are."""
    return raw.decode(json.detect_encoding(raw), "surrogateescape")


class UnreadableText(ValueError):
    """What ``proxy.redact`` cannot be shown as it reads."""


def _check_readable(text: str) -> None:
    """Raises ``UnreadableText`` for what is compressed, and for a stream that another type than an event stream's
    hides.
    """
    compressed = _UNDECODED.search(text) is not None and _CONTROL.search(text) is not None
    if _read(text) is None and (compressed or len(_PART_START.findall(text)) > 1):
        raise UnreadableText


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # halves of surrogate pairs, or bytes that were no UTF-8
        tree = _read(text)
    if tree is not None:
        return json.dumps(tree, separators=(",", ":")).encode()
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _checked(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("what is redacted must stay a str")
    return value


def _read(text: str) -> Json | None:
    """The object or list that a text is; None: it is none, or takes too much memory."""
    if text.lstrip(_BLANK)[:1] not in ("{", "["):
        return None
    if len(text) > _USUAL and too_heavy(text.encode("utf-8", "replace"), MOST_OF_REPLY):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _dumped(tree: Json) -> str:
    return json.dumps(tree, ensure_ascii=False, separators=(",", ":"))


def _plain(text: str) -> str:
    """JSON without needless escapes and doubled members. Of what is no JSON, escaped letters alone are changed."""
    tree = _read(text)
    if tree is None:
        return _ESCAPE.sub(_unescaped, text)
    return _dumped(tree)


def _unescaped(m: re.Match[str]) -> str:
    sign = chr(int(m[1], 16))
    return sign if sign.isprintable() and sign not in '"\\' else m[0]


def _texts_in(record: Mapping[str, str], found: dict[str, str]) -> dict[str, str]:
    """Puts there each text of the record's JSON that reads otherwise than it stands."""
    for name in _JSON:
        tree = _read(record.get(name, ""))
        if tree is not None:
            _walk(tree, lambda text: found.setdefault(text, text))
    return found


def _walk(value: Json, say: Callable[[str], str], depth: int = 0) -> Json:
    """The value with ``say`` of each text that reads otherwise than it stands in the JSON around it."""
    if isinstance(value, str):
        return _walk_text(value, say, depth)
    if isinstance(value, dict):
        return {_walk_text(name, say, depth): _walk(held, say, depth) for name, held in value.items()}
    return [_walk(held, say, depth) for held in value] if isinstance(value, list) else value


def _runs(value: Json) -> Iterator[Run]:
    """The texts in it that a reader may take for one: parts of a message, and messages of one role in a row."""
    if isinstance(value, dict):
        for held in value.values():
            yield from _runs(held)
    if not isinstance(value, list):
        return
    run: Run = []
    before: object = None
    for item in value:
        yield from _runs(item)
        pieces, kind = _pieces(item), _kind(item)
        if run and (not pieces or kind != before):
            if len(run) > 1:
                yield run
            run = []
        run, before = run + pieces, kind
    if len(run) > 1:
        yield run


def _pieces(item: Json) -> Run:
    """Where an item of a list has its text, in one piece or several; nowhere, if it has more than text."""
    if not isinstance(item, dict):
        return []
    for field in ("text", "content", "thinking"):
        if isinstance(item.get(field), str):
            return [(item, field)]
    inner = item.get("content", item.get("parts"))
    found = [_pieces(part) for part in inner] if isinstance(inner, list) else []
    return [piece for pieces in found for piece in pieces] if all(found) else []


def _kind(item: Json) -> object:
    return [item.get(name) for name in ("role", "type", "thought", "index")] if isinstance(item, dict) else None


def _texts_of(run: Run) -> list[str]:
    return [holder[field] for holder, field in run]


def _each_text(value: Json, say: Callable[[str], str]) -> Json:
    if isinstance(value, dict):
        return {say(name): _each_text(held, say) for name, held in value.items()}
    if isinstance(value, list):
        return [_each_text(held, say) for held in value]
    if isinstance(value, str):
        return say(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if (said := say(str(value))) == str(value) else said
    return value


def _walk_text(text: str, say: Callable[[str], str], depth: int) -> str:
    held = _read(text) if depth < _NESTED and text[:1] in ("{", "[", *_BLANK) else None
    if held is not None:
        said = _walk(held, say, depth + 1)
        if said != held:
            return _dumped(said)
    return say(text) if depth or _dumped(text) != f'"{text}"' else text


def _tokenless(text: str) -> bytes:
    """A reply that was changed, without its tokens."""
    tree = _read(text)
    if tree is not None:
        return _encoded(_dumped(_without_tokens(tree)))
    return null_members(nulled(_encoded(text), ids=True, logprobs=True) or b"")


def _without_tokens(value: Json) -> Json:
    if isinstance(value, dict):
        return {n: None if n in _TOKENS else _without_tokens(held) for n, held in value.items()}
    return [_without_tokens(held) for held in value] if isinstance(value, list) else value
