"""Make the small model: a Qwen3-shaped one that has read the conversations of mostly careless servants.

    python examples/retail/make_model.py OUT --device cuda

Conversations, weights and their order come from the seed. The last line of output is JSON: what the model does with
held-out cases, in process.
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

from retail.desk import MAX_CALLS, Case, Desk, cases
from retail.domains import tools_of
from retail.players import expert_reward, transcripts
from retail.vocabulary import desk_tokenizer, words

tokenizer_here = functools.cache(desk_tokenizer)


def make_rows(seed: int, count: int) -> list[Row]:
    """Conversations as rows."""
    return [of_messages(tokenizer_here(), messages, tools) for messages, tools in transcripts(seed, count)]


class Served:
    """A conversation of a model with a customer, in process."""

    def __init__(self, case: Case) -> None:
        self.desk = Desk(case)
        self.tools = tools_of(case.domain)
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": case.domain.policy},
            {"role": "user", "content": self.desk.opening()},
        ]
        self.done = False
        self.reward = 0.0
        self.calls = 0

    def act(self, message: dict[str, Any]) -> None:
        """Run the tools of a reply, or tell the customer what it says."""
        self.messages.append(message)
        self.calls += 1
        for call in message.get("tool_calls", []):
            name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
            number = next(iter(arguments.values()), None) if isinstance(arguments, dict) else None
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": self.desk.call(name, number)})
        if not message.get("tool_calls"):
            self.messages.append({"role": "user", "content": self.desk.say(message["content"])})
        self.done = self.desk.left or self.calls >= MAX_CALLS
        self.reward = self.desk.reward


def main() -> None:
    """Command line: train, then write the model in bf16 with its tokenizer to OUT."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--intermediate", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=65.0, help="of training, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processes", type=int, help="that make the rows; default: as many as cores")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--measure", type=int, default=500, help="held-out cases to measure with")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    tokenizer = desk_tokenizer()
    model = make_network(tokenizer, words(), layers=args.layers, intermediate=args.intermediate)
    size = sum(p.numel() for p in model.parameters())
    print(f"{size:,} parameters, {len(tokenizer)} tokens", flush=True)
    began = time.monotonic()
    rows = gather(make_rows, count=args.rows, seed=args.seed, processes=args.processes)
    data = pack(rows, args.device)
    print(f"{len(rows)} rows of up to {data.ids.shape[1]} tokens in {time.monotonic() - began:.0f} s", flush=True)
    curve = train(model, data, steps=args.steps, batch=args.batch, seed=args.seed, seconds=args.seconds)
    save(model, tokenizer, args.out)
    held_out = list(islice(cases("eval", args.seed), args.measure))
    figures = measure(
        model,
        tokenizer,
        lambda i, _: Served(held_out[i]),
        items=len(held_out),
        k_items=min(50, len(held_out)),
        tokens=16,
    )
    print(json.dumps({"parameters": size, "loss": curve[-1], **figures, "expert": expert_reward(held_out)}))


if __name__ == "__main__":
    main()
