"""The small model's words: all that mails, questions and players can say. A call of a tool is four to seven tokens."""

from __future__ import annotations

import re

from common.hermes import CLOSE_NUMBER, CLOSE_TEXT, build_tokenizer, opening
from transformers import PreTrainedTokenizerFast

from mail.mailbox import ASKED, DAYS, NAMES, NONE, NOTES, NOTHING, READER, SYSTEM, THINGS, UNKNOWN

__all__ = ["mail_tokenizer", "pieces", "words"]

THEN_NUMBER = '", "hit": '
SAID = (
    f"{SYSTEM} {READER} {NOTES} {NONE} {NOTHING} {UNKNOWN} tools search read answer words mail mails many no such hit notes "
    "wrote on the for is on the same day as"
)


def words() -> list[str]:
    """Every word and number of the closed vocabulary."""
    asked = (re.sub(r"\{\w+\}", "", text) for text in ASKED)
    found = re.findall(r"[A-Za-z]+", " ".join((SAID, *asked, *NAMES, *THINGS, *DAYS)))
    return list(dict.fromkeys([*found, *map(str, range(100))]))


def pieces() -> list[str]:
    """The beginnings and ends of the tools' calls, and what stands between a subject and its number."""
    begun = [opening("search", "keywords"), opening("read", "subject"), opening("answer", "text")]
    return [*begun, THEN_NUMBER, CLOSE_TEXT, CLOSE_NUMBER]


def mail_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, with its chat template."""
    return build_tokenizer(words(), pieces())
