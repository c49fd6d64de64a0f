"""One device's data as bytes: the arrays of its kind of data by name, sealed with the key of the device.

The kind itself is not written: whoever reads has the plan, whose method says what its devices hold.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from veilrec._files import replacing
from veilrec.device.learner import LocalData
from veilrec.errors import BadInput
from veilrec.privacy.seal import Seal, WrongSeal

DATA = "data"
Data = TypeVar("Data", bound=LocalData)


def arrays_of(value: Any, prefix: str = "") -> dict[str, NDArray[Any]]:
    """Every array of a device's data by the names of the fields that lead to it."""
    found: dict[str, NDArray[Any]] = {}
    for name, part in _parts(value):
        if isinstance(part, np.ndarray):
            found[prefix + name] = part
        elif _parts(part):
            found |= arrays_of(part, f"{prefix}{name}.")
    return found


def filled(template: Any, arrays: dict[str, NDArray[Any]], prefix: str = "") -> Any:
    """The template with these arrays in the place of its own."""
    changed = {}
    for name, part in _parts(template):
        if isinstance(part, np.ndarray):
            own = arrays[prefix + name]
            if own.dtype != part.dtype or own.ndim != part.ndim:
                raise ValueError(f"{prefix}{name} is of another kind")
            changed[name] = own
        elif _parts(part):
            changed[name] = filled(part, arrays, f"{prefix}{name}.")
    return replace(template, **changed)


def _parts(value: Any) -> list[tuple[str, Any]]:
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in fields(value) if field.init]
    return []


def write(folder: Path, data: LocalData, seal: Seal) -> None:
    """Put a device's data into its folder."""
    content = save({name: np.ascontiguousarray(array) for name, array in arrays_of(data).items()})
    with replacing(folder / DATA, mode=0o600) as part:
        part.write_bytes(seal.close(content, DATA))


def read(folder: Path, template: Data, seal: Seal) -> Data:
    """A device's data, of the kind that the template is."""
    path = folder / DATA
    try:
        arrays = load(seal.open(path.read_bytes(), DATA))
        data: Data = filled(template, arrays)
    except FileNotFoundError:
        raise BadInput(
            f"{folder} is a device without data: bring it with `veilrec federate bring`, or leave it out"
        ) from None
    except (WrongSeal, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise BadInput(f"{path} is not the data of this device ({error}): bring back its own") from None
    return data
