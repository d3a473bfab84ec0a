from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.support import until
from tests.support.server import Server

from slipstream.client import AsyncClient
from slipstream.operate.run.watch import Quiet, Watch, sparkline, watch

STATUS = {"version": "1", "started": 1.0, "models": {"m": "m@1"}}
BLOCK = {
    "stage": "trainer",
    "cause": "paused",
    "count": 1,
    "text": "training is paused by ann",
    "fix": "slipstream resume",
    "severity": "blocks",
}


def point(version: int, mean: float) -> dict[str, object]:
    fields = {
        "adapter": f"m@{version}",
        "version": version,
        "start": 1.0,
        "end": 2.0,
        "n": 9,
        "mean": mean,
        "low": 0.0,
        "high": 1.0,
    }
    return {**fields, "success": mean, "success_low": 0.0, "success_high": 1.0}


async def test_what_is_new_is_said_once(server: Server) -> None:
    said: list[str] = []
    event = {
        "id": 4,
        "at": 1e9,
        "kind": "step",
        "data": {"step": 3, "adapter": "m@3", "batch": "b", "reward": 0.5, "kl": 0.002},
    }
    server.on(
        "GET",
        "/learning",
        {"points": [point(1, 0.9), point(0, 0.2)], "success_from": 0.5, "left_out": 0, "bucket": None},
    )
    server.on("GET", "/training/events", "")
    server.on("GET", "/status", {**STATUS, "funnel": {"lines": [BLOCK]}, "headlines": {"m": "held-out 0.20 → 0.90"}})
    async with AsyncClient(server.url) as client:
        watch = Watch(client, said.append)
        for _ in range(2):
            await watch.look()
        assert said == ["! training is paused by ann → slipstream resume", "▁█ held-out 0.20 → 0.90"]
        server.on("GET", "/training/events", json.dumps(event) + "\n")
        await watch.look()
        assert said[2][9:] == "step 3 m@3: reward 0.5, kl 0.002"
        server.on("GET", "/training/events", "")
        await watch.look()
        assert server.asked("GET", "/slipstream/v1/training/events")[-1].query == {"after": ["4"]}
        assert len(said) == 3


async def test_a_version_is_told_when_it_is_made_and_when_it_serves(server: Server) -> None:
    said: list[str] = []
    made: dict[str, object] = {"adapter": "m@3", "state": "loading", "step": 3}
    serves: dict[str, object] = {"adapter": "m@3", "state": "candidate", "control": "m"}
    stepped: dict[str, object] = {"step": 3, "adapter": "m@3", "reward": 0.5}
    learning = {"points": [point(0, 0.2)], "success_from": 0.5, "left_out": 0, "bucket": None}
    server.on("GET", "/learning", learning)

    async def look(watching: Watch, headline: str, *events: tuple[str, dict[str, object]]) -> list[str]:
        lines = [json.dumps({"id": 4, "at": 1e9, "kind": kind, "data": data}) for kind, data in events]
        server.on("GET", "/training/events", "".join(f"{line}\n" for line in lines))
        server.on("GET", "/status", {**STATUS, "funnel": {"lines": []}, "headlines": {"m": headline}})
        said.clear()
        await watching.look()
        return [line[9:] if line[:1].isdigit() else line for line in said]

    async with AsyncClient(server.url) as client:
        watching = Watch(client, said.append)
        assert await look(watching, "in 12 min, 2 versions") == ["▁ in 12 min, 2 versions"]
        steps = (("adapter", made), ("step", stepped))
        assert await look(watching, "in 13 min, 2 versions", *steps) == ["step 3 m@3: reward 0.5"]
        told = ["m@3 serves new episodes, on trial beside m", "▁ in 14 min, 3 versions"]
        assert await look(watching, "in 14 min, 3 versions", ("adapter", serves)) == told


async def test_a_proxy_that_goes_away_is_said_once() -> None:
    said: list[str] = []
    async with AsyncClient("http://127.0.0.1:9") as client:
        watch = Watch(client, said.append)
        await watch.look()
        await watch.look()
    assert len(said) == 1 and said[0].startswith("! the proxy does not answer")


