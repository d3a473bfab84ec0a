"""Episodes → text. The calls of an episode are a tree of steps; it is written as its main line and the branches that
leave it.

Steps are numbered, and each line of what the agent or its tools said begins with ``| ``: a transcript can write
anything, and still cannot make a step of its own. Branches (sub-agents, compacted or rewritten histories, retries,
several choices) say which step they leave from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.contract import CallRecord, GroupEpisode
from slipstream_judge.steps import Step, call_steps, clean, plain, plain_prompt, replies, tool_lines

ALONE = "a conversation of its own (a sub-agent, or a fresh start)"
UNDER = "another conversation under the same instructions (a sub-agent, or a compacted history)"
REWRITTEN = "the history was rewritten from here (compacted or edited)"
AGAIN = "the same request, answered again"
CHOICE = "another reply that was sampled for the same request"


@dataclass(eq=False, slots=True)
class Node:
    step: Step
    number: int
    branch: Branch
    next: dict[tuple[str, str], Node] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Branch:
    """A run of steps. ``source`` is the number of the step that it leaves from, 0 where it begins on its own."""

    source: int
    why: str
    call: int
    nodes: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Transcript:
    """One episode. ``digest`` names its content: episodes with equal digests are judged once."""

    branches: list[Branch]
    tools: list[str]
    digest: str = ""

    @property
    def main(self) -> list[Node]:
        return self.branches[0].nodes if self.branches else []

    @property
    def steps(self) -> list[Step]:
        return [n.step for b in self.branches for n in b.nodes]


class _Tree:
    def __init__(self) -> None:
        self.roots: dict[tuple[str, str], Node] = {}
        self.branches: list[Branch] = []
        self.count = 0
        self.texts: list[tuple[str, list[Step]]] = []

    def insert(self, path: Sequence[Step], asked: int, call: int, choice: int) -> None:
        """``asked``: how many of the path's steps are the request's."""
        here: Node | None = None
        level = self.roots
        depth = 0
        while depth < len(path) and (step := path[depth]).key in level:
            here = level[step.key]
            if step.aside and not here.step.aside:
                here.step.aside = step.aside
            level = here.next
            depth += 1
        if depth == len(path):
            return
        if here is not None and here.branch.nodes[-1] is here:
            branch = here.branch
        else:
            branch = Branch(
                here.number if here else 0, self._why(path, depth, asked, choice) if self.branches else "", call
            )
            self.branches.append(branch)
        for step in path[depth:]:
            self.count += 1
            node = Node(step, self.count, branch)
            branch.nodes.append(node)
            level[step.key] = node
            level = node.next

    @staticmethod
    def _why(path: Sequence[Step], depth: int, asked: int, choice: int) -> str:
        if choice and depth >= asked:
            return CHOICE
        if depth == 0:
            return ALONE
        if depth >= asked:
            return AGAIN
        return UNDER if all(s.kind == "system" for s in path[:depth]) else REWRITTEN

    def continued(self, call: CallRecord) -> list[Step] | None:
        """A plain prompt that goes on where an earlier prompt and reply ended: that path, and what is new."""
        if (prompt := plain_prompt(call)) is None:
            return None
        best = max((t for t in self.texts if t[0] and prompt.startswith(t[0])), key=lambda t: len(t[0]), default=None)
        if best is None:
            return None
        rest = prompt[len(best[0]) :]
        return [*best[1], *([Step("user", clean(rest))] if rest.strip() else [])]


def read(calls: Sequence[CallRecord]) -> Transcript:
    """The transcript of one episode's calls. Superseded calls (the client asked again) are left out."""
    tree = _Tree()
    tools: dict[str, None] = {}
    for call in sorted(calls, key=lambda c: c.number):
        if call.outcome == "superseded":
            continue
        tools |= dict.fromkeys(tool_lines(call.tools))
        before = tree.continued(call)
        for choice in range(max(1, len(found := replies(call)))):
            path, asked = call_steps(call, choice)
            if before is not None:
                path, asked = [*before, *path[asked:]], len(before)
            tree.insert(path, asked, call.number, choice)
            if (prompt := plain_prompt(call)) is not None and choice < len(found):
                tree.texts.append((prompt + "".join(plain(m) for m in found[choice]), path))
    made = Transcript(tree.branches, list(tools))
    made.digest = digest(made)
    return made


def digest(transcript: Transcript) -> str:
    """Equal for episodes in which the same was said and done. Reasoning counts."""
    said = [[b.source, b.why, [[*n.step.key, n.step.aside] for n in b.nodes]] for b in transcript.branches]
    return hashlib.sha256(json.dumps([transcript.tools, said]).encode()).hexdigest()[:32]


def of_episode(episode: GroupEpisode) -> Transcript:
    return read(episode.calls)


def common_prefix(transcripts: Sequence[Transcript]) -> int:
    """How many steps of the main lines are the same in all. 0 for fewer than two."""
    if len(transcripts) < 2:
        return 0
    length = 0
    for nodes in zip(*(t.main for t in transcripts), strict=False):
        first = nodes[0].step
        if any(n.step.key != first.key or n.step.aside != first.aside for n in nodes) or any(
            n.number != length + 1 for n in nodes
        ):
            break
        length += 1
    return length


def common_tools(transcripts: Sequence[Transcript]) -> list[str]:
    """Tool definitions that are the same in all."""
    return [line for line in transcripts[0].tools if all(line in t.tools for t in transcripts)] if transcripts else []
