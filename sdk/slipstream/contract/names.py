"""Names from any text: how a tag becomes an id, for the proxy, ``slipstream import`` and ``slipstream.episode()``."""

from __future__ import annotations

import hashlib
import re

from slipstream.contract.base import TAG

_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
LONGEST = 100
"""Characters of a text that its name keeps."""


def name_of(text: str) -> str:
    """The id of a text: the text itself where it is 1 to 128 of ``A-Z a-z 0-9 . _ -``.

    Of any other text, what is not among these becomes ``-``, and a piece of the text's digest follows, so that two
    texts have two names: ``Book a flight to Oslo`` is ``Book-a-flight-to-Oslo-4d8bb65b``.
    """
    if TAG.match(text):
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return _UNFIT.sub("-", text)[:LONGEST].strip("-") + "-" + digest