def test_an_engine_that_is_ended_on_purpose_shows_no_errors(tmp_path: Path) -> None:
    quiet = Quiet(tmp_path / "up.log")
    line = "(APIServer pid=7) ERROR 12-01 01:00:00 [async_llm.py:708] AsyncLLM output_handler failed."
    assert quiet("engine", line) == line
    quiet.ending = lambda: True
    assert quiet("engine", line) is None
    assert quiet("trainer", "01:00:00 error the last batch is not told") is not None
    assert (tmp_path / "up.log").read_text().count("output_handler") == 2, "the log has all of it"


def test_a_quiet_log_holds_what_a_person_should_see(tmp_path: Path) -> None:
    quiet = Quiet(tmp_path / "data" / "up.log")
    lines = (
        'INFO:     127.0.0.1:5 - "GET /health HTTP/1.1" 200 OK', "12:00:00 info    loaded m@1", "(EngineCore) INFO 11-25 12:00:00 [core.py:1] ready",
        "12:00:01 error   the store is away", "  because", "12:00:02 info    again",
        "  not of an error", "WARNING 11-25 12:00:00 [lora.py:1] slow",
    )  # fmt: skip
    seen = [said for line in lines if (said := quiet("engine", line))]
    assert [s.split()[0] for s in seen] == ["12:00:01", "because", "WARNING"]
    assert (tmp_path / "data" / "up.log").read_text().splitlines() == [f"engine   | {line}" for line in lines]
    assert not (tmp_path / "data" / "up.log").stat().st_mode & 0o077, "a line may quote the model"


@pytest.mark.parametrize("head", ["", "(APIServer pid=7) ERROR 11-25 12:00:0{n} [serving_chat.py:11] "])
def test_a_traceback_is_one_line_that_says_where_it_stands(tmp_path: Path, head: str) -> None:
    quiet = Quiet(tmp_path / "up.log")
    lines = (
        "Traceback (most recent call last):", '  File "json.py", line 1, in loads', "    x", "JSONDecodeError: Expecting value", "",
        "During handling of the above exception, another exception occurred:", "", "Traceback (most recent call last):",
        '  File "hermes.py", line 1', "pydantic.ValidationError: 1 error for Tool", "  name",
    )  # fmt: skip
    told = "JSONDecodeError: Expecting value (its traceback: " + str(tmp_path / "up.log") + ")"
    for expected in ([told], []):  # the same again is not said again
        raw = [head.format(n=n % 9) + line for n, line in enumerate(lines)] + ["INFO:     ready"]
        assert [said for line in raw if (said := quiet("engine", line))] == expected
    assert quiet("judge", "Traceback (most recent call last):") is None
    assert quiet("engine", "WARNING 11-25 12:00:00 [lora.py:1] slow"), "another child's lines go on"
    assert quiet("judge", "OSError: no") == f"OSError: no (its traceback: {tmp_path / 'up.log'})"


def test_the_doctors_own_questions_show_no_errors(tmp_path: Path) -> None:
    quiet = Quiet(tmp_path / "up.log")
    head = "(EngineCore pid=7) ERROR 11-25 12:00:00 [core.py:9] "
    assert quiet("engine", head + "WorkerProc hit an exception.") is None
    asked = ("No adapter found for /nonexistent/slipstream-doctor", "LoRA rank 4096 is greater than max_lora_rank 16.")
    for why in asked:
        lines = (
            "Invocation of add_lora method failed",
            "Traceback (most recent call last):",
            '  File "x.py", line 1',
            f"ValueError: {why}",
        )
        assert not [said for line in lines if (said := quiet("engine", head + line))]
    told = ("Traceback (most recent call last):", '  File "x.py", line 1', "ValueError: LoRA rank 64 is greater")
    assert [said for line in told if (said := quiet("engine", head + line))]
    assert "slipstream-doctor" in quiet.log.read_text(), "the log has them"


