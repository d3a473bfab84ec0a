"""The tic-tac-toe tasks: against a random opponent, against a perfect one, and against itself."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from common.task import Item, Played, needs
from common.transcript import calls, said

from tictactoe.tictactoe import LINES, Task, best_value, make_tasks, perfect_value, tasks_of

if TYPE_CHECKING:
    from tictactoe.graph_agent import TicTacToeAgent

__all__ = ["TASKS", "TicTacToe"]

INSTALL = "pip install langgraph langchain-openai"


class Player:
    """The LangGraph agent, at the tables of a task. `evaluated`: its held-out games are against the random opponent."""

    def __init__(self, agent: TicTacToeAgent) -> None:
        self.agent = agent
        self.evaluated = type(agent)(agent.base_url, model=agent.model) if agent.opponent == "self" else agent
        self.rng = random.Random()

    async def episode(
        self, item: Item, *, split: str = "train", tagged: bool = True, post_reward: bool = True
    ) -> Played:
        """One game. Its opponent plays as it likes: the same opening is another game each time."""
        agent = self.evaluated if split == "eval" else self.agent
        game = await agent.play(cast("Task", item), self.rng, split=split, tagged=tagged, post_reward=post_reward)
        return Played(game.reward, game.calls)

    async def close(self) -> None:
        """Close the connections for rewards."""
        await self.agent.http.aclose()
        if self.evaluated is not self.agent:
            await self.evaluated.http.aclose()


class TicTacToe:
    """Tic-tac-toe against an opponent: "random", "perfect" or "self". What self-play learns is measured against "random"."""

    def __init__(self, name: str, opponent: str) -> None:
        self.name, self.opponent = name, opponent
        self.model = Path(__file__).with_name("model")
        self.rubric = "A won game is 1, a draw 0.5, anything else 0."

    def items(self, split: str, seed: int) -> Iterator[Task]:
        """Openings in an order of the seed's, again and again."""
        return itertools.cycle(make_tasks(split, len(tasks_of(split)), seed))

    def expert(self, items: Sequence[Item]) -> float:
        """The best play against the opponent, computed exactly."""
        value = perfect_value if self.opponent == "perfect" else best_value
        return sum(value(cast("Task", item).board) for item in items) / max(1, len(items))

    def rule(self, transcript: str) -> float:
        """1 where X's last move takes three in a row, 0.5 for a draw, else 0: lost, broken off, a taken square.

        The board that the last move ends on is never shown to the model, so its outcome is worked out from the board before.
        """
        rows = [line.split() for line in said(transcript)]
        stones = [cell for row in rows if len(row) == 3 and all(c in "123456789XO" for c in row) for cell in row]
        moves = [call.arguments.get("square") for call in calls(transcript) if call.name == "play"]
        return outcome(stones[-9:], moves[-1] if moves else None)

    async def open(self, base_url: str) -> Player:
        """The agent, which asks for the model by the task's name."""
        with needs(INSTALL):
            from tictactoe.graph_agent import TicTacToeAgent
        return Player(TicTacToeAgent(base_url, model=self.name, opponent=self.opponent))


def outcome(cells: list[str], square: object) -> float:
    """The score of a last move (1 to 9) on a board of nine cells."""
    if len(cells) < 9 or not isinstance(square, int) or not 1 <= square <= 9 or cells[square - 1] in "XO":
        return 0.0
    cells[square - 1] = "X"
    if has_row(cells, "X"):
        return 1.0
    free = [i for i, cell in enumerate(cells) if cell not in "XO"]
    if len(free) == 1:
        cells[free[0]] = "O"
    return 0.5 if len(free) < 2 and not has_row(cells, "O") else 0.0


def has_row(cells: list[str], stone: str) -> bool:
    """Whether this stone has three in a row."""
    return any(all(cells[i] == stone for i in line) for line in LINES)


TASKS = {
    "tictactoe": TicTacToe("tictactoe", "random"),
    "tictactoe-perfect": TicTacToe("tictactoe-perfect", "perfect"),
    "tictactoe-self": TicTacToe("tictactoe-self", "self"),
}
