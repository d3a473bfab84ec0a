from __future__ import annotations

from slipstream.config import Config
from slipstream.contract import Adapter
from slipstream_proxy.control.adapters.files import AdapterFiles


def test_the_engine_may_see_the_folder_at_another_place(tmp_path):
    engine = {"name": "tiny", "adapters_dir": "/mnt/adapters"}
    files = AdapterFiles(Config.model_validate({"data_dir": str(tmp_path), "engine": engine}))
    one = Adapter(name="tiny@1", model="tiny", version=1, state="live", created=1.0, path="tiny@1")
    assert not files.exist(one)
    files.folder(one).mkdir(parents=True)
    assert files.exist(one) and files.has_own(one)
    assert files.path_for_engine(one) == "/mnt/adapters/tiny@1"
    elsewhere = one.model_copy(update={"name": "tiny@2", "engine_path": "/their/tiny@2"})
    assert files.path_for_engine(elsewhere) == "/their/tiny@2"
    assert files.engine_paths(elsewhere) == ("/mnt/adapters/tiny@2", "/their/tiny@2")