def test_a_warning_of_each_call_is_shown_once(tmp_path: Path) -> None:
    quiet = Quiet(tmp_path / "up.log")
    said = []
    for n in range(20):
        for process in ("APIServer pid=7", "EngineCore pid=8"):
            head = f"({process}) WARNING 11-25 12:00:{n:02} "
            told = (f"Tool call 'f{n}' has arguments that are no JSON", "    (more of it)")
            said += [text for t in told if (text := quiet("engine", f"{head}[chat_utils.py:2201] {t}"))]
        said += [text for line in ("12:00:01 warning skipped",) if (text := quiet("trainer", line))]
    other = "(APIServer pid=7) WARNING 11-25 12:00:30 [chat_utils.py:7] another"
    assert (len(said), said[0][-3:], said[1][-12:], quiet("engine", other)) == (22, "SON", "(more of it)", other)
    assert quiet.log.read_text().count("no JSON") == 40, "the log has them"


def test_a_parsers_errors_do_not_drown_other_lines(tmp_path: Path) -> None:
    quiet = Quiet(tmp_path / "up.log")
    said = []
    for n in range(20):
        head = f"(APIServer pid=7) ERROR 11-25 12:00:{n:02} [hermes_tool_parser.py:11] "
        lines = (
            "Error in extracting tool call from response.",
            "Traceback (most recent call last):",
            f"JSONDecodeError: char {n}",
        )
        said += [text for line in lines if (text := quiet("engine", head + line))]
        said += [text for line in ("12:00:01 error   step 3 failed",) if (text := quiet("trainer", line))]
    assert len(said) == 21 and said.count("12:00:01 error   step 3 failed") == 20
    assert said[0].startswith("engine's hermes_tool_parser.py cannot read what the model wrote")


async def test_a_proxy_that_is_there_at_the_second_look_was_only_starting(server: Server) -> None:
    said: list[str] = []
    server.on("GET", "/training/events", "")
    server.on("GET", "/learning", {"points": [], "success_from": 0.5, "left_out": 0, "bucket": None})
    async with AsyncClient(server.url) as client:
        watch = Watch(client, said.append)
        server.on(
            "GET", "/status", {"error": {"type": "unavailable", "message": "the control plane does not answer"}}, 503
        )
        await watch.look()
        server.on("GET", "/status", STATUS)
        await watch.look()
    assert said == []


def test_a_curve_in_a_line() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█" and sparkline([]) == "" and sparkline([0.3, 0.3]) == "▁▁"


async def test_the_worst_comes_first_and_what_slows_is_said_once(server: Server) -> None:
    said: list[str] = []
    slow = BLOCK | {"cause": "skipped", "text": "a batch was skipped", "fix": None}
    lines = [BLOCK, slow | {"severity": "slows"}, slow | {"severity": "remark", "cause": "x"}]
    server.on("GET", "/training/events", "")
    server.on("GET", "/learning", {"points": [], "success_from": 0.5, "left_out": 0, "bucket": None})
    async with AsyncClient(server.url) as client:
        watch = Watch(client, said.append)
        for shown in (lines, [], lines):
            server.on("GET", "/status", {**STATUS, "funnel": {"lines": shown}})
            await watch.look()
    paused = "! training is paused by ann → slipstream resume"
    assert said == [paused, "- a batch was skipped", "over: training is paused by ann", paused]


async def test_a_refusal_at_the_start_blinds_nobody(server: Server) -> None:
    said: list[str] = []
    server.on("GET", "/status", {"error": {"type": "unauthorized", "message": "no API key"}}, 401)
    async with AsyncClient(server.url) as client:
        watching = asyncio.create_task(watch(client, said.append, period=0.02))
        async with asyncio.timeout(20):
            await until(lambda: said)
            await asyncio.sleep(0.2)
            assert len(said) == 1 and "no API key" in said[0], "it is said once"
            server.on("GET", "/training/events", "")
            server.on("GET", "/learning", {"points": [], "success_from": 0.5, "left_out": 0, "bucket": None})
            server.on("GET", "/status", {**STATUS, "funnel": {"lines": [BLOCK]}})
            await until(lambda: len(said) >= 2)
        watching.cancel()
    assert said[1].startswith("! training is paused")
