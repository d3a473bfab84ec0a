"""Replay of whole runs: the user's agent plays a case's task again, against a base URL that serves one side alone.

Its calls go through a server on this machine, which gives them the side's model, prompt and sampling, and the run's
name. Through a proxy they are stored in the split ``eval``. Tools may answer from the record: where a call repeats, its
recorded result stands; where it does not, the run stops and says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import os
import tempfile
import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import fmean

import httpx

from slipstream.client import Client
from slipstream.contract import REPLAY_OF_TAG, CallRecord, EpisodeDetail, Headers, replay_of
from slipstream.errors import ConfigError, SlipstreamError
from slipstream.shared.prefixes import whole_calls
from slipstream.shared.usage import tokens_of
from slipstream_replay.comparison import CasePair
from slipstream_replay.steps import SYSTEM_ROLES, JsonObject, ReplayBudget, ReplayCase, Reply, Side

log = logging.getLogger(__name__)
RUN_LIMITS = (
    "Each task was played again in your environment. Where tools answered from the record, only runs that repeat its "
    "calls were compared."
)
CALL_TIMEOUT_S = 600.0
"""Seconds for one call of a run."""
MAX_RUN_CALLS = 50
"""Calls of a run whose tools are the record's."""
PROMPT_FIELDS = {"messages": "system", "responses": "instructions"}
"""Path of a wire format → the field that holds its system prompt, where that is no message."""


class RunStopped(Exception):
    """The record has no result for a tool call. The text is the reason."""


class RecordedTools:
    """What the tools of a recorded run answered. A call that repeats several times gets the results one by one."""

    def __init__(self, episode: EpisodeDetail) -> None:
        names: dict[str, tuple[str, str]] = {}
        self._results: dict[tuple[str, str], list[object]] = defaultdict(list)
        told: set[str] = set()
        for call in whole_calls(episode.call_list):
            for message in [*call.messages, *call.reply[:1]]:
                if not isinstance(message, dict):
                    continue
                for tool in message.get("tool_calls") or []:
                    function = tool.get("function") or {}
                    names[str(tool.get("id"))] = _place(str(function.get("name")), function.get("arguments"))
                asked = str(message.get("tool_call_id"))
                if message.get("role") == "tool" and asked in names and asked not in told:
                    told.add(asked)
                    self._results[names[asked]].append(message.get("content"))
        self._given: dict[tuple[str, str], int] = defaultdict(int)

    def result(self, name: str, arguments: object) -> object:
        """``arguments``: an object, or its JSON. Raises ``RunStopped``."""
        place = _place(name, arguments)
        results = self._results.get(place)
        if not results:
            known = any(n == name for n, _ in self._results)
            other = "with these arguments" if known else "at all"
            raise RunStopped(f"the record has no call of the tool {name} {other}")
        at = min(self._given[place], len(results) - 1)
        self._given[place] += 1
        return results[at]


def _place(name: str, arguments: object) -> tuple[str, str]:
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):
            arguments = json.loads(arguments or "{}")
    return name, json.dumps(arguments if arguments is not None else {}, sort_keys=True)


def recorded_prompt(episode: EpisodeDetail) -> object:
    """What the system message says that the recorded run begins with. None: it begins with another one."""
    first = next(iter(episode.call_list[0].messages), None)
    return first.get("content") if isinstance(first, dict) and first.get("role") in SYSTEM_ROLES else None


def with_prompt(body: JsonObject, path: str, prompt: object, *, always: bool) -> JsonObject:
    """A request of the agent with this system prompt. ``always``: also where the agent's does not begin with one."""
    place = PROMPT_FIELDS.get(path.rpartition("/")[2])
    if place and body.get(place) is not None:
        return body | {place: prompt}
    listed = "input" if place == "instructions" else "messages"
    messages = body.get(listed)
    many = messages if isinstance(messages, list) else []
    at = next((i for i, m in enumerate(many) if isinstance(m, dict) and m.get("role") in SYSTEM_ROLES), None)
    if at is not None and (always or at == 0):
        return body | {listed: [*many[:at], {"role": many[at]["role"], "content": prompt}, *many[at + 1 :]]}
    if not always or at is not None:
        return body
    if place:
        return body | {place: prompt}
    return body | {listed: [{"role": "system", "content": prompt}, *many]} if many else body


