"""What the small worlds share: the seeds of their splits, their plainest words, and the form of a tool."""

from __future__ import annotations

from typing import Any

__all__ = ["DAYS", "NAMES", "SPAN", "SPLITS", "THINGS", "first_seed", "function_tool", "listed"]

SPAN = 1_000_000_000
SPLITS = {"train": 0, "eval": 1, "pretrain": 2}


def listed(words: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(words.split())


NAMES = listed("dana omar lucy ivan mei raj tom eva noah zoe liam ana hugo nina paul rosa sven tara umar vera")
THINGS = listed(
    "dentist flight invoice meeting parcel rent concert lease exam dinner course repair visa ticket order loan"
)
DAYS = listed("monday tuesday wednesday thursday friday saturday sunday")


def first_seed(split: str, seed: int = 0, items: int = 100_000) -> int:
    """The seed of a split's first item in the run with this seed. `items`: how many a run has.

    The splits' ranges have no number in common. So a held-out item is never a training item, whatever the run's seed is.
    """
    return SPLITS[split] * SPAN + (seed % (SPAN // items)) * items


def function_tool(name: str, key: str, kind: str, description: str) -> dict[str, Any]:
    """A tool with one argument `key` of JSON's type `kind`, in OpenAI's form."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": {key: {"type": kind}}, "required": [key]},
        },
    }
