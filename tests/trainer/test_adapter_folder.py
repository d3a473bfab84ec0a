from __future__ import annotations

import pytest
from tests.support.tiny import make_config, make_trainer

from slipstream.contract import Adapter, AdapterList
from slipstream.errors import SlipstreamError
from slipstream_trainer.model.adapter_files import save_adapter
from slipstream_trainer.model.weights import weights_of
from slipstream_trainer.versions.adapter_folder import next_version, rename_whole, sweep, write_adapter


def test_a_number_is_never_used_again(tmp_path) -> None:
    assert next_version("m", tmp_path / "none", None) == 1
    for name in ("m@3", "m@11", "other@40", "m@x", "Qwen--m@7"):
        (tmp_path / name).mkdir()
    assert next_version("m", tmp_path, None) == 12
    assert next_version("Qwen/m", tmp_path, None) == 8
    refused = Adapter(name="m@15", model="m", version=15, state="refused", created=1.0, path="m@15")
    assert next_version("m", tmp_path, AdapterList(adapters=[refused], live={})) == 16


def test_a_folder_appears_whole_or_not_at_all(tiny, tmp_path, monkeypatch) -> None:
    trainer = make_trainer(make_config(tiny, tmp_path))
    final = tmp_path / "adapters" / "tiny@1"

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr("slipstream_trainer.versions.adapter_folder.sync_folder", die)
        with pytest.raises(KeyboardInterrupt):
            write_adapter(trainer.learner.adapter, final, 16)
    assert not final.exists()
    write_adapter(trainer.learner.adapter, final, 16)
    assert sorted(p.name for p in final.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert [p.name for p in final.parent.iterdir()] == ["tiny@1"]


def test_a_rank_above_the_engines_is_not_published(tiny, tmp_path) -> None:
    trainer = make_trainer(make_config(tiny, tmp_path))
    with pytest.raises(SlipstreamError, match="rank 8"):
        write_adapter(trainer.learner.adapter, tmp_path / "a" / "tiny@1", 1)
    assert not list((tmp_path / "a").iterdir())


def test_names_are_not_overwritten(tmp_path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "old").mkdir()
    with pytest.raises(FileExistsError):
        rename_whole(tmp_path / "new", tmp_path / "old")


def test_leftovers_are_swept(tmp_path) -> None:
    (tmp_path / ".tmp-trainer-1-a").mkdir()
    (tmp_path / ".tmp-upload").mkdir()
    sweep(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [".tmp-upload"]


def test_the_files_are_those_that_peft_writes(tiny, tmp_path) -> None:
    trainer = make_trainer(make_config(tiny, tmp_path), warm=False)
    save_adapter(trainer.model, tmp_path / "first")
    before = weights_of(trainer.model)
    for p in trainer.learner.trained:
        p.data.normal_()
    trainer.model.save_pretrained(str(tmp_path / "peft"))
    save_adapter(trainer.model, tmp_path / "ours")
    save_adapter(trainer.model, tmp_path / "again", before)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "ours" / file).read_bytes() == (tmp_path / "peft" / file).read_bytes()
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "first" / file).read_bytes()
