"""States of a run on disk: whole or not there, never pickled, and always the newest whole one is found.

The folder of a run: what lies where in it, which folder may become one, and what its own files say.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from safetensors import SafetensorError
from safetensors.numpy import save_file

from veilrec.core.errors import BadInput
from veilrec.core.files import OWNER_ONLY, check_place, replacing
from veilrec.core.state import State, StoredState, in_pieces

if TYPE_CHECKING:
    from veilrec.simulation.simulation import Trainer


@dataclass
class Progress:
    """Where a run stands: everything apart from the arrays that the next round depends on."""

    rounds_done: int = 0
    clients: int = 0  # summed over rounds
    down_bytes: int = 0
    up_bytes: int = 0
    down_params: int = 0
    up_params: int = 0
    selection_bytes: int = 0
    paper_params: int = 0
    learning_seconds: float = 0.0
    first_clients: int = 0  # of `clients`: in the first round after each start, which may compile
    first_seconds: float = 0.0  # of `learning_seconds`: of the same rounds
    seconds: float = 0.0
    best_round: int = 0  # of early stopping
    best_value: float | None = None
    evaluations_without_gain: int = 0
    stopped_early: bool = False
    metrics: dict[str, float] = field(default_factory=dict)  # of the last evaluation

    @property
    def clients_per_second(self) -> float:
        """Without first rounds, which may compile; of a run that has no others, with them."""
        clients, seconds = self.clients - self.first_clients, self.learning_seconds - self.first_seconds
        if clients == 0:
            clients, seconds = self.clients, self.learning_seconds
        return clients / max(seconds, 1e-9)


def save(path: Path, state: State, progress: Progress) -> None:
    """Write a state and its progress with a checksum, for the owner alone: it has what every simulated client keeps."""
    arrays = {name: np.ascontiguousarray(value) for name, value in state.items()}
    said = json.dumps(asdict(progress))
    with replacing(path, mode=OWNER_ONLY) as part:
        save_file(arrays, part, metadata={"progress": said, "sha256": _checksum(arrays, said)})


def load(path: Path) -> tuple[StoredState, Progress]:
    """A state, whose arrays are read when they are asked for, and its progress."""
    try:
        stored = StoredState(path)
        progress = Progress(**json.loads(stored.metadata["progress"]))
        is_whole = _checksum(stored, stored.metadata["progress"]) == stored.metadata["sha256"]
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise BadInput(f"{path} is not a state of a veilrec run ({error}): remove it and resume again") from None
    if not is_whole:
        raise BadInput(f"{path} has another checksum than when it was written: bring it back, or remove it and resume")
    return stored, progress


def restore(trainer: Trainer, path: Path) -> Progress:
    """Put a saved state into a trainer that was built with the same settings."""
    state, progress = load(path)
    try:
        trainer.load_state(state, progress.rounds_done)
    except (KeyError, ValueError) as error:
        raise BadInput(
            f"{path} does not fit the settings in config.yaml ({error}): they were changed; train again"
        ) from None
    return progress


def checkpoint_path(folder: Path, rounds_done: int) -> Path:
    """Where the checkpoint after so many rounds lies."""
    return folder / "checkpoints" / f"round-{rounds_done:07d}.safetensors"


def newest(folder: Path) -> Path | None:
    """The newest checkpoint of a run."""
    found = [path for path in (folder / "checkpoints").glob("round-*.safetensors") if _number(path).isdecimal()]
    return max(found, key=lambda path: int(_number(path)), default=None)


def rounds_in(folder: Path) -> int:
    """How many rounds the newest checkpoint of a run comes after; 0 where there is none."""
    path = newest(folder)
    return 0 if path is None else int(_number(path))


def _number(path: Path) -> str:
    return path.stem.removeprefix("round-")


def prune(folder: Path, keep: set[Path]) -> None:
    """Remove all checkpoints but the given ones."""
    for path in (folder / "checkpoints").glob("round-*.safetensors"):
        if path not in keep:
            path.unlink()


def digest(state: State) -> str:
    """One sha256 over names, shapes and bytes of all arrays but those of reports, which are no weights."""
    return _checksum(state, "", (name for name in state if not name.startswith("reports.")))


def _checksum(state: State, said: str, names: Iterable[str] | None = None) -> str:
    """One sha256 over what is said beside arrays, and over names, shapes and bytes of all of them, or of some."""
    total = hashlib.sha256(said.encode())
    for name in sorted(state if names is None else names):
        dtype, shape, pieces = in_pieces(state, name)  # no copy: a state may be gigabytes
        total.update(f"{name}:{dtype.str}:{shape};".encode())
        for piece in pieces:
            total.update(piece)
    return total.hexdigest()


CONFIG = "config.yaml"
RESULT = "result.json"
MODEL = "model"  # a folder: all that may ever be shared
PRIVATE = "private"  # a folder: what simulated clients keep to themselves, and the secret of the noise


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
    """Return the folder that only its owner may read; make it if it is not there."""
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


def trained_padding(folder: Path) -> float:
    """The share of clicks that clients replaced by the pad in training: 0 where nothing learnt what a pad is."""
    settings = read_config(folder).get("config") or {}
    privacy = settings.get("privacy") or {}
    return float(privacy.get("pad_probability", 0.0)) if settings.get("calibration") == "as-published" else 0.0


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
