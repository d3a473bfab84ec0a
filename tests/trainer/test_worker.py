"""The worker against a control API: batches are trained on once, whatever ends it when."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from tests.support.control import FakeControl, serve
from tests.support.tiny import adapter_state, conversation, make_config, make_trainer, table

from slipstream.client import Client
from slipstream.errors import ApiError, StartError
from slipstream_trainer.run.worker import Worker
from slipstream_trainer.versions.checkpoint import only_one


def make_worker(tiny: Path, data: Path, control: FakeControl, **settings):
    config = make_config(tiny, data, **settings)
    return Worker(config, Client(control.url), make_trainer(config, warm=False))


def test_batches_become_adapters_events_and_acks_in_order(tiny, tmp_path) -> None:
    with serve(FakeControl()) as control:
        for i in range(3):
            control.add(f"b{i}", table(conversation(i)))
        assert make_worker(tiny, tmp_path, control, max_steps=3).run() == 0
        assert [a["step"] for a in control.adapters.values()] == [1, 2, 3]
        assert [d["batch"] for d in control.of_kind("step")] == ["b0", "b1", "b2"]
        assert [d["step"] for d in control.of_kind("step")] == [1, 2, 3]
        assert [(i, a["outcome"], a["adapter"]) for i, a in control.acks] == [
            (f"b{i}", "trained", f"tiny@{i + 1}") for i in range(3)
        ]
        assert control.adapters["tiny@2"]["parent"] == "tiny@1"
        found = tmp_path / "adapters" / "tiny@3"
        assert json.loads((found / "adapter_config.json").read_text())["r"] == 8
        assert (found / "adapter_model.safetensors").is_file()
        assert set(control.acks[0][1]["advantages"]) == {"g0e0", "g0e1", "g0e2", "g1e0", "g1e1", "g1e2"}
        assert not list((tmp_path / "adapters").glob(".tmp*"))
        assert set(control.gaps) == {"b0", "b1", "b2"}
        told = {(c["episode"], c["call"], c["choice"]): len(c["gaps"]) for c in control.gaps["b1"]["calls"]}
        assert told == {(s.episode, s.call, s.choice): len(s.completion_C) for s in conversation(1)}


def test_steps_that_have_no_room_become_one_version_once_there_is(tiny, tmp_path) -> None:
    with serve(FakeControl()) as control:
        worker = make_worker(tiny, tmp_path, control, max_staleness=3)
        worker.current.recover()

        def step(n: int) -> bool:
            control.add(f"b{n}", table(conversation(n)))
            return worker.once()

        assert step(0)
        control.room = False
        assert all(step(n) for n in (1, 2, 3))
        assert not step(4), "as far from the engine's policy as a run may be from the live one"
        worker.publisher.finish()
        assert [(i, a["outcome"], a["adapter"]) for i, a in control.acks] == [
            ("b0", "trained", "tiny@1"), *((f"b{n}", "trained", None) for n in (1, 2, 3))
        ]  # fmt: skip
        assert [d.get("unpublished") for d in control.of_kind("step")] == [None, 1, 2, 3]
        assert worker.current.state.weights == "tiny@1+3"
        kept = adapter_state(worker.trainer.model)
        control.room, worker.current.looked = True, 0.0
        worker.once()
        worker.publisher.finish()
        made = control.adapters["tiny@2"]
        assert (made["parent"], made["step"], made["batches"]) == ("tiny@1", 4, ["b1", "b2", "b3"])
        assert all((kept[n] == w).all() for n, w in adapter_state(worker.trainer.model).items())
        assert worker.once() and worker.current.state.weights == "tiny@3"
        worker.publisher.finish()
        assert control.adapters["tiny@3"]["batches"] == ["b4"]


def test_far_from_the_engine_s_policy_it_asks_for_stored_groups_alone(tiny, tmp_path) -> None:
    with serve(FakeControl()) as control:
        worker = make_worker(tiny, tmp_path, control, max_staleness=1)
        worker.current.recover()
        control.room = False
        asked = []
        for n in range(3):
            control.add(f"b{n}", table([s for s in conversation(n)]))
            asked.append(worker.current.state.ahead >= 1)
            control.stored.add("b2")
            worker.once()
        assert asked == [False, True, True] and "b1" in control.batches, "it waits, b2 of the store does not"
        worker.publisher.finish()
        assert [(i, a["outcome"]) for i, a in control.acks] == [("b0", "trained"), ("b2", "trained")]
        assert worker.current.state.ahead == 2


def test_steps_without_a_version_outlive_a_restart_and_fall_with_their_parent(tiny, tmp_path) -> None:
    with serve(FakeControl()) as control:
        worker = make_worker(tiny, tmp_path, control)
        worker.current.recover()
        for n in range(3):
            control.room = n == 0
            control.add(f"b{n}", table(conversation(n)))
            assert worker.once()
        worker.publisher.finish()
        kept = adapter_state(worker.trainer.model)
        again = make_worker(tiny, tmp_path, control)
        again.current.recover()
        assert again.current.state.weights == "tiny@1+2"
        assert all((kept[n] == w).all() for n, w in adapter_state(again.trainer.model).items())
        assert not control.of_kind("restored")
        control.roll_back("tiny@1", "tiny")
        again.current.look()
        assert again.current.state.weights == "tiny"
        assert control.of_kind("restored")[0]["cause"] == "tiny@1 was rolled back, and tiny@1+2 was made from it"


def test_what_was_learned_of_kinds_of_traffic_outlives_a_restart_and_a_rollback(tiny, tmp_path) -> None:
    with serve(FakeControl()) as control:
        worker = make_worker(tiny, tmp_path, control)
        worker.current.recover()
        for n in range(2):
            control.room = n == 1  # the first step waits for room
            samples = conversation(n)
            for s in samples:
                s.kind, s.tags = "like", s.group
            control.add(f"b{n}", table(samples))
            worker.current.looked = 0.0
            assert worker.once()
        worker.publisher.finish()
        traffic = worker.current.state.traffic
        assert sorted(control.adapters) == ["tiny@1", "tiny@2"]
        assert len(traffic.kinds) == 3 and traffic.level[0] == pytest.approx(6 * 0.5 ** (6 / 64) + 6)
        again = make_worker(tiny, tmp_path, control)
        again.current.recover()
        assert again.current.state.traffic == traffic
        control.roll_back("tiny@2", "tiny@1")
        again.current.look()
        assert (again.current.state.weights, again.current.state.traffic) == ("tiny@1", traffic)


def test_what_is_not_published_at_the_end_is(tiny, tmp_path) -> None:
    with serve(FakeControl()) as control:
        control.room = False
        control.add("b0", table(conversation(0)))
        assert make_worker(tiny, tmp_path, control, max_steps=1).run() == 0
        assert control.adapters["tiny@1"]["batches"] == ["b0"]


def test_a_proxy_that_is_away_is_waited_for(tiny, tmp_path) -> None:
    with serve(FakeControl()) as control:
        control.add("b0", table(conversation(0)))
        control.broken = 3
        assert make_worker(tiny, tmp_path, control, max_steps=1).run() == 0
        assert control.done == {"b0": "trained"}


def test_a_proxy_that_knows_no_gaps_costs_the_trainer_nothing(tiny, tmp_path) -> None:
    with serve(FakeControl()) as control:
        control.add("b0", table(conversation(0)))
        control.broken, control.broken_path = 1, "/gaps"
        assert make_worker(tiny, tmp_path, control, max_steps=1).run() == 0
        assert control.done == {"b0": "trained"} and control.gaps == {}


def test_a_batch_without_differences_is_skipped_and_said(tiny, tmp_path) -> None:
    with serve(FakeControl()) as control:
        same = conversation(0)
        for s in same:
            s.reward = 1.0
        control.add("b0", table(same))
        control.add("b1", table(conversation(1)))
        assert make_worker(tiny, tmp_path, control, max_steps=1).run() == 0
        assert control.done == {"b0": "skipped", "b1": "trained"}
        assert "different reward" in control.of_kind("skipped")[0]["reason"]


def test_a_batch_is_told_while_the_next_one_is_trained(tiny, tmp_path, monkeypatch) -> None:
    with serve(FakeControl()) as control:
        for i in range(2):
            control.add(f"b{i}", table(conversation(i)))
        worker = make_worker(tiny, tmp_path, control, max_steps=2)
        training, tell, told = threading.Event(), worker.publisher._event, []

        def slow(state, *, again: bool) -> None:
            told.append(state.batch == "b1" or training.wait(60))
            tell(state, again=again)

        def train(samples, plain=worker.train):
            if worker.batch == "b1":
                training.set()
            return plain(samples)

        monkeypatch.setattr(worker.publisher, "_event", slow)
        monkeypatch.setattr(worker, "train", train)
        assert worker.run() == 0
        assert told == [True, True]
        assert [d["batch"] for d in control.of_kind("step")] == ["b0", "b1"]
        assert control.done == {"b0": "trained", "b1": "trained"}


@pytest.mark.parametrize(("algorithm", "equal"), [("grpo", "rewards"), ("sft", "whole")])
def test_only_a_comparison_leaves_out_groups_of_equal_rewards(tiny, tmp_path, algorithm: str, equal: str) -> None:
    with serve(FakeControl()) as control:
        worker, wanted = make_worker(tiny, tmp_path, control, algorithm=algorithm), []
        worker.client.lease_batch = wanted.append
        assert not worker.once()
        assert [w.equal for w in wanted] == [equal]


def test_a_batch_is_told_before_the_trainer_waits_for_the_next_one(tiny, tmp_path) -> None:
    with serve(FakeControl()) as control:
        control.add("b0", table(conversation(0)))
        worker = make_worker(tiny, tmp_path, control)
        worker.current.recover()
        assert worker.once() and not worker.once()
        assert control.done == {"b0": "trained"}


@pytest.mark.parametrize("where", ["adapter", "event", "ack", "mark"])
def test_killed_between_checkpoint_and_telling_it_tells_the_rest_once(tiny, tmp_path, where: str) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    with serve(FakeControl()) as control:
        control.add("b0", table(conversation(0)))
        control.add("b1", table(conversation(1)))
        worker = make_worker(tiny, tmp_path, control, max_steps=2)
        target, name = {
            "adapter": (worker.client, "add_adapter"), "event": (worker.client, "post_event"), "ack": (worker.client, "ack_batch"),
            "mark": (worker.current.checkpoints, "set_told"),
        }[where]  # fmt: skip
        worker.current.recover()
        setattr(target, name, die)
        with pytest.raises(Killed):
            worker.once()
            worker.once()  # meanwhile the first batch is told, and the second one is not kept before that has ended
        assert len(worker.current.checkpoints.all()) == 2  # the start's and the first batch's
        assert make_worker(tiny, tmp_path, control, max_steps=2).run() == 0
        assert control.done == {"b0": "trained", "b1": "trained"}
        assert [d["batch"] for d in control.of_kind("step")] == ["b0", "b1"]
        assert [a["batches"] for a in control.adapters.values()] == [["b0"], ["b1"]]


def test_killed_while_training_the_batch_comes_back_and_nothing_of_it_remains(tiny, tmp_path) -> None:
    with serve(FakeControl()) as control:
        control.add("b0", table(conversation(0)))
        worker = make_worker(tiny, tmp_path, control)
        worker.current.recover()
        worker._train(worker.client.lease_batch(_wanted(worker)))  # and no more
        assert control.leased
        assert make_worker(tiny, tmp_path, control, max_steps=1).run() == 0
        assert control.done == {"b0": "trained"}
        assert [d["step"] for d in control.of_kind("step")] == [1]


def _wanted(worker: Worker):
    from slipstream.contract import BatchLeaseIn

    return BatchLeaseIn(worker=worker.learner.name)


def weights(folder: Path) -> bytes:
    return (folder / "adapter_model.safetensors").read_bytes()


def test_killed_and_restored_it_goes_on_bit_identically(tiny, tmp_path) -> None:
    for name, parts in {"unbroken": [4], "broken": [1, 2, 4]}.items():
        with serve(FakeControl()) as control:
            for i in range(4):
                control.add(f"b{i}", table(conversation(i)))
            for until in parts:
                assert make_worker(tiny, tmp_path / name, control, max_steps=until).run() == 0
    for n in range(1, 5):
        assert weights(tmp_path / "unbroken" / "adapters" / f"tiny@{n}") == weights(
            tmp_path / "broken" / "adapters" / f"tiny@{n}"
        )


def test_a_rollback_restores_what_is_live(tiny, tmp_path) -> None:
    with serve(FakeControl()) as control:
        for i in range(2):
            control.add(f"b{i}", table(conversation(i)))
        worker = make_worker(tiny, tmp_path, control, max_steps=2)
        assert worker.run() == 0
        control.roll_back("tiny@2", "tiny@1")
        worker.current.look()
        assert worker.current.state.weights == "tiny@1"
        assert control.of_kind("restored")[0]["adapter"] == "tiny@1"
        worker.stop.clear()
        worker.config.trainer.max_steps = 3
        control.add("b2", table(conversation(2)))
        assert worker.run() == 0
        assert control.adapters["tiny@3"]["parent"] == "tiny@1"
        assert [d["step"] for d in control.of_kind("step")] == [1, 2, 3]

    with serve(FakeControl()) as straight:  # the same without the batch that was taken back
        straight.add("b0", table(conversation(0)))
        straight.add("b2", table(conversation(2)))
        assert make_worker(tiny, tmp_path / "straight", straight, max_steps=2).run() == 0
    assert weights(tmp_path / "adapters" / "tiny@3") == weights(tmp_path / "straight" / "adapters" / "tiny@2")


def test_what_a_rolled_back_adapter_sampled_is_not_trained_on(tiny, tmp_path) -> None:
    with serve(FakeControl()) as control:
        control.add("b0", table(conversation(0)))
        worker = make_worker(tiny, tmp_path, control, max_steps=1)
        worker.run()
        control.roll_back("tiny@1", "tiny")
        late = conversation(1)
        for s in late:
            s.adapter = "tiny@1"
        control.add("b1", table(late))
        worker.once()
        assert control.done["b1"] == "skipped"
        assert control.of_kind("skipped")[0]["untrainable"] == {"rolled_back": len(late)}


def test_all_rolled_back_it_starts_from_the_base_again(tiny, tmp_path) -> None:
    with serve(FakeControl()) as control:
        control.add("b0", table(conversation(0)))
        worker = make_worker(tiny, tmp_path, control, max_steps=1)
        worker.run()
        control.roll_back("tiny@1", "tiny")
        worker.current.look()
        assert worker.current.state.weights == "tiny"
        assert all(float(p.abs().sum()) == 0 for n, p in worker.trainer.model.named_parameters() if "lora_B" in n)


def test_without_checkpoints_it_starts_from_the_live_adapter(tiny, tmp_path) -> None:
    with serve(FakeControl()) as control:
        control.add("b0", table(conversation(0)))
        make_worker(tiny, tmp_path, control, max_steps=1).run()
        for p in (tmp_path / "checkpoints").iterdir():
            p.rename(tmp_path / f"gone-{p.name}")
        worker = make_worker(tiny, tmp_path, control)
        worker.current.recover()
        assert worker.current.state.weights == "tiny@1"
        assert any(float(p.abs().sum()) > 0 for n, p in worker.trainer.model.named_parameters() if "lora_B" in n)


def test_two_trainers_on_one_folder_are_refused(tmp_path) -> None:
    with only_one(tmp_path), pytest.raises(StartError, match="another trainer"), only_one(tmp_path, patience=0.0):
        pass


@pytest.fixture
def hurried(monkeypatch) -> None:
    monkeypatch.setattr("slipstream_trainer.run.worker.FIRST_PAUSE", 0.01)


@pytest.mark.parametrize("where", ["save", "train", "prune", "set_told"])
def test_a_failure_costs_a_pause_and_nothing_else(tiny, tmp_path, monkeypatch, hurried, where: str) -> None:
    """A full disk, an error in the step: the weights are the last checkpoint's, the batch comes back."""
    with serve(FakeControl()) as control:
        control.add("b0", table(conversation(0)))
        worker = make_worker(tiny, tmp_path / "failing", control, max_steps=1)
        owner = worker if where == "train" else worker.current.checkpoints
        whole, fails_at, calls = getattr(owner, where), int(where in ("save", "set_told")), iter(range(100))

        def fails_once(*args, **kwargs):
            if next(calls) == fails_at:
                raise OSError(28, "No space left on device")
            return whole(*args, **kwargs)

        monkeypatch.setattr(owner, where, fails_once)
        assert worker.run() == 0
        assert control.done == {"b0": "trained"}
        assert [d["step"] for d in control.of_kind("step")] == [1]
        assert "No space left" in control.of_kind("failed")[0]["reason"]
    with serve(FakeControl()) as straight:
        straight.add("b0", table(conversation(0)))
        make_worker(tiny, tmp_path / "straight", straight, max_steps=1).run()
    (made,) = (tmp_path / "failing" / "adapters").glob(
        "tiny@*"
    )  # a name that was claimed and not used is not used again
    assert weights(made) == weights(tmp_path / "straight" / "adapters" / "tiny@1")


def test_a_batch_is_skipped_after_two_failures(tiny, tmp_path, monkeypatch, hurried) -> None:
    with serve(FakeControl()) as control:
        control.add("bad", table(conversation(0)))
        worker = make_worker(tiny, tmp_path, control)
        monkeypatch.setattr(worker, "train", lambda _: 1 / 0)
        worker.current.recover()
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                worker.once()
            worker.client.release(worker.learner.name)
        assert worker.once()
        assert control.done == {"bad": "skipped"}
        assert "failed 2 times" in control.of_kind("skipped")[0]["reason"]


def test_a_refused_key_is_waited_for(tiny, tmp_path, monkeypatch, hurried) -> None:
    """Somebody revokes the trainer's key, and gives it back: no reason to end."""
    with serve(FakeControl()) as control:
        control.add("b0", table(conversation(0)))
        worker = make_worker(tiny, tmp_path, control, max_steps=1)
        whole, calls = worker.client.lease_batch, iter(range(100))

        def lease(wanted):
            if next(calls) < 3:
                raise ApiError(401, "this key is not known")
            return whole(wanted)

        monkeypatch.setattr(worker.client, "lease_batch", lease)
        assert worker.run() == 0
        assert control.done == {"b0": "trained"}
