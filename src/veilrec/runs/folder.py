"""The folder of a run: what lies where in it, which folder may become one, and what its own files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from veilrec._files import check_place
from veilrec.errors import BadInput

CONFIG = "config.yaml"
RESULT = "result.json"
MODEL = "model"  # a folder: all that may ever be shared
PRIVATE = "private"  # a folder: what simulated devices keep to themselves, and the secret of the noise


def check_out(out: Path, *, resume: bool) -> None:
    """Refuse a folder that would mix two runs, before any long work."""
    if resume and not (out / CONFIG).exists():
        raise BadInput(f"nothing to resume in {out}: it has no config.yaml; run without --resume to start there")
    if out.exists() and not out.is_dir():
        raise BadInput(f"{out} is a file, and a run is a folder: choose another --out")
    if not resume and out.exists() and any(out.iterdir()):
        raise BadInput(f"{out} is not empty: choose another --out, or add --resume to go on with the run in it")
    check_place(out)


def private_folder(folder: Path) -> Path:
    """Where a run keeps what nobody else may read; made if it is not there."""
    private = folder / PRIVATE
    private.mkdir(mode=0o700, parents=True, exist_ok=True)
    return private


def read_config(folder: Path) -> dict[str, Any]:
    """config.yaml of a run."""
    path = folder / CONFIG
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError):
        config = None
    if not isinstance(config, dict) or "method" not in config:
        raise BadInput(f"{folder} is no run of veilrec: expected a folder with a config.yaml from `veilrec train`")
    return config


def read_result(folder: Path) -> dict[str, Any]:
    """result.json of a finished run."""
    path = folder / RESULT
    if not folder.exists():
        raise BadInput(f"there is no run {folder}: give the folder that `veilrec train` saved")
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise BadInput(f"{folder} has no result.json: its training is not finished; go on with --resume") from None
    except ValueError as error:
        raise BadInput(f"{path} is damaged ({error}): train again into a new folder") from None
    if not isinstance(result, dict):
        raise BadInput(f"{path} is damaged (no JSON object): train again into a new folder")
    missing = [name for name in ("rounds", "metrics", "guarantee") if name not in result]
    if missing:
        raise BadInput(f"{path} is damaged (nothing of {missing[0]}): train again into a new folder")
    return result
