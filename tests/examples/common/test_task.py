"""Tasks are found by name."""

from __future__ import annotations

import pytest
from common import task


@pytest.fixture
def examples(tmp_path, monkeypatch):
    for name, body in (("plainly", "TASK = 7"), ("seven", "TASK = 8"), ("broken", "import not_there_at_all")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "task.py").write_text(body)
    (tmp_path / "seven" / "NAME").write_text("7th\n")
    monkeypatch.setattr(task, "EXAMPLES", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_folder_is_a_task_by_its_name_or_the_one_it_gives(examples):
    assert task.task_names() == {
        "broken": examples / "broken",
        "plainly": examples / "plainly",
        "7th": examples / "seven",
    }
    assert task.load_task("plainly") == 7
    assert task.load_task("7th") == 8


def test_what_is_not_installed_is_named(examples):
    with pytest.raises(task.Missing, match=r"needs the package not_there_at_all: see .*broken/README\.md"):
        task.load_task("broken")
    with pytest.raises(KeyError):
        task.load_task("unheard of")
