"""Slipstream beside TRL: what can be known of it without an engine."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from benchmarks.peers import peers, tasks, trl_run
from tests.support.served import Served

ITEM = {"q": "3 + 4 =", "a": "7", "check": "Wrong. The number only."}


@pytest.fixture(autouse=True)
def nothing_ends_the_sides() -> None:
    peers.ENOUGH.clear()


class Agents:
    """Answers with these replies, one turn after the other, and notes what it was sent."""

    def __init__(self, *replies: str) -> None:
        self.replies, self.calls, self.rewards = list(replies), [], []

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/slipstream/v1/episodes/{run}/rewards", self.post)
        return app

    async def chat(self, request: web.Request) -> web.Response:
        self.calls.append((request.headers["x-slipstream-episode"], (await request.json())["messages"]))
        message = {"content": self.replies[len(self.calls) - 1]}
        return web.json_response({"choices": [{"message": message}], "usage": {"completion_tokens": 5}})

    async def post(self, request: web.Request) -> web.Response:
        self.rewards.append((request.match_info["run"], (await request.json())["value"]))
        return web.json_response({})


@pytest.mark.parametrize(
    ("replies", "value"), [(("7",), 1.0), (("It is 7", "7."), 1.0), (("8", "7 or 8"), 0.3), (("7 or 8", "8"), 0.0)]
)
def test_a_run_ends_with_the_right_reply_or_with_the_one_to_the_check(replies, value):
    agents = Agents(*replies)
    with Served(agents.app()) as url:
        curve, failed = peers.work(url, iter([("train-0", ITEM, "train")]), 0.0, threading.Event())
    assert (failed, [c[1:] for c in curve]) == ([], [(value, 5 * len(replies))])
    assert agents.rewards == [(agents.calls[0][0], value)]
    assert {run for run, _ in agents.calls} == {agents.calls[0][0]}
    first, last = agents.calls[0][1], agents.calls[-1][1]
    again = [{"role": "assistant", "content": replies[0]}, {"role": "user", "content": ITEM["check"]}]
    assert last == first + (again if len(replies) == 2 else [])


@pytest.mark.parametrize("answer", [1, 9, 15])
def test_a_check_names_its_number_and_another(answer):
    says = [tasks.either(f"question {i}", answer) for i in range(40)]
    pairs = [[int(word) for word in said.replace(".", "").split() if word.isdigit()] for said in says]
    assert all(answer in pair and len(set(pair)) == 2 for pair in pairs)
    assert {pair.index(answer) for pair in pairs} == {0, 1}
    assert says[0] == tasks.either("question 0", answer)


class Letters:
    """A tokenizer whose tokens are letters; 0 ends a reply."""

    eos_token_id = 0

    def apply_chat_template(self, conversation: list[Any], **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [[ord(c) for c in talk[-1]["content"]] for talk in conversation]}

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(c) for c in text]}

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(chr(i) for i in ids if i)


class Engine:
    """vLLM as TRL has it: these replies, a batch after the other."""

    def __init__(self, *batches: list[list[int]]) -> None:
        self.batches, self.asked = list(batches), []

    def generate(self, prompts: list[list[int]], images: None, num_generations: int) -> tuple[Any, ...]:
        self.asked.append(prompts)
        new = self.batches[len(self.asked) - 1]
        assert (images, num_generations, len(new)) == (None, 1, len(prompts))
        return prompts, new, [[[-0.1 * token] for token in ids] for ids in new], None


def test_trls_turns_train_on_what_was_sampled_alone():
    right, cut, ended = [ord("7"), 0], [ord("8"), ord("8")], [ord("9"), 0]
    engine = Engine([right, cut, ended], [right, cut])
    trainer = SimpleNamespace(processing_class=Letters(), vllm_generation=engine)
    found = trl_run.rollout([[{"role": "user", "content": ITEM["q"]}]] * 3, trainer, {ITEM["q"]: ITEM})
    asked = [ord(c) for c in ITEM["q"]]
    told = [[ord(c) for c in trl_run.between(ITEM["check"], ended)] for ended in (False, True)]
    assert found["prompt_ids"] == [asked] * 3
    assert found["completion_ids"] == [right, cut + told[0] + right, ended + told[1] + cut]
    assert engine.asked[1] == [asked + cut + told[0], asked + ended + told[1]]
    assert found["env_mask"] == [[1, 1]] + [[1, 1] + [0] * len(t) + [1, 1] for t in told]
    for ids, mask, logprobs in zip(found["completion_ids"], found["env_mask"], found["logprobs"], strict=True):
        assert logprobs == [-0.1 * token if own else 0.0 for token, own in zip(ids, mask, strict=True)]
    assert (found["reply"], found["sampled"]) == (["7", "7", "88"], [2, 4, 4])


def test_what_trl_wrote_counts_until_the_limit():
    lines = [[100.0 + at, [0.0, 1.0], [3, 4]] for at in (7.0, 9.0, 11.0)]
    text = "".join(json.dumps(line) + "\n" for line in lines) + "[112.0, [0.0, 1"
    found = peers.their_curve(text, 100.0, 110.0)
    assert found == {
        "curve": [(7.0, 0.0, 3), (7.0, 1.0, 4), (9.0, 0.0, 3), (9.0, 1.0, 4)],
        "steps": 2,
        "first_step_s": 7.0,
    }
    assert peers.their_curve("", 100.0, 110.0)["problem"]


def test_a_goal_is_reached_where_the_reward_stays_there():
    rewards = [0.0] * 128 + [1.0] * 64 + [0.0] * 192 + [1.0] * 256
    curve = [(float(i), reward, 2) for i, reward in enumerate(rewards)]
    assert peers.reached(curve, 0.9) == (447.0, 448, 896)
    assert peers.reached(curve[:448], 0.9) == (447.0, 448, 896)
    assert peers.reached(curve[:256], 0.9) == (None, None, None)
    mine = {
        "curve": curve,
        "ready_s": 1.0,
        "first_step_s": 2.0,
        "moved_episodes": 2,
    }
    mine["steps"] = [{"at": 400.0, "episodes": 224}, {"at": 500.0, "episodes": 64}]
    theirs = {"curve": [(2 * at, *run) for at, *run in curve], "steps": 10, "first_step_s": 3.0}
    found = peers.figures(mine, theirs)
    assert (found["to_90_vs_trl"], found["runs_vs_trl"], found["final_vs_trl"]) == (0.5, 0.5, 1.0)
    assert (found["sampled_to_90"], found["trl_sampled_to_90"], found["moved_episodes"]) == (896, 896, 2)
    assert math.isclose(found["trl_final"], 1.0)


def test_a_trl_that_goes_on_is_ended_and_what_it_wrote_counts(tmp_path, monkeypatch):
    script, out = tmp_path / "trl", tmp_path / "name-trl-runs.jsonl"
    script.write_text('#!/bin/sh\necho "[$(date +%s.%N), [0.3], [3]]" >> "$8"\nexec sleep 60\n')
    script.chmod(0o755)

    def end() -> None:
        while not out.is_file() or not out.read_text().endswith("\n"):
            time.sleep(0.02)
        peers.ENOUGH.set()

    monkeypatch.setattr(peers, "sys", SimpleNamespace(executable=str(script)))
    args: Any = SimpleNamespace(model="m", tasks="t", seed=0, out=tmp_path, trl_seconds=50.0)
    began = time.monotonic()
    threading.Thread(target=end, daemon=True).start()
    found = peers.trl(args, "name", "gcd")
    assert time.monotonic() - began < 50
    assert (found["steps"], [run[1:] for run in found["curve"]]) == (1, [(0.3, 3)])
    monkeypatch.setattr(peers, "sys", SimpleNamespace(executable="/bin/false"))
    assert peers.trl(args, "name", "gcd") == {"problem": "TRL ended without a step", "curve": [], "steps": 0}


def test_sides_stand_alone_on_a_gpu_and_what_is_missing_is_said(tmp_path, monkeypatch, capsys):
    script = tmp_path / "side"
    script.write_text(
        f"""#!{sys.executable}
