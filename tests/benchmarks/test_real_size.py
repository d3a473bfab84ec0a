"""The loop at a real size: what can be known of it without a GPU."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import threading
from argparse import Namespace
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
from aiohttp import web
from tests.support.served import Served

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "curves"))

import real_model
import real_size
import real_watch
import worlds
from common.hermes import encode
from common.pretrain import loss_of, make_network, pack
from real_agents import Worker
from real_watch import Watch, busy_share

ALL = tuple(worlds.WORLDS)


def test_one_tokenizer_has_a_token_for_every_word_of_every_world():
    tokenizer = worlds.tokenizer_of(ALL)
    letters = {encode(tokenizer, chr(i))[0] for i in range(98, 123)} - {
        encode(tokenizer, w)[0] for w in worlds.words_of(ALL)
    }
    for name, world in worlds.WORLDS.items():
        rows = list(world.rows(tokenizer, 3, 12))
        assert rows, name
        assert not letters & {token for row in rows for token in row.ids}, name
        assert all(any(row.own) for row in rows), name


def test_batches_hold_every_row_once_and_no_more_than_fits():
    rows = worlds.rows_of(ALL, 1, 60)
    found = real_model.batches(rows, 1024, seed=2)
    assert sorted(id(row) for batch in found for row in batch) == sorted(map(id, rows))
    for batch in found:
        lengths = [len(row.ids) for row in batch]
        assert max(lengths) * len(lengths) <= 1024
        assert max(lengths) == lengths[0] or max(lengths) - min(lengths) < 100


def test_a_network_with_a_larger_vocabulary_reads_the_batches_for_some_seconds():
    names = ("inbox",)
    tokenizer = worlds.tokenizer_of(names)
    shape = {"layers": 1, "hidden": 64, "intermediate": 64, "heads": 1}
    model = make_network(tokenizer, worlds.words_of(names), **shape, vocabulary=512)
    assert model.get_input_embeddings().weight.shape[0] == 512 > len(tokenizer)
    data = [pack(batch) for batch in real_model.batches(worlds.rows_of(names, 0, 24), 512, 0)]
    before = [p.clone() for p in model.parameters()]
    figures = real_model.train(model, made(data), [], lr=1e-3, seconds=0.01, device="cpu")
    assert figures["steps"] >= 1
    assert figures["tokens"] >= data[0].ids.numel()
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def made(data):
    done = Future()
    done.set_result(data)
    return done


def test_the_lessons_are_read_first(monkeypatch):
    names = ("retail",)
    tokenizer = worlds.tokenizer_of(names)
    model = make_network(tokenizer, worlds.words_of(names), layers=1, hidden=64, intermediate=64, heads=1)
    lessons, data = ([pack(rows)] for rows in (worlds.lessons_of(names, 0, 4), worlds.rows_of(names, 0, 8)))
    read: list[int] = []
    monkeypatch.setattr(real_model, "moved", lambda batch, device: read.append(id(batch)) or batch)
    monkeypatch.setattr(real_model.time, "monotonic", iter(range(1000)).__next__)
    figures = real_model.train(model, made(data), lessons, lr=1e-3, seconds=20.0, device="cpu", lesson_share=0.15)
    first = read.index(id(data[0]))
    assert set(read[:first]) == {id(lessons[0])}
    assert set(read[first:]) == {id(data[0])}
    assert 0 < first / len(read) <= 0.25
    assert figures["of_lessons"] == first


def test_the_lessons_are_read_until_the_rows_are_made(monkeypatch):
    names = ("retail",)
    tokenizer = worlds.tokenizer_of(names)
    model = make_network(tokenizer, worlds.words_of(names), layers=1, hidden=64, intermediate=64, heads=1)
    lessons, data = ([pack(rows)] for rows in (worlds.lessons_of(names, 0, 4), worlds.rows_of(names, 0, 8)))
    making, read = Future(), []

    def noted(batch, device):
        read.append(id(batch))
        if len(read) == 12:
            making.set_result(data)
        return batch

    monkeypatch.setattr(real_model, "moved", noted)
    monkeypatch.setattr(real_model.time, "monotonic", iter(range(1000)).__next__)
    figures = real_model.train(model, making, lessons, lr=1e-3, seconds=20.0, device="cpu", lesson_share=0.15)
    assert figures["of_lessons"] == 12
    assert set(read[12:]) == {id(data[0])}
    assert len(read) - 12 == 17  # the clock stood for nine of the twelve


def test_what_was_learned_is_told_of_each_world():
    names = ("retail", "mail")
    tokenizer = worlds.tokenizer_of(names)
    shape = {"layers": 3, "hidden": 256, "intermediate": 64, "heads": 4}
    model = real_model.made_on("cpu", tokenizer, worlds.words_of(names), **shape, reading=True)
    found = real_model.learned(model, names, 2048, "cpu", count=16)
    assert set(found) == set(names)
    for losses in found.values():
        assert set(losses) == {"conversations", "lessons"}
        assert all(1.0 < loss < 12.0 for loss in losses.values()), "an untrained network knows nothing"


@pytest.mark.slow
def test_compiled_layers_give_the_same_loss():
    names = ("retail",)
    tokenizer = worlds.tokenizer_of(names)
    model = make_network(tokenizer, worlds.words_of(names), layers=2, hidden=64, intermediate=64, heads=1)
    batches = [pack(rows) for rows in real_model.batches(worlds.rows_of(names, 0, 24), 2048, 0)]
    plain = [loss_of(model, batch)[0].item() for batch in batches]
    real_model.compiled(model)
    assert [loss_of(model, batch)[0].item() for batch in batches] == pytest.approx(plain, rel=1e-4)


def test_a_quarter_of_the_rows_are_lessons_where_a_world_has_any():
    with_, without = worlds.lessons_of(("retail", "inbox"), 0, 10), worlds.lessons_of(("inbox",), 0, 10)
    assert (len(with_), len(without)) == (10, 0)
    assert len(worlds.rows_of(("retail", "inbox"), 0, 40)) == 40


class Endpoint:
    """Answers every call with the same message. Keeps what it was asked."""

    def __init__(self, message: dict) -> None:
        self.message, self.calls, self.posts, self.status = message, [], [], 200

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/slipstream/v1/episodes/{episode}/{what}", self.post)
        return app

    async def chat(self, request: web.Request) -> web.Response:
        self.calls.append((request.headers.copy(), await request.json()))
        return web.json_response({"choices": [{"message": self.message}]}, status=self.status)

    async def post(self, request: web.Request) -> web.Response:
        self.posts.append((request.match_info["episode"], request.match_info["what"], await request.json()))
        return web.json_response({})


def call(name: str, **arguments: object) -> dict:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


def work(endpoint: Endpoint, names: tuple[str, ...], count: int = 3):
    worker = Worker(names, "real", agents=4)
    with Served(endpoint.app()) as url:
        return asyncio.run(worker.run(url, worker.held_out(count, 0, 1), "eval", threading.Event()))


def test_agents_name_their_runs_and_post_what_they_earned():
    endpoint = Endpoint(call("answer", text="monday"))
    tally = work(endpoint, ("inbox",), 40)
    assert (tally.failed, len(tally.waits), len(tally.rewards["inbox"])) == (0, 40, 40)
    assert 0 < tally.success()["inbox"] < 0.6
    assert tally.success()["all"] == tally.success()["inbox"]
    rewards = {episode: body["value"] for episode, what, body in endpoint.posts if what == "rewards"}
    assert sorted(rewards.values()) == sorted(tally.rewards["inbox"])
    assert {what for _, what, _ in endpoint.posts} == {"rewards"}
    headers, body = endpoint.calls[0]
    assert headers["x-slipstream-episode"] in rewards
    assert headers["x-slipstream-split"] == "eval"
    assert body["model"] == "real"


@pytest.mark.parametrize(
    "message", [{"role": "assistant", "content": "hm"}, call("nonsense", x=[1]), call("search", keywords=7)]
)
def test_whatever_the_model_says_an_episode_of_each_world_ends(message):
    tally = work(Endpoint(message), ALL, 2)
    assert tally.failed == 0
    assert {name: len(rewards) for name, rewards in tally.rewards.items()} == dict.fromkeys(ALL, 2)


def test_a_failed_call_is_counted_and_not_scored():
    endpoint = Endpoint({"role": "assistant", "content": "hm"})
    endpoint.status = 500
    tally = work(endpoint, ("inbox",), 1)
    assert (tally.failed, tally.figures()["episodes"]) == (1, 0)
    assert "500" in tally.errors[0]
    assert not endpoint.posts


def test_training_items_come_in_groups_of_runs_from_each_world():
    worker = Worker(("inbox", "mail"), "real", agents=1)
    some = list(itertools.islice(worker.endless(5), 32))
    groups = [some[i : i + 8] for i in range(0, 32, 8)]
    assert [group[0][0] for group in groups] == ["inbox", "mail", "inbox", "mail"]
    assert [len({item.id for _, item in group}) for group in groups] == [1, 1, 1, 1]
    assert len({item.id for _, item in some}) == 4


def step(at: float, number: int, **data: object) -> dict:
    return {"kind": "step", "at": at, "data": {"step": number, "seconds": 2.0, "staleness": 1.0, **data}}


def test_events_become_the_figures_of_a_phase():
    events = [
        step(110.0, 1, reward=0.4, logprob_gap=0.01, untrainable={"stale": 3}),
        {"kind": "adapter", "at": 110.1, "data": {"adapter": "real@1", "state": "loading"}},
        {"kind": "adapter", "at": 110.4, "data": {"adapter": "real@1", "state": "candidate"}},
        {"kind": "skipped", "at": 112.0, "data": {"untrainable": {"stale": 1}}},
        {"kind": "promote", "at": 113.0, "data": {"adapter": "real@1"}},
        step(120.0, 2, reward=0.6, logprob_gap=0.03, hold_seconds=3.0),
        {"kind": "adapter", "at": 120.1, "data": {"adapter": "real@2", "state": "loading"}},
    ]
    phase = real_size.Phase()
    assert real_size.told(phase, events, 100.0) == [(108.0, 110.0), (117.0, 120.0)]
    assert (phase.steps, phase.skipped, phase.undone, phase.swaps) == (2, 1, 0, 1)
    assert (phase.first_step_s, phase.step_s) == (10.0, 2.0)
    assert (phase.staleness, phase.logprob_gap) == (1.0, pytest.approx(0.02))
    assert phase.untrainable == {"stale": 4}
    real_size.told(phase, events, 100.0)
    assert phase.untrainable == {"stale": 4}, "reading again counts nothing twice"
    assert [point["at"] for point in phase.curve] == [10.0, 20.0]


def test_it_is_good_enough_after_its_steps_and_when_the_last_runs_succeed():
    phase, args = real_size.Phase(), Namespace(steps=10, goal=0.9)
    for count, reward, enough in ((9, 1.0, False), (12, 0.5, False), (12, 0.95, True)):
        real_size.told(phase, [step(float(i), i, reward=reward) for i in range(count)], 0.0)
        assert real_size.good_enough(phase, args) is enough


def test_the_gpus_share_is_counted_between_two_times():
    watch = Watch("http://127.0.0.1:9")
    watch.gpu = [(t / 10, 100 if t < 50 else 0) for t in range(100)]
    watch.running = [(t / 10, 3.0 if t < 20 else 0.0) for t in range(100)]
    found = busy_share(watch, [(4.0, 6.05)], 0.0, 9.95)
    assert found["gpu_busy"] == found["gpu_used"] == pytest.approx(0.5)
    assert found["sampling"] == pytest.approx(0.2)
    assert found["sampling_or_training"] == pytest.approx(0.41)
    assert busy_share(watch, [], 50.0, 60.0)["gpu_busy"] is None


@pytest.mark.parametrize(("visible", "number"), [("", 0), ("1", 1), ("3,1", 3), ("GPU-8932f937", 0)])
def test_the_gpu_that_is_watched_is_the_one_that_programs_see(monkeypatch, visible, number):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert real_watch.first_visible() == number
