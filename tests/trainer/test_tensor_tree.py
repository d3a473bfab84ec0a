from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from tests.support.tiny import make_config, make_trainer

from slipstream_trainer.model.weights import Snapshot
from slipstream_trainer.versions.checkpoint import BadCheckpoint, Checkpoints, CheckpointState, random_state
from slipstream_trainer.versions.tensor_tree import load_tree, save_tree

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8"))
TREES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.integers() | st.text(max_size=5), inner)
    ),
    max_leaves=20,
)


@given(tree=TREES)
def test_any_tree_comes_back(tmp_path_factory, tree) -> None:
    path = tmp_path_factory.getbasetemp() / "tree"
    save_tree(tree, path)
    assert load_tree(path) == tree


def test_tensors_of_all_kinds_come_back(tmp_path) -> None:
    shared = torch.arange(6.0).reshape(2, 3)
    kinds = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
    tree = {
        "all": [torch.ones(2, dtype=k) for k in kinds],
        3: (shared, shared.T, shared[0]),
        "a": np.arange(4, dtype=np.uint32),
    }
    tree |= {"zero": torch.tensor(2.5), "empty": torch.zeros(0, 3)}
    save_tree(tree, tmp_path / "tree")
    back = load_tree(tmp_path / "tree")
    assert [t.dtype for t in back["all"]] == kinds
    assert all(torch.equal(a, b) for a, b in zip(back[3], tree[3], strict=True))
    assert back["a"].dtype == np.uint32 and back["a"].tolist() == [0, 1, 2, 3]
    assert back["zero"].shape == () and back["empty"].shape == (0, 3)


def test_what_is_neither_tensor_nor_plain_is_refused_and_so_is_another_file(tmp_path) -> None:
    with pytest.raises(TypeError, match="set cannot be kept"):
        save_tree({"a": {1}}, tmp_path / "tree")
    (tmp_path / "odd").write_bytes(b"rubbish")
    with pytest.raises(SafetensorError):
        load_tree(tmp_path / "odd")


def test_an_older_checkpoint_is_read_and_one_that_holds_more_is_not_run(tiny, tmp_path) -> None:
    trainer = make_trainer(make_config(tiny, tmp_path))
    found = Checkpoints(tmp_path / "c", 3)
    snapshot = Snapshot.take(trainer.model, trainer.optimizer)
    path = found.save(trainer.learner, snapshot, CheckpointState(1, weights="tiny@1"))
    assert sorted(p.name for p in path.iterdir()) == ["state.json", "state.safetensors"]
    (path / "state.safetensors").unlink()
    kept = {"weights": snapshot.weights, "optimizer": snapshot.optimizer, "random": random_state()}
    torch.save(kept, path / "state.pt")  # as before
    expected = torch.rand(3)
    found.load(path, trainer.learner)
    assert torch.equal(torch.rand(3), expected)

    class Runs:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save(kept | {"random": Runs()}, path / "state.pt")
    with pytest.raises(BadCheckpoint, match="more than tensors and numbers, and is not unpickled"):
        found.load(path, trainer.learner)
    assert not (tmp_path / "ran").exists()
