from __future__ import annotations

import gzip
import shutil
import subprocess

import pytest
from scripts import page

needs_npm = pytest.mark.skipif(
    shutil.which("npm") is None or not (page.SOURCES / "node_modules").is_dir(),
    reason="needs npm, and `npm ci` in page/: only those who change the page do",
)


def test_the_built_page_is_of_these_sources():
    assert page.is_current(), "run `make page`"


def test_the_types_are_those_of_the_models(monkeypatch):
    assert page.has_types(), "run `make page`"
    monkeypatch.setattr(page, "schema", lambda: "another")
    assert not page.has_types()


def test_a_changed_source_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "SOURCES", tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.ts").write_text("1")
    before = page.digest()
    (tmp_path / "src" / "a.test.ts").write_text("tests are no part of the build")
    assert page.digest() == before
    (tmp_path / "src" / "a.ts").write_text("2")
    assert page.digest() != before
    assert not page.is_current() and page.main(["--check"]) == 1


def test_the_first_view_is_small():
    packed = sum(len(gzip.compress((page.BUILT / name).read_bytes())) for name in page.FILES)
    assert packed <= page.FIRST_VIEW


@needs_npm
def test_building_again_makes_the_same_files(tmp_path):
    page.build(tmp_path)
    for name in (*page.FILES, page.STAMP):
        assert (tmp_path / name).read_bytes() == (page.BUILT / name).read_bytes(), name


@needs_npm
def test_the_page_s_own_tests():
    done = subprocess.run(["npm", "test", "--silent"], check=False, cwd=page.SOURCES, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
