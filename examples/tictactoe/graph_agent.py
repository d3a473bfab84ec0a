"""The tic-tac-toe agent: a LangGraph graph with one tool, and LangChain's stock OpenAI client.

    OPENAI_BASE_URL=http://127.0.0.1:8100/v1 python examples/tictactoe/graph_agent.py --games 64 --concurrency 8

It knows nothing of Slipstream but what its README says: three headers, and a reward that is posted over HTTP. `--untagged`
leaves both out. Elsewhere the headers mean nothing, and nobody wants the reward. With `--opponent self` it sits on both sides,
and each side is an episode of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
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
from tictactoe.tictactoe import OPPONENTS, Game, Task, make_tasks, task_id, tasks_of

__all__ = ["Played", "TicTacToeAgent", "play_all", "repeated"]


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

    def __init__(
        self, base_url: str | None = None, *, model: str = "model", tagged: bool = True, opponent: str = "random"
    ) -> None:
        self.base_url = base_url or os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8100/v1")
        self.model = model
        self.tagged = tagged
        self.opponent = opponent
        self.http = httpx.AsyncClient(timeout=60)

    async def play(
        self,
        task: Task,
        rng: random.Random,
        *,
        split: str = "train",
        tagged: bool | None = None,
        post_reward: bool = True,
    ) -> Played:
        """One game of a task. Where the agent tags, headers name the run, and the reward is posted at its end.

        Against itself: the game of the side that begins, with the calls of both.
        """
        tagged = self.tagged if tagged is None else tagged
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


def repeated(split: str, count: int | None, runs: int, seed: int) -> Iterator[Task]:
    """Openings of a split, `runs` games of each in a row, `count` games in all, or without end (None)."""
    for index in itertools.count() if count is None else range(count):
        yield make_tasks(split, index // runs + 1, seed)[-1]


async def play_all(
    agent: TicTacToeAgent,
    tasks: Iterator[Task],
    *,
    concurrency: int,
    seed: int = 0,
    split: str = "train",
    tagged: bool | None = None,
) -> AsyncIterator[Played | Exception]:
    """Play games, `concurrency` at a time, and yield each, or the error that ended it, as it ends."""
    rng = random.Random(seed)
    ended: asyncio.Queue[Played | Exception | None] = asyncio.Queue()

    async def worker() -> None:
        for task in tasks:
            try:
                ended.put_nowait(await agent.play(task, rng, split=split, tagged=tagged))
            except Exception as error:
                ended.put_nowait(error)
                await asyncio.sleep(0.2)  # an endpoint that is down is not hammered
        ended.put_nowait(None)

    workers = [asyncio.create_task(worker()) for _ in range(concurrency)]
    try:
        for _ in range(concurrency):
            while (outcome := await ended.get()) is not None:
                yield outcome
    finally:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def run(args: argparse.Namespace) -> int:
    """Play what the command line asks for. Returns the exit code: 1 when a game failed."""
    agent = TicTacToeAgent(args.base_url, model=args.model, tagged=not args.untagged, opponent=args.opponent)
    tasks = repeated(args.split, args.games, args.runs, args.seed)
    played: list[Played] = []
    failed = 0
    began = time.monotonic()
    async for outcome in play_all(agent, tasks, concurrency=args.concurrency, seed=args.seed, split=args.split):
        if isinstance(outcome, Exception):
            failed += 1
            print(f"a game failed: {outcome!r}", file=sys.stderr, flush=True)
            continue
        played.append(outcome)
        if len(played) % 64 == 0:
            last = [p.reward for p in played[-256:]]
            print(f"{len(played)} games, mean reward of the last {len(last)}: {sum(last) / len(last):.2f}", flush=True)
    figures = {
        "games": len(played),
        "failed": failed,
        "reward": round(sum(p.reward for p in played) / max(1, len(played)), 4),
        "calls": sum(p.calls for p in played),
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(figures))
    return 1 if failed else 0


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", help="of the endpoint, with /v1; default: OPENAI_BASE_URL")
    parser.add_argument("--model", default="model", help="the name that the endpoint serves")
    parser.add_argument("--games", type=int, help="default: until stopped")
    parser.add_argument("--runs", type=int, default=8, help="games of one opening in a row")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--split", choices=("train", "eval"), default="train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--opponent", choices=(*OPPONENTS, "self"), default="random")
    parser.add_argument("--untagged", action="store_true", help="send no header and post no reward")
    try:
        return asyncio.run(run(parser.parse_args()))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
