"""Make the small model: a Qwen3-shaped one that has read the research of mostly clumsy players.

    python examples/mail/make_model.py OUT --device cuda

Questions, weights and their order come from the seed. The last line of output is JSON: what the model does with
held-out questions, in process.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from common.pretrain import Row, gather, make_network, of_messages, pack, save, train
from common.sampling import measure

from mail.mailbox import COMPACT_AFTER, MAX_CALLS, NOTES, SYSTEM, TOOLS, Question, Research, compacted, questions
from mail.players import expert_reward, reader_asked, transcripts
from mail.vocabulary import mail_tokenizer, words

tokenizer_here = functools.cache(mail_tokenizer)


def make_rows(seed: int, count: int) -> list[Row]:
    """Conversations as rows."""
    return [of_messages(tokenizer_here(), messages, tools) for messages, tools in transcripts(seed, count)]


class Searching:
    """A model's research, in process: `messages` are the main agent's, its reader's, or the request for notes."""

    def __init__(self, question: Question) -> None:
        self.research = Research(question)
        self.main: list[dict[str, Any]] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": question.text},
        ]
        self.messages, self.tools = self.main, TOOLS
        self.done = False
        self.reward = 0.0
        self.calls = 0

    def act(self, message: dict[str, Any]) -> None:
        """Go on with a reply: of the reader, of the note-taker, or of the main agent."""
        if self.messages is not self.main:
            self.messages, self.tools = self.main, TOOLS
            self._result(message.get("content") or "")
            return
        self.main.append(message)
        if self.main[-2]["content"] == NOTES:
            notes = message.get("content") or ""
            self.main[1:] = [{"role": "user", "content": compacted(self.research.question, notes)}]
            return
        self.calls += 1
        if not message.get("tool_calls"):
            self.done = True
            return
        function = message["tool_calls"][0]["function"]
        values = json.loads(function["arguments"])
        value = next(iter(values.values()), "") if isinstance(values, dict) else ""
        if function["name"] == "answer":
            self.research.answer = str(value)
            self.done, self.reward = True, self.research.reward
        elif function["name"] == "read" and (brief := self.research.brief(value)):
            self.messages, self.tools = reader_asked(brief), []
        else:
            self._result(self.research.search(str(value)) if function["name"] == "search" else "no such hit")

    def _result(self, text: str) -> None:
        self.main.append({"role": "tool", "tool_call_id": "call", "content": text})
        self.done = self.calls >= MAX_CALLS
        if self.calls % COMPACT_AFTER == 0:
            self.main.append({"role": "user", "content": NOTES})


def main() -> None:
    """Command line: train, then write the model in bf16 with its tokenizer to OUT."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=120_000)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=384)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--intermediate", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=55.0, help="of training, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processes", type=int, help="that make the rows; default: as many as cores")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--measure", type=int, default=300, help="held-out questions to measure with")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    tokenizer = mail_tokenizer()
    model = make_network(tokenizer, words(), layers=args.layers, intermediate=args.intermediate)
    size = sum(p.numel() for p in model.parameters())
    print(f"{size:,} parameters, {len(tokenizer)} tokens", flush=True)
    began = time.monotonic()
    rows = gather(make_rows, count=args.rows, seed=args.seed, processes=args.processes)
    data = pack(rows, args.device)
    print(f"{len(rows)} rows of up to {data.ids.shape[1]} tokens in {time.monotonic() - began:.0f} s", flush=True)
    curve = train(model, data, steps=args.steps, batch=args.batch, seed=args.seed, seconds=args.seconds)
    save(model, tokenizer, args.out)
    held_out = list(islice(questions("eval", args.seed), args.measure))
    figures = measure(
        model,
        tokenizer,
        lambda i, _: Searching(held_out[i]),
        items=len(held_out),
        k_items=min(50, len(held_out)),
        tokens=16,
    )
    print(json.dumps({"parameters": size, "loss": curve[-1], **figures, "expert": expert_reward(held_out)}))


if __name__ == "__main__":
    main()
