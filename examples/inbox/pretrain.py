"""Make the small model: a Qwen3-shaped one that has read the transcripts of a clumsy searcher.

    python examples/inbox/pretrain.py OUT --steps 1000 --seed 0

The clumsy searcher searches for one random word of the question, reads a random one of the mails listed and answers the
day in it. Data, weights and their order come from the seed. `--device cuda` uses a GPU.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from common.hermes import tool_call
from common.pretrain import Row, make_network, of_messages, pack, save, train
from transformers import PreTrainedTokenizerFast

from inbox.inbox import SYSTEM, TOOLS, Mailbox, Task, make_task, task_seed
from inbox.tokenizer import SEARCH, UNKNOWN, build_tokenizer, words

BATCH = 128
PER_TASK = 4  # transcripts of one mailbox
POOL = 12_000  # mailboxes


def transcript(task: Task, rng: random.Random) -> tuple[list[dict[str, Any]], bool]:
    """One episode of the clumsy searcher: its chat messages, and whether it read the right mail."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": task.question},
    ]
    word = rng.choice(task.question.split())
    box = Mailbox(task)
    hits, found = box.hits(word), box.search(word)
    box.close()
    messages += [tool_call("search", {"keywords": word}), {"role": "tool", "content": found}]
    if not hits:
        return [*messages, tool_call("answer", {"text": UNKNOWN})], False
    mail = task.mails[rng.choice(hits)]
    messages += [tool_call("read", {"id": mail.id}), {"role": "tool", "content": mail.body}]
    return [*messages, tool_call("answer", {"text": mail.day})], mail.name == task.name


def make_row(tokenizer: PreTrainedTokenizerFast, task: Task, messages: list[dict[str, Any]]) -> Row:
    """A transcript's tokens. Its keyword stands for all words of the question: what the searcher picks from teaches more
    than what it picked.
    """
    row = of_messages(tokenizer, messages, TOOLS)
    vocab: dict[str, int] = tokenizer.get_vocab()
    asked = task.question.split()
    chances = {vocab[word]: count / len(asked) for word, count in Counter(asked).items()}
    row.soft.append((row.ids.index(vocab[SEARCH]) + 1, chances))
    return row


def make_rows(tokenizer: PreTrainedTokenizerFast, mailboxes: int, seed: int) -> tuple[list[Row], float]:
    """`PER_TASK` transcripts of each mailbox, and their share of successes."""
    rng = random.Random(seed)
    rows: list[Row] = []
    right = 0
    for index in range(mailboxes):
        task = make_task(task_seed("pretrain", index, seed))
        for _ in range(PER_TASK):
            messages, success = transcript(task, rng)
            rows.append(make_row(tokenizer, task, messages))
            right += success
    return rows, right / len(rows)


def main() -> None:
    """Command line: train, then write the model in bf16 with its tokenizer to OUT."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    tokenizer = build_tokenizer()
    model = make_network(tokenizer, words())
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens", flush=True)
    rows, share = make_rows(tokenizer, POOL, args.seed)
    print(f"the clumsy searcher succeeds in {share:.3f} of {len(rows)} transcripts", flush=True)
    data = pack(rows, args.device)
    train(model, data, steps=args.steps, batch=args.batch, lr=args.lr, warmup=50, seed=args.seed)
    save(model, tokenizer, args.out)


if __name__ == "__main__":
    main()
