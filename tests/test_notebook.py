"""The notebook of the docs: clean in the repository, and every cell runs."""

import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))
SECONDS = 120  # of a cell, on a machine that is busy with other tests


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_no_output_is_kept_and_links_lead_somewhere(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(codes) >= 5
    assert all(cell.outputs == [] and cell.execution_count is None for cell in codes)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    targets = re.findall(r"\]\(([^)\s]+)\)", "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown"))
    assert targets
    for target in targets:
        assert (path.parent / target).resolve().exists(), target


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_every_cell_runs(path, tmp_path, monkeypatch):
    source = Path(__file__).parents[1] / "src"
    monkeypatch.setenv("PYTHONPATH", f"{source}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    manager = AsyncKernelManager()
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.kernel_spec.argv[:] = command  # this interpreter, whatever kernels the machine has
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, km=manager, timeout=SECONDS, resources=resources).execute(cleanup_kc=True)
    codes = [cell for cell in notebook.cells if "outputs" in cell]
    outputs = {cell.id: "".join(output.get("text", "") for output in cell.outputs) for cell in codes}
    assert outputs["load"] == "1500 users, 800 items\n"
    assert "Privacy: no privacy guarantee" in outputs["train"]
    trained, popularity = (float(number) for number in re.findall(r"0\.\d+", outputs["train"])[:2])
    assert trained > 1.1 * popularity  # who learns from it sees a model that has learnt
    assert len(outputs["recommend"].splitlines()) == 5
    assert "-DP per user (add-remove), whole run, trusting: server, proven" in outputs["privacy"]
    (plot,) = [cell for cell in codes if cell.id == "plot"]
    assert any("image/png" in output.get("data", {}) for output in plot.outputs)
