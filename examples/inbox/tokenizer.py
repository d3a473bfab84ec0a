"""The small model's tokenizer: word level over the inbox's closed vocabulary, and a tool call is four tokens."""

from __future__ import annotations

from common import hermes
from transformers import PreTrainedTokenizerFast

from inbox.inbox import DAYS, MAILS, NAMES, QUESTIONS, SYSTEM, THINGS

SEARCH = hermes.opening("search", "keywords")
READ = hermes.opening("read", "id", text=False)
ANSWER = hermes.opening("answer", "text")
PIECES = (SEARCH, READ, ANSWER, hermes.CLOSE_TEXT, hermes.CLOSE_NUMBER)
SPLIT = r" ?[a-z]+| ?[0-9]+|\s|."
UNKNOWN = "unknown"


def words() -> list[str]:
    """The closed vocabulary: every word that a mailbox, a question or the format can hold."""
    text = " ".join((*QUESTIONS, SYSTEM)).replace("{thing}", "").replace("{name}", "")
    listed = [*NAMES, *THINGS, *DAYS, *text.split(), "mail", "no", "tools", "search", "read", "answer", UNKNOWN]
    return list(dict.fromkeys([*listed, *(str(i) for i in range(MAILS))]))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, with its chat template: about 430 tokens."""
    return hermes.build_tokenizer(words(), PIECES, split=SPLIT)
