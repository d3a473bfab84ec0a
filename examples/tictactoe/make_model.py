"""Make the small model: a Qwen3-shaped one that has read the games of mostly clumsy players.

    python examples/tictactoe/make_model.py OUT --steps 4000 --seed 0

Games, weights and their order come from the seed. Where a player finds several squares equally good, the model learns all
of them at once. The last line of output is JSON: what the model scores on held-out openings. `--device cuda` uses a GPU.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from players import draw_player
from tictactoe import Game, Task, best_value, make_tasks, openings
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from vocabulary import CLOSE, END, PLAY, build_tokenizer, move_message, spelling_pairs

BATCH = 256
CONTEXT_WEIGHT = 0.1  # of the loss on what the model reads; its own words weigh 1
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "play"}}]


class Rows(NamedTuple):
    """Games as tensors, a row each."""

    ids: torch.Tensor
    """int64 [games, longest], padded with 0."""
    own: torch.Tensor
    """bool, same shape: True where the assistant wrote the token."""
    places: torch.Tensor
    """int64 [games, 5]: where each move's square stands; 0 where there was no such move."""
    squares: torch.Tensor
    """float [games, 5, 9]: what the player chose from."""


class Spelling:
    """Token ids of a game's texts, as the chat template writes them."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.squares = [tokenizer.convert_tokens_to_ids(str(i + 1)) for i in range(9)]
        self.known: dict[str, list[int]] = {}

    def prompt(self, task: Task) -> list[int]:
        """Everything up to the first move."""
        messages = [{"role": "user", "content": task.question}]
        text = self.tokenizer.apply_chat_template(messages, tools=TOOLS, add_generation_prompt=True, tokenize=False)
        return self.encode(str(text))

    def answer(self, text: str) -> list[int]:
        """What stands between one move's end token and the next move."""
        return self.encode(f"<|im_start|>tool\n{text}{END}<|im_start|>assistant\n")

    def move(self, square: int) -> list[int]:
        """A move (square 1 to 9) with its end token."""
        messages = [{"role": "user", "content": ""}, move_message(square)]
        text = str(self.tokenizer.apply_chat_template(messages, tokenize=False))
        return self.encode(text[text.index(PLAY) :])

    def encode(self, text: str) -> list[int]:
        """Ids of a text, remembered."""
        if text not in self.known:
            self.known[text] = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return self.known[text]


def make_rows(spelling: Spelling, games: int, seed: int) -> Rows:
    """Games of the players from every opening, held-out ones too: reading about a board is not training on its reward."""
    rng = random.Random(seed)
    boards = openings()
    moves = [spelling.move(square) for square in range(1, 10)]
    ids: list[list[int]] = []
    own: list[list[bool]] = []
    places = torch.zeros(games, 5, dtype=torch.int64)
    squares = torch.zeros(games, 5, 9)
    for index in range(games):
        board = boards[rng.randrange(len(boards))]
        player, game = draw_player(rng), Game(board, rng)
        row = list(spelling.prompt(Task("", board, "")))
        mine = [False] * len(row)
        turn = 0
        while game.reward is None:
            choices = player.choices(game.board, rng)
            places[index, turn] = len(row) + 1
            squares[index, turn, choices] = 1 / len(choices)
            square = rng.choice(choices)
            row += moves[square]
            mine += [True] * len(moves[square])
            seen = game.play(square + 1)
            if game.reward is None:
                row += spelling.answer(seen)
                mine += [False] * (len(row) - len(mine))
            turn += 1
        ids.append(row)
        own.append(mine)
    longest = max(map(len, ids))
    padded = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
    return Rows(padded, torch.tensor([row + [False] * (longest - len(row)) for row in own]), places, squares)


def make_network(tokenizer: PreTrainedTokenizerFast, layers: int, intermediate: int) -> Qwen3ForCausalLM:
    """The untrained model: hidden 256."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
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


def loss_of(model: Any, rows: Rows, squares: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The training loss (0-d) and the mean loss on the assistant's own tokens (0-d), in nats."""
    ids = rows.ids
    logits = model(input_ids=ids, attention_mask=(ids != 0).long()).logits[:, :-1].float()
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    row, turn = (rows.places > 0).nonzero(as_tuple=True)
    place = rows.places[row, turn]
    chosen = torch.zeros(len(row), logits.shape[-1], device=ids.device)
    chosen[:, squares] = rows.squares[row, turn]
    moves = torch.nn.functional.cross_entropy(logits[row, place - 1], chosen, reduction="none")
    losses = losses.index_put((row, place - 1), moves)
    mine = rows.own[:, 1:].float()
    context = (ids[:, 1:] != 0).float() - mine
    own_loss = (losses * mine).sum() / mine.sum()
    return own_loss + CONTEXT_WEIGHT * (losses * context).sum() / context.sum(), own_loss


