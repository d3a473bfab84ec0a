"""The tic-tac-toe agent: a LangGraph graph with one tool, and LangChain's stock OpenAI client.

    OPENAI_BASE_URL=http://127.0.0.1:8100/v1 python examples/tictactoe/graph_agent.py --episodes 64 --concurrency 8

It knows nothing of Slipstream but what its README says: three headers, and a reward that is posted over HTTP. `--untagged`
leaves both out. Elsewhere the headers mean nothing, and nobody wants the reward. With `--opponent self` it sits on both sides,
and each side is an episode of its own.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
import uuid
from pathlib import Path
from typing import Annotated, NamedTuple, Protocol, TypedDict

import httpx
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # its folder is a package there

from tictactoe.match import Match, Side
from tictactoe.tictactoe import OPPONENTS, Game, Task, task_id, tasks_of

__all__ = ["Played", "TicTacToeAgent"]


class State(TypedDict):
    """What flows through the graph."""

    messages: Annotated[list[AnyMessage], add_messages]


class Played(NamedTuple):
    """One finished game. `reward` is 1 for a win, 0 for a draw, -1 for a loss or a move that is none."""

    episode: str
    task: Task
    reward: float
    calls: int
    seconds: float


class Seat(Protocol):
    """Where a player sits: at a game, or at a side of a match."""

    @property
    def reward(self) -> float | None: ...

    async def move(self, square: int) -> str: ...


class TicTacToeAgent:
    """Plays games with the model behind an OpenAI-compatible endpoint."""

    def __init__(self, base_url: str | None = None, *, model: str = "model", opponent: str = "random") -> None:
        self.base_url = base_url or os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8100/v1")
        self.model = model
        self.opponent = opponent
        self.http = httpx.AsyncClient(timeout=60)

    async def play(
        self,
        task: Task,
        rng: random.Random,
        *,
        split: str = "train",
        tagged: bool = True,
        post_reward: bool = True,
    ) -> Played:
        """One game of a task. Where it is tagged, headers name the run, and the reward is posted at its end.

        Against itself: the game of the side that begins, with the calls of both.
        """
        if self.opponent != "self":
            game = Game(task.board, rng, opponent=self.opponent)
            return await self.sit(game, task, split, tagged, post_reward)
        match = Match(task.board)
        try:
            async with asyncio.TaskGroup() as group:
                both = [group.create_task(self.take(side, split, tagged, post_reward)) for side in match.sides]
        except ExceptionGroup as errors:  # a call failed: the match is void, neither side has a reward
            raise errors.exceptions[0] from errors
        first, second = (side.result() for side in both)
        assert first is not None
        return first._replace(calls=first.calls + (second.calls if second else 0))

    async def take(self, side: Side, split: str, tagged: bool, post_reward: bool) -> Played | None:
        """Play one side of a match. None where the match ended before this side could move."""
        await side.turn.wait()
        if side.reward is not None:
            return None
        # what is held out stays held out, whoever's turn it is
        board = side.board
        held_out = any(board == task.board for task in tasks_of("eval"))
        try:
            return await self.sit(
                side, Task(task_id(board), board, split), "eval" if held_out else split, tagged, post_reward
            )
        finally:
            side.leave()

    async def sit(self, seat: Seat, task: Task, split: str, tagged: bool, post_reward: bool) -> Played:
        """One episode: play at a seat from its first board to the end."""
        episode = uuid.uuid4().hex
        tags = {"x-slipstream-episode": episode, "x-slipstream-task": task.id, "x-slipstream-split": split}
        llm = ChatOpenAI(
            base_url=self.base_url,
            api_key=os.environ.get("OPENAI_API_KEY", "none"),
            model=self.model,
            default_headers=tags if tagged else None,
        )
        began = time.monotonic()
        state = await graph(llm, seat).ainvoke({"messages": [HumanMessage(task.question)]})
        calls = sum(isinstance(message, AIMessage) for message in state["messages"])
        reward = -1.0 if seat.reward is None else seat.reward
        if tagged and post_reward:
            await self.post_reward(episode, reward)
        return Played(episode, task, reward, calls, time.monotonic() - began)

    async def post_reward(self, episode: str, value: float) -> None:
        """Say how the run went."""
        root = self.base_url.removesuffix("/v1")
        reply = await self.http.post(f"{root}/slipstream/v1/episodes/{episode}/rewards", json={"value": value})
        if reply.status_code != 404:  # another server than Slipstream's
            reply.raise_for_status()


def graph(llm: ChatOpenAI, seat: Seat):  # noqa: ANN201
    """The graph of one game: the model moves, the tool answers, until the game has ended."""

    @tool
    async def play(square: int) -> str:
        """Put an X on a free square, 1 to 9. Returns the board after the opponent's answer, or how the game ended."""
        return await seat.move(square)

    moving = llm.bind_tools([play])

    async def think(state: State) -> State:
        return {"messages": [await moving.ainvoke(state["messages"])]}

    def after_thinking(state: State) -> str:
        last = state["messages"][-1]
        return "tools" if isinstance(last, AIMessage) and last.tool_calls else END

    builder = StateGraph(State)
    builder.add_node("think", think)
    builder.add_node("tools", ToolNode([play]))
    builder.add_edge(START, "think")
    builder.add_conditional_edges("think", after_thinking)
    builder.add_conditional_edges("tools", lambda _: "think" if seat.reward is None else END)
    return builder.compile()


if __name__ == "__main__":
    from common.command import arguments, main

    from tictactoe.task import TASKS

    options = arguments(__doc__)
    options.add_argument("--opponent", choices=(*OPPONENTS, "self"), default="random")
    by_opponent = {task.opponent: task for task in TASKS.values()}
    sys.exit(main(lambda args: by_opponent[args.opponent], options))
