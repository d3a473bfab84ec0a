"""The quickstart notebook runs from top to bottom, against a real proxy in front of the fake engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import nbformat
import pytest
from nbclient import NotebookClient
from tests.support import ROOT, process, slipstream, wait_for
from tests.support.fake_engine import FakeEngine

from slipstream.shared.processes.proxy_file import running_proxy

NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"


def printed(notebook: nbformat.NotebookNode) -> str:
    """What all cells printed."""
    outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    return "".join(o.text for o in outputs if o.output_type == "stream" and o.name == "stdout")


def test_it_is_kept_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert printed(notebook) == ""
    assert all(cell.execution_count is None for cell in notebook.cells if cell.cell_type == "code")


@pytest.mark.slow
async def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = await FakeEngine().start()
    data = tmp_path / "data"
    flags = [f"data_dir={data}", f'engine.urls=["{engine.url}"]', "engine.name=tiny", "proxy.port=0"]
    with process(slipstream("proxy", *(a for f in flags for a in ("--set", f))), tmp_path / "proxy.log"):
        url = await asyncio.to_thread(wait_for, lambda: running_proxy(data), 60, 0.1, "the proxy runs")

        def ready() -> bool:
            paths = ("readyz", "slipstream/v1/status")
            return all(httpx.get(f"{url}/{path}", trust_env=False).is_success for path in paths)

        await asyncio.to_thread(wait_for, ready, 60, 0.1, "the proxy is ready")
        monkeypatch.setenv("SLIPSTREAM_URL", str(url))
        notebook = nbformat.read(NOTEBOOK, as_version=4)
        client = NotebookClient(
            notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
        )
        await client.async_execute()
    await engine.stop()
    text = printed(notebook)
    assert "serves {'tiny': 'tiny'}" in text
    assert "trainable      True" in text
    assert "['count-to-five', 8, " in text or "('count-to-five', 8, " in text
