"""What the processes of a federation load: little where outsiders have to read it, no recommender where none runs."""

from __future__ import annotations

import subprocess
import sys

COUNT = "import sys, {module}; print(*sorted(name for name in sys.modules if name.split('.')[0] == 'veilrec'))"


def loaded_by(module: str) -> list[str]:
    """The modules of ours in a fresh process that has imported this one."""
    code = COUNT.format(module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_an_aggregation_helper_imports_fewer_than_thirty_of_our_modules() -> None:
    found = loaded_by("veilrec.federation.helper")
    assert "veilrec.federation.secagg.helpers" in found
    assert len(found) < 30, found
    packages = {".".join(name.split(".")[:2]) for name in found}
    assert not packages & {f"veilrec.{name}" for name in ("device", "server", "privacy", "methods", "data", "plan")}


def test_a_coordinator_loads_no_recommender_and_no_index() -> None:
    found = loaded_by("veilrec.federation.coordinator.process")
    assert "veilrec.serving.process" in found
    assert not [name for name in found if name.startswith(("veilrec.serving.index", "veilrec.serving.app"))]
    assert not {"veilrec.serving.service", "veilrec.serving.answering"} & set(found)
