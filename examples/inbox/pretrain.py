"""Make the small model: a Qwen3-shaped one that has read the transcripts of a clumsy searcher.

    python examples/inbox/pretrain.py OUT --steps 1000 --seed 0

The clumsy searcher searches for one random word of the question, reads a random one of the mails listed and answers the
day in it. Data, weights and their order come from the seed. `--device cuda` uses a GPU.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path
from typing import Any

import torch
from inbox import SYSTEM, TOOLS, Mailbox, Task, make_task, task_seed
from tokenizer import END, ROLES, SEARCH, UNKNOWN, build_tokenizer, spelling_pairs, tool_call
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

BATCH = 128
CONTEXT_WEIGHT = 0.1  # of the loss on what the model reads; its own words weigh 1
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
    messages += [tool_call("search", f'{{"keywords": "{word}"}}'), {"role": "tool", "content": found}]
    if not hits:
        return [*messages, tool_call("answer", f'{{"text": "{UNKNOWN}"}}')], False
    mail = task.mails[rng.choice(hits)]
    messages += [tool_call("read", f'{{"id": {mail.id}}}'), {"role": "tool", "content": mail.body}]
    return [*messages, tool_call("answer", f'{{"text": "{mail.day}"}}')], mail.name == task.name


def make_rows(tokenizer: PreTrainedTokenizerFast, mailboxes: int, seed: int) -> tuple[torch.Tensor, float]:
    """Token ids of the transcripts, int64 [mailboxes * PER_TASK, longest], padded with 0, and their share of successes."""
    rng = random.Random(seed)
    rows: list[list[int]] = []
    right = 0
    for index in range(mailboxes):
        task = make_task(task_seed("pretrain", index, seed))
        for _ in range(PER_TASK):
            messages, success = transcript(task, rng)
            text = tokenizer.apply_chat_template(messages, tools=TOOLS, tokenize=False)
            rows.append(tokenizer.backend_tokenizer.encode(str(text), add_special_tokens=False).ids)
            right += success
    longest = max(map(len, rows))
    return torch.tensor([row + [0] * (longest - len(row)) for row in rows]), right / len(rows)


def own_words(ids: torch.Tensor, tokenizer: PreTrainedTokenizerFast) -> torch.Tensor:
    """True where a token is the assistant's: after its role token, up to and with the end token. Shape of `ids`."""
    turn = torch.zeros_like(ids)
    for role, token in ROLES.items():
        turn += (ids == tokenizer.convert_tokens_to_ids(token)).long() * (2 if role == "assistant" else 1)
    starts = turn.bool()
    place = torch.where(starts, torch.arange(ids.shape[1]), 0).cummax(1).values
    inside = turn.gather(1, place) == 2
    return inside & ~starts & (ids != 0)


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """The untrained model: 2 layers, hidden 256, 2.3M parameters."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.convert_tokens_to_ids(END),
        pad_token_id=0,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    embedding = model.get_input_embeddings().weight.data
    bare, spaced = (torch.tensor(ids) for ids in zip(*spelling_pairs(tokenizer), strict=True))
    # The two spellings of a word share half of their variance, so that copying is found early.
    embedding[spaced] = (embedding[bare] + embedding[spaced]) / 2**0.5
    model.generation_config.eos_token_id = config.eos_token_id
    model.generation_config.pad_token_id = 0
    return model


def keyword_targets(ids: torch.Tensor, tokenizer: PreTrainedTokenizerFast) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each row's keyword stands, int64 [rows], and what the searcher picks it from, float [rows, vocabulary].

    The second is uniform over the words of the question: all of his choices at once teach more than the one he made.
    """
    spaced_to_bare = {spaced: bare for bare, spaced in spelling_pairs(tokenizer)}
    bare = set(spaced_to_bare.values())
    user, end, search = (tokenizer.convert_tokens_to_ids(token) for token in (ROLES["user"], END, SEARCH))
    places = (ids == search).long().argmax(1) + 1
    targets = torch.zeros(len(ids), len(tokenizer))
    for row, tokens in enumerate(ids.tolist()):
        first = tokens.index(user) + 1
        for token in tokens[first : tokens.index(end, first)]:
            targets[row, token if token in bare else spaced_to_bare[token]] += 1
    return places, targets / targets.sum(1, keepdim=True)


def weighted_loss(
    model: Any, ids: torch.Tensor, own: torch.Tensor, places: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The training loss (0-d) and the mean loss on the assistant's own tokens (0-d), in nats.

    `ids`, `own`: [rows, length]; `places`, `targets`: of `keyword_targets`.
    """
    logits = model(input_ids=ids, attention_mask=(ids != 0).long()).logits[:, :-1].float()
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    every = torch.arange(len(ids), device=ids.device)
    keyword = torch.nn.functional.cross_entropy(logits[every, places - 1], targets, reduction="none")
    losses = losses.index_put((every, places - 1), keyword)
    mine = own[:, 1:].float()
    context = (ids[:, 1:] != 0).float() - mine
    own_loss = (losses * mine).sum() / mine.sum()
    return own_loss + CONTEXT_WEIGHT * (losses * context).sum() / context.sum(), own_loss


def train(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    *,
    steps: int,
    seed: int = 0,
    mailboxes: int = POOL,
    batch: int = BATCH,
    lr: float = 2e-3,
    device: str = "cpu",
    every: int = 100,
) -> list[float]:
    """Pre-train in place and return each step's loss on the assistant's own tokens (nats a token)."""
    began = time.time()
    rows, share = make_rows(tokenizer, mailboxes, seed)
    own = own_words(rows, tokenizer)
    data = [x.to(device) for x in (rows, own, *keyword_targets(rows, tokenizer))]
    model.to(device).train()
    print(
        f"the clumsy searcher succeeds in {share:.3f} of {len(rows)} transcripts ({time.time() - began:.0f} s)",
        flush=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 50) * max(0.02, 1 - step / steps)
    )
    order = torch.Generator().manual_seed(seed)
    curve: list[float] = []
    for step in range(steps):
        pick = torch.randint(len(rows), (batch,), generator=order).to(device)
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            loss, own_loss = weighted_loss(model, *(x[pick] for x in data))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        curve.append(own_loss.item())
        if step % every == 0 or step == steps - 1:
            print(f"step {step} own loss {curve[-1]:.4f} {time.time() - began:.0f} s", flush=True)
    return curve


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
    model = make_model(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens", flush=True)
    train(model, tokenizer, steps=args.steps, seed=args.seed, batch=args.batch, lr=args.lr, device=args.device)
    model.to("cpu", torch.bfloat16).save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)


if __name__ == "__main__":
    main()