@dataclass(slots=True)
class PlayedRun:
    """One run of one side. ``value``: from 0 to 1; None: it was stopped or failed. ``recorded``: the other side alone
    has a prompt of its own. The agent's may be that very one, so this side gets the record's.
    """

    side: Side
    episode: EpisodeDetail
    name: str
    tools: RecordedTools
    budget: ReplayBudget
    recorded: bool = False
    value: float | None = None
    stopped: str | None = None
    failed: str | None = None
    answered: bool = False
    """A call of it was."""
    refusal: str | None = None
    """What its latest call got instead of an answer."""
    recorder: str | None = None
    """The proxy that stored its calls."""

    def body(self, body: JsonObject, path: str = "chat/completions") -> JsonObject:
        """A request of the agent as the side gets it."""
        call, own = self.episode.call_list[0], self.side.system
        prompt = recorded_prompt(self.episode) if self.recorded else own
        if prompt is not None:
            body = with_prompt(body, path, prompt, always=own is not None)
        return body | self.side.sampling | {"model": self.side.model or call.trained or call.model}


Play = Callable[[EpisodeDetail, str, RecordedTools], Awaitable[float]]
"""(the recorded episode, a base URL that ends in /v1, its tools) → from 0 to 1. Raises ``RunStopped``."""


class RunServer:
    """Sides on this machine: ``{url}/{run}/v1`` is one run's, and ``{url}/{run}/tools`` its recorded tools."""

    def __init__(self, key: str | None) -> None:
        self.runs: dict[str, PlayedRun] = {}
        self.key = key
        self.http = httpx.Client(timeout=CALL_TIMEOUT_S, trust_env=False)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextlib.contextmanager
    def serving(self) -> Iterator[RunServer]:
        thread = threading.Thread(target=self._server.serve_forever, name="runs", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            self.http.close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class RunHandler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: a report is what people read."""

            def do_GET(self) -> None:
                self._answer(b"")

            def do_POST(self) -> None:
                self._answer(self.rfile.read(int(self.headers.get("content-length") or 0)))

            def _answer(self, body: bytes) -> None:
                _, name, rest = self.path.split("/", 2) if self.path.count("/") > 1 else ("", "", "")
                run = server.runs.get(name)
                try:
                    if run is None:
                        self._send(404, {"error": {"message": "no such run"}})
                    elif rest == "tools":
                        asked = json.loads(body)
                        self._send(200, {"result": run.tools.result(asked["name"], asked.get("arguments"))})
                    else:
                        server.forward(self, run, rest.removeprefix("v1/"), body)
                except RunStopped as e:
                    assert run is not None
                    run.stopped = str(e)
                    self._send(409, {"stopped": str(e)})
                except (ValueError, LookupError, TypeError, RecursionError) as e:
                    self._send(400, {"error": {"message": f"this cannot be read: {e!r}"}})
                except httpx.HTTPError as e:
                    self._send(502, {"error": {"message": f"{type(e).__name__}: {e}"}})

            def _send(self, status: int, body: JsonObject) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        return RunHandler

    def forward(self, client: BaseHTTPRequestHandler, run: PlayedRun, path: str, body: bytes) -> None:
        """A call of the agent, and what the side answers as it comes."""
        headers = {Headers.SPLIT: "eval", Headers.EPISODE: run.name, "x-slipstream-tag-replay": run.side.name[:100]}
        # what is forgotten of the one is forgotten of the other
        headers[f"x-slipstream-tag-{REPLAY_OF_TAG}"] = replay_of(run.episode.key, run.episode.id)
        headers |= {Headers.TASK: run.episode.task} if run.episode.task else {}
        headers |= {"authorization": f"Bearer {self.key}"} if self.key else {}
        sent = json.dumps(run.body(json.loads(body), path)).encode() if body else None
        headers |= {"content-type": "application/json"} if sent else {}
        url = f"{run.side.base}/{path}"
        with self.http.stream(client.command, url, content=sent, headers=headers) as answer:
            if answer.headers.get(Headers.EPISODE) == run.name:
                run.recorder = run.side.base.removesuffix("/v1")
            client.send_response(answer.status_code)
            client.send_header("content-type", answer.headers.get("content-type", "application/json"))
            client.send_header("transfer-encoding", "chunked")
            client.end_headers()
            whole = b""
            for part in answer.iter_bytes():
                whole += part if len(whole) < 2**20 else b""
                client.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            client.wfile.write(b"0\r\n\r\n")
        if answer.status_code < 400:
            run.answered = True
        else:
            run.refusal = f"{answer.status_code} {whole[:100].decode(errors='replace')}"
        with contextlib.suppress(ValueError, TypeError, AttributeError, RecursionError):
            run.budget.spent += tokens_of(json.loads(whole), "total_tokens")


class RunReplayer:
    """Plays each case's task on both sides, ``samples`` times."""

    def __init__(
        self, candidate: Side, control: Side, play: Play, *, samples: int, concurrency: int, budget: ReplayBudget,
        key: str | None = None,
    ) -> None:  # fmt: skip
        self.candidate, self.control, self.play = candidate, control, play
        self.samples, self.budget, self.key = samples, budget, key
        self.stopped: str | None = None
        self.note: str | None = None
        """Where a side had no prompt but the agent's."""
        self._gate = asyncio.Semaphore(concurrency)
        self._concurrency = concurrency
        self._run = uuid.uuid4().hex[:12]

    async def run(self, cases: Sequence[ReplayCase]) -> list[tuple[ReplayCase, CasePair | None]]:
        """→ Those that were begun, in their order. Where nothing can be compared, the case's error says why."""
        found: dict[int, CasePair | None] = {}
        with RunServer(self.key).serving() as server:

            async def play(case: ReplayCase) -> None:
                found[id(case)] = await self._case(server, case)

            try:
                begun, self.stopped = await self.budget.begin(cases, self._concurrency, play)
            except* ConfigError as wrong:
                raise wrong.exceptions[0] from None
        self.note = self._agents_prompt(begun)
        return [(case, found[id(case)]) for case in begun]

    def _agents_prompt(self, cases: Sequence[ReplayCase]) -> str | None:
        bare = [side for side in (self.candidate, self.control) if side.system is None]
        if len(bare) == 2:
            return "Both sides got your agent's own system prompt."
        without = sum(recorded_prompt(case.episode) is None for case in cases)
        if not bare or not without:
            return None
        name = "candidate" if bare[0] is self.candidate else "control"
        return f"{without} cases were recorded without a system prompt. Their {name} got your agent's own."

    async def _case(self, server: RunServer, case: ReplayCase) -> CasePair | None:
        runs = [
            [self._run_of(side, case, f"{mark}{n}") for n in range(self.samples)]
            for mark, side in (("a", self.candidate), ("b", self.control))
        ]
        await asyncio.gather(*(self._played(server, run) for side in runs for run in side))
        values: list[tuple[float, float]] = []
        for candidate, control in zip(*runs, strict=True):
            bad = candidate.stopped or control.stopped or (candidate.failed and control.failed)
            if bad:
                case.error = case.error or bad
                continue
            # a run that one side alone breaks is its failure, whichever side
            values.append((candidate.value or 0.0, control.value or 0.0))
        # where the control hardly ever ran there is nothing to compare with
        failed = [run.failed for run in runs[1] if run.failed]
        if not values or 2 * len(failed) > self.samples:
            case.error = case.error or failed[0]
            return None
        case.error = None
        e, (candidate_mean, control_mean) = case.episode, (fmean(side) for side in zip(*values, strict=True))
        why = (_came_to(runs[0]), _came_to(runs[1]))
        return CasePair(e.id, candidate_mean, control_mean, 0, place=f"{e.key}/{e.id}", why=why)

    def _run_of(self, side: Side, case: ReplayCase, mark: str) -> PlayedRun:
        name = f"replay-{self._run}-{mark}-{uuid.uuid4().hex[:12]}"
        recorded = side.system is None and any(s.system is not None for s in (self.candidate, self.control))
        return PlayedRun(side, case.episode, name, RecordedTools(case.episode), self.budget, recorded)

    async def _played(self, server: RunServer, run: PlayedRun) -> None:
        server.runs[run.name] = run
        try:
            async with self._gate:
                value = await self.play(run.episode, f"{server.url}/{run.name}/v1", run.tools)
            if not isinstance(value, int | float) or not 0 <= value <= 1:
                raise ConfigError(f"a run gave {value!r}: it is to give a number from 0 to 1")
            if run.refusal is not None and not run.answered:  # what it is worth says nothing of the model
                run.failed = f"the model answered no call of a run, the last one got {run.refusal}"
            else:
                run.value = float(value)
        except RunStopped as e:
            run.stopped = str(e)
        except ConfigError:
            raise
        except Exception as e:
            run.failed = f"a run failed: {type(e).__name__}: {e}"[:200]
        finally:
            del server.runs[run.name]
            if run.recorder is not None:
                await asyncio.to_thread(self._end, run.recorder, run.name)

    def _end(self, recorder: str, episode: str) -> None:
        """The run keeps no version in the engines any longer. Without that it would until it counts as idle."""
        try:
            with Client(recorder, self.key) as client:
                client.done(episode)
        except SlipstreamError as e:
            log.warning("%s stays open until it counts as idle: %s", episode, e)


def _came_to(runs: Sequence[PlayedRun]) -> str:
    """A side's runs of a case: the reward of each, and why those without one have none."""
    values = ", ".join(f"{run.value:g}" for run in runs if run.value is not None)
    whys = Counter(run.stopped or run.failed for run in runs if run.value is None)
    lost = [f"{n} times: {why}" if n > 1 else str(why) for why, n in whys.most_common(2)]
    return "; ".join([*([f"rewards {values}"] if values else []), *lost]).replace("\n", " ")


def by_function(function: Callable[..., object]) -> Play:
    """A user's ``function(episode, base_url)`` or ``function(episode, base_url, tools)``, a coroutine or not."""
    count = len(inspect.signature(function).parameters)

    async def play(episode: EpisodeDetail, base_url: str, tools: RecordedTools) -> float:
        given = (episode, base_url, tools)[:count]
        if inspect.iscoroutinefunction(function):
            return await function(*given)  # type: ignore[no-any-return]
        return await asyncio.to_thread(function, *given)  # type: ignore[arg-type]

    return play


def by_command(command: str) -> Play:
    """A shell command. Its last line is a number, or an object with ``reward``."""

    async def play(episode: EpisodeDetail, base_url: str, tools: RecordedTools) -> float:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "task.json"
            file.write_text(json.dumps(episode.model_dump(mode="json"), ensure_ascii=True))
            url = base_url.removesuffix("/v1")
            env = {
                "OPENAI_BASE_URL": base_url,
                "SLIPSTREAM_RUN_TASK": str(file),
                "SLIPSTREAM_TOOLS_URL": f"{url}/tools",
            }
            env |= {"OPENAI_API_KEY": os.environ.get("OPENAI_API_KEY") or "replay"}
            process = await asyncio.create_subprocess_shell(
                command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ, **env}
            )
            try:
                out, err = await asyncio.wait_for(process.communicate(), CALL_TIMEOUT_S)
            except TimeoutError:
                process.kill()
                raise RuntimeError(f"it took more than {CALL_TIMEOUT_S:g} s") from None
        if process.returncode:
            raise RuntimeError(f"exit status {process.returncode}: {err.decode(errors='replace')[-150:].strip()}")
        last = json.loads(out.decode().strip().splitlines()[-1])
        return last.get("reward") if isinstance(last, dict) else last  # type: ignore[return-value]

    return play


