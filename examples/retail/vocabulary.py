"""The small model's words: all that the desk, the customers and the players can say. A tool call is three to five tokens."""

from __future__ import annotations

import re
from typing import Any

from common.hermes import CLOSE_NUMBER, build_tokenizer, opening
from transformers import PreTrainedTokenizerFast

from retail.desk import BYE, OPENINGS, PLEAD, THANKS, WHAT, YES
from retail.domains import DOMAINS, NAMES, tools_of

__all__ = ["desk_tokenizer", "pieces", "words"]

THEN_NUMBER = '", "id": '
SAID = f"{BYE} {PLEAD} {THANKS} {WHAT} {YES} my code is no customer wait then hello your code? sorry done ok no such tool tools"


def words() -> list[str]:
    """Every word and number of the closed vocabulary."""
    texts = [SAID, *NAMES, *(re.sub(r"\{\w+\}", "", text) for text in OPENINGS)]
    for domain in DOMAINS.values():
        texts += [
            domain.policy,
            domain.record,
            domain.noun,
            domain.unit,
            *domain.things,
            *domain.states,
            *domain.actions,
        ]
    found = re.findall(r"[A-Za-z]+", " ".join(texts))
    return list(dict.fromkeys([*found, "customer", *map(str, range(5, 100))]))


def pieces() -> list[str]:
    """The beginnings of the tools' calls, what stands between a thing and its number, and their one end."""
    tools: dict[str, Any] = {t["function"]["name"]: t["function"] for d in DOMAINS.values() for t in tools_of(d)}
    begun = []
    for name, tool in tools.items():
        key, value = next(iter(tool["parameters"]["properties"].items()))
        begun.append(opening(name, key, text=value["type"] == "string"))
    return [*begun, THEN_NUMBER, CLOSE_NUMBER]


def desk_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, with its chat template."""
    return build_tokenizer(words(), pieces())
