"""The bulk run: it counts what it did, and writes down and repeats what it finds."""

from __future__ import annotations

import json
import logging

import pytest
from tests.fuzz import bulk

from slipstream_proxy.data.server import connection
from slipstream_proxy.data.wire import request


def last_line(capsys) -> dict[str, int]:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_it_counts_what_it_did(tmp_path, capsys):
    args = ["--inputs", "256", "--seed", "3", "--into", str(tmp_path), "--compare-every"]
    assert bulk.main([*args, "16"]) == 0
    said = last_line(capsys)
    assert 200 < said["inputs"] <= 256  # some are left out: they ask for an upgrade
    assert said["compared"] == -(-said["inputs"] // 16)
    assert said["asked"] >= said["recorded"] > 64
    assert said["findings"] == said["not_repeated"] == 0
    assert bulk.main([*args, "16"]) == 0
    assert last_line(capsys) == said


@pytest.mark.parametrize("defect", ["a line is lost", "an error is logged", "it raises"])
def test_a_defect_is_found_and_repeated(tmp_path, capsys, monkeypatch, defect):
    read = request.parse_fields

    def spoilt(text: bytes):
        if text.count(b"\r\n") < 4:
            return read(text)
        if defect == "it raises":
            raise KeyError(defect)
        if defect == "an error is logged":
            logging.getLogger("slipstream_proxy.x").error(defect)
            return read(text)
        return read(text.partition(b"\r\n")[2])

    monkeypatch.setattr(bulk, "MOST_FINDINGS", 1)
    monkeypatch.setattr(connection, "parse_fields", spoilt)
    assert bulk.main(["--inputs", "640", "--into", str(tmp_path), "--compare-every", "4"]) == 1
    said = last_line(capsys)
    assert (said["findings"], said["not_repeated"]) == (1, 0)
    found = tmp_path / "finding-1.json"
    assert json.loads(found.read_text())["where"].startswith("seed 0, inputs from ")
    assert bulk.main(["--again", str(found)]) == 1
    monkeypatch.undo()
    assert bulk.main(["--again", str(found)]) == 0