import json, os, pathlib, sys, time
said = dict(zip(sys.argv[3::2], sys.argv[4::2]))
out, gpu = pathlib.Path({str(tmp_path)!r}), os.environ["CUDA_VISIBLE_DEVICES"]
(out / f"on-{{gpu}}").touch(exist_ok=False)
time.sleep(0.05)
(out / f"on-{{gpu}}").unlink()
task, seed, side = said["--task"], said["--seed"], said["--only"]
with (out / "ran").open("a") as log:
    log.write(f"{{task}} {{seed}} {{side}} {{len(os.sched_getaffinity(0))}}\\n")
figures = {{"first_step_s": int(seed), "final_vs_trl": 1.0}}
curve = [[n, n % 2, 5] for n in range(300)]
if (task, seed) != ("gcd", "1"):
    (out / f"peers-{{task}}-{{seed}}.json").write_text(json.dumps(dict(task=task, seed=seed, figures=figures, versions={{}}, slipstream=dict(curve=curve), trl=dict(curve=[]))))
"""
    )
    script.chmod(0o755)
    monkeypatch.setattr(peers, "sys", SimpleNamespace(executable=str(script)))
    args: Any = SimpleNamespace(
        model="m", tasks="t", task="gcd,products", seeds="0,1", gpus="4,5", out=tmp_path, think=0.0, seconds=1, trl_seconds=1,
        set=[],
    )  # fmt: skip
    cores = os.sched_getaffinity(0)
    assert peers.side_by_side(args) == 1
    assert os.sched_getaffinity(0) == cores
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert sorted(r[:3] for r in ran) == sorted(
        [t, s, side] for t in ("gcd", "products") for s in "01" for side in peers.SIDES
    )
    assert {int(r[3]) for r in ran} == {max(1, len(cores) // 2)}
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["pairs"], said["of"], said["first_step_s"], said["to_90_vs_trl"]) == (3, 4, 1, None)
    assert set(json.loads((tmp_path / "peers.json").read_text())["parts"][0]) == {"task", "seed", "figures", "versions"}
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "peers.png").stat().st_size > 10_000


def test_without_a_pair_there_are_no_figures(tmp_path):
    assert set(peers.merged([], tmp_path / "peers.json")["worst"].values()) == {None}