def train(
    model: Any, data: Rows, squares: torch.Tensor, *, steps: int, batch: int, lr: float, seed: int
) -> list[float]:
    """Pre-train in place on the device of `data`. Returns each hundredth step's loss on the assistant's own tokens."""
    device = data.ids.device
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 100) * max(0.02, 1 - step / steps)
    )
    order = torch.Generator().manual_seed(seed)
    curve: list[float] = []
    began = time.time()
    for step in range(steps):
        pick = torch.randint(len(data.ids), (batch,), generator=order).to(device)
        with torch.autocast(device.type, torch.bfloat16):
            loss, own_loss = loss_of(model, Rows(*(x[pick] for x in data)), squares)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            curve.append(own_loss.item())
            print(f"step {step} own loss {curve[-1]:.4f} {time.time() - began:.0f} s", flush=True)
    return curve


@torch.no_grad()
def play_out(model: Any, spelling: Spelling, tasks: list[Task], rng: random.Random) -> list[tuple[float, int]]:
    """A game of each task, sampled at temperature 1: its reward and how many moves were made. A reply that is no move loses."""
    device = model.get_input_embeddings().weight.device
    games = [Game(task.board, rng) for task in tasks]
    rows = [list(spelling.prompt(task)) for task in tasks]
    moves = [0] * len(tasks)
    play, close, end = (spelling.tokenizer.convert_tokens_to_ids(t) for t in (PLAY, CLOSE, END))
    while active := [i for i, game in enumerate(games) if game.reward is None]:
        for _ in range(4):
            longest = max(len(rows[i]) for i in active)
            ids = torch.tensor([rows[i] + [0] * (longest - len(rows[i])) for i in active], device=device)
            last = torch.tensor([len(rows[i]) - 1 for i in active], device=device)
            logits = model(input_ids=ids, attention_mask=(ids != 0).long()).logits
            sampled = torch.multinomial(logits[torch.arange(len(active)), last].float().softmax(-1), 1)[:, 0].tolist()
            for i, token in zip(active, sampled, strict=True):
                rows[i].append(token)
        for i in active:
            said = rows[i][-4:]
            moves[i] += 1
            if (said[0], said[2], said[3]) != (play, close, end) or said[1] not in spelling.squares:
                games[i].reward = -1.0
            else:
                seen = games[i].play(spelling.squares.index(said[1]) + 1)
                rows[i] += spelling.answer(seen)
    return [(float(game.reward or 0.0), n) for game, n in zip(games, moves, strict=True)]


def measure(model: Any, spelling: Spelling, *, games: int, k: int, seed: int) -> dict[str, float]:
    """Mean reward on held-out openings, the best play's, and pass@k: the share of openings that one of k games wins."""
    rng = random.Random(seed)
    model.eval()
    tasks = make_tasks("eval", games, seed)
    played = play_out(model, spelling, tasks, rng)
    each = make_tasks("eval", 20, seed)
    passed = [any(r > 0 for r, _ in play_out(model, spelling, [task] * k, rng)) for task in each]
    return {
        "reward": sum(r for r, _ in played) / games,
        "won": sum(r > 0 for r, _ in played) / games,
        "moves": sum(n for _, n in played) / games,
        "expert": sum(best_value(t.board) for t in tasks) / games,
        f"pass@{k}": sum(passed) / len(passed),
    }


def main() -> None:
    """Command line: train, then write the model in bf16 with its tokenizer to OUT."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--games", type=int, default=100_000)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--intermediate", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--measure", type=int, default=2000, help="held-out games to measure with")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    spelling = Spelling(build_tokenizer())
    model = make_network(spelling.tokenizer, args.layers, args.intermediate)
    size = sum(p.numel() for p in model.parameters())
    print(f"{size:,} parameters, {len(spelling.tokenizer)} tokens", flush=True)
    began = time.time()
    rows = Rows(*(x.to(args.device) for x in make_rows(spelling, args.games, args.seed)))
    print(f"{len(rows.ids)} games of up to {rows.ids.shape[1]} tokens in {time.time() - began:.0f} s", flush=True)
    squares = torch.tensor(spelling.squares, device=args.device)
    curve = train(model, rows, squares, steps=args.steps, batch=args.batch, lr=args.lr, seed=args.seed)
    model.to(dtype=torch.bfloat16)
    figures = measure(model, spelling, games=args.measure, k=64, seed=args.seed)
    model.to("cpu").save_pretrained(args.out)
    spelling.tokenizer.save_pretrained(args.out)
    print(json.dumps({"parameters": size, "loss": curve[-1], **figures}))


if __name__ == "__main__":
    main()