def by_record(score: Callable[[CallRecord, Reply], float]) -> Play:
    """The run from its first prompt on, with the recorded tools, until the model calls none. ``score``: of its last
    message, beside the recorded run's last call.
    """

    async def play(episode: EpisodeDetail, base_url: str, tools: RecordedTools) -> float:
        first, last = episode.call_list[0], episode.call_list[-1]
        messages = list(first.messages)
        # on this machine and without TLS: certificates take longer to read than a call does
        async with httpx.AsyncClient(timeout=CALL_TIMEOUT_S, trust_env=False, verify=False) as http:  # noqa: S501
            for _ in range(MAX_RUN_CALLS):
                body: JsonObject = {"messages": messages} | ({"tools": first.tools} if first.tools else {})
                sampling = {
                    k: v for k, v in first.sampling.items() if k in ("temperature", "top_p", "max_tokens") and v
                }
                answer = await http.post(f"{base_url}/chat/completions", json=body | sampling)
                answer.raise_for_status()
                message: JsonObject = answer.json()["choices"][0]["message"]
                if not (calls := message.get("tool_calls")):
                    return score(last, message)
                messages.append(message)
                for call in calls:
                    result = tools.result(call["function"]["name"], call["function"].get("arguments"))
                    messages.append({"role": "tool", "tool_call_id": call.get("id"), "content": result})
        raise RunStopped(f"it did not end after {MAX_RUN_CALLS} calls")

    return play
