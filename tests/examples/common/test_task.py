"""Tasks are found by name."""

from __future__ import annotations

import pytest
from common import task


@pytest.fixture
def examples(tmp_path, monkeypatch):
    for name, body in (
        ("plainly", "TASK = 7"),
        ("seven", "TASKS = {'7th': 8, 'eighth': 9}"),
        ("broken", "import not_there_at_all"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "task.py").write_text(body)
    (tmp_path / "seven" / "names.txt").write_text("7th\neighth\n")
    monkeypatch.setattr(task, "EXAMPLES", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_folder_is_a_task_by_its_name_or_the_one_it_gives(examples):
    folders = {"broken": "broken", "plainly": "plainly", "7th": "seven", "eighth": "seven"}
    assert task.task_names() == {name: examples / folder for name, folder in folders.items()}
    assert task.load_task("plainly") == 7
    assert (task.load_task("7th"), task.load_task("eighth")) == (8, 9)


def test_what_is_not_installed_is_named(examples):
    with pytest.raises(task.Missing, match=r"needs the package not_there_at_all: see .*broken/README\.md"):
        task.load_task("broken")
    with pytest.raises(KeyError):
        task.load_task("unheard of")
