"""Made-up calls of an episode, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

MESSAGES = st.lists(
    st.sampled_from(
        ["a", "b", "ccc", "é\ud800", {"role": "user", "content": 1.0}, {"content": 1, "role": "user"}, 1, 1.0, True]
    ),
    max_size=6,
)
IDS = st.lists(st.integers(0, 3), max_size=12)


@st.composite
def histories(draw):
    """Calls of an episode: most go on from an earlier one, edited, cut, re-ordered or replaced by a summary."""
    calls = []
    for _ in range(draw(st.integers(1, 12))):
        if calls and draw(st.integers(0, 9)):
            messages, ids, tools, reply, sampled = draw(st.sampled_from(calls))
            messages, ids = [*messages, reply], [*ids, *sampled]
            match draw(st.sampled_from(["extend", "edit", "cut", "turn", "compact", "same"])):
                case "extend":
                    messages, ids = messages + draw(MESSAGES), ids + draw(IDS)
                case "edit":
                    at, at_id = draw(st.integers(0, len(messages) - 1)), draw(st.integers(0, len(ids)))
                    messages, ids = [*messages[:at], "edited", *messages[at + 1 :]], [*ids[:at_id], 9, *ids[at_id:]]
                case "cut":
                    messages, ids = (
                        messages[draw(st.integers(0, len(messages))) :],
                        ids[draw(st.integers(0, len(ids))) :],
                    )
                case "turn":
                    messages, ids = messages[::-1], ids[::-1]
                case "compact":
                    messages, ids = [*messages[:1], "summary", *messages[-1:]], [*ids[:2], 8, *ids[-2:]]
            if not draw(st.integers(0, 4)):
                tools = draw(MESSAGES)
        else:
            messages, ids, tools = draw(MESSAGES), draw(IDS), draw(MESSAGES)
        calls.append((messages, ids, tools, draw(st.sampled_from(["yes", "no", {"role": "assistant"}])), draw(IDS)))
    return calls
