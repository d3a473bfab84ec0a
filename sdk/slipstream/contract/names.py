"""Names from any text: how a tag becomes an id. The proxy, the control API, the commands, ``slipstream import`` and
``slipstream.episode()`` share the rule.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated

from pydantic import AfterValidator, StringConstraints

from slipstream.contract.base import PLAIN_ID_PATTERN

_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
MAX_NAME_CHARS = 100
"""Characters of a text that its name keeps."""
_STORED = re.compile(r"[A-Za-z0-9._-]{1,128}(?:~[0-9]{1,12}){1,2}\Z")
"""An id that was made of a name: its second run, ``~2``."""
_SIBLING = re.compile(r"~0~[0-9]+\Z")
"""At the end of an id. No run is the 0th of its name."""
_LINE_END = re.compile(r"[\t-\r\x85\u2028\u2029]")
_UNPRINTED = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What steers a terminal, or is no character. In a stored tag ``\ufffd`` stands for it, and a space for a
line's end.
"""
LONGEST_TAG = 2048
"""Characters of a tag that are kept."""


def sibling_of(call: str, number: int) -> str:
    """The episode of a call's step that was sampled once more."""
    return f"{call}~0~{number}"


def is_sibling(episode: str) -> bool:
    """Whether it is no run of an agent, but a step of one that was sampled once more."""
    return _SIBLING.search(episode) is not None


def name_of(text: str) -> str:
    """The id of a text: the text itself where it is 1 to 128 of ``A-Z a-z 0-9 . _ -``.

    Of any other text, what is not among these becomes ``-``, and a piece of the text's digest follows, so that two
    texts have two names: ``Book a flight to Oslo`` is ``Book-a-flight-to-Oslo-4d8bb65b``.
    """
    if PLAIN_ID_PATTERN.match(text):
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return _UNFIT.sub("-", text)[:MAX_NAME_CHARS].strip("-") + "-" + digest


def id_of(text: str) -> str:
    """The episode that a text names: an id as the proxy told it (``run``, ``run~2``) itself, of any other its name."""
    return text if _STORED.match(text) else name_of(text)


def tag_text(text: str) -> str:
    """A tag's value as it is stored: without what steers a terminal, and at most ``LONGEST_TAG`` characters."""
    if not text.isprintable():
        text = _UNPRINTED.sub("\ufffd", _LINE_END.sub(" ", text))
    return text[:LONGEST_TAG]


class SaidName(str):
    """A name in a request's body, with the text that it was made of: a name may hide half of a secret in that."""

    __slots__ = ("said",)
    said: str

    @classmethod
    def of(cls, name: str, said: str) -> str:
        if name == said:
            return name
        made = cls(name)
        made.said = said
        return made


def said_of(name: str) -> str:
    """What somebody wrote where this name is read."""
    return name.said if isinstance(name, SaidName) else name


_Text = StringConstraints(min_length=1, max_length=16 * 1024)
Named = Annotated[str, _Text, AfterValidator(lambda text: SaidName.of(name_of(text), text))]
"""A task's or a tag's name, given as any text."""
IN_A_URL = 4096
"""Most characters of a text in a query: it stands in the request's first line, which is bounded."""
Asked = Annotated[str, StringConstraints(min_length=1, max_length=IN_A_URL), AfterValidator(name_of)]
"""``Named``, in a query."""
NamedEpisode = Annotated[str, _Text, AfterValidator(lambda text: SaidName.of(id_of(text), text))]
"""An episode's id, given as the proxy told it or as the text that a client tagged its calls with."""
TagText = Annotated[
    str, StringConstraints(max_length=16 * 1024), AfterValidator(lambda text: SaidName.of(tag_text(text), text))
]
"""A tag's value: any text."""
