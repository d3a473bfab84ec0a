from __future__ import annotations

import os
import signal
import sys

from tests.support import process, wait_for
from tests.support.control import FakeControl, serve
from tests.support.tiny import conversation, make_config, table


def test_the_process_ends_politely_and_gives_its_lease_back(tiny, tmp_path) -> None:
    with serve(FakeControl()) as control:
        config = make_config(tiny, tmp_path, min_groups=1)
        (tmp_path / "run.py").write_text(
            "import sys\nfrom slipstream.config import Config\nfrom slipstream_trainer.run.process import main\n"
            "sys.exit(main(Config.model_validate_json(open(sys.argv[1]).read()), lambda: sys.argv[2]))\n"
        )
        (tmp_path / "config.json").write_text(config.model_dump_json())
        argv = [sys.executable, str(tmp_path / "run.py"), str(tmp_path / "config.json"), control.url]
        env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        with process(argv, tmp_path / "log", env) as p:
            wait_for(lambda: control.released or p.poll() is not None, 120)
            control.add("b0", table(conversation(0)))
            wait_for(lambda: control.done or p.poll() is not None, 120)
            assert control.done == {"b0": "trained"}, (tmp_path / "log").read_text()
            began = len(control.released)
            p.send_signal(signal.SIGTERM)
            assert p.wait(60) == 0, (tmp_path / "log").read_text()
            assert len(control.released) > began
