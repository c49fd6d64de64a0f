"""A client's folder: its own user's data, its keys, its invitation, and the ledger that `FederatedClient` keeps there.

| file | what it is |
|---|---|
| `key` | 32 random bytes that everything else is sealed with; may lie elsewhere |
| `data` | the user's data, sealed |
| `client.json` | the client's number and place; in a rehearsal, the secret that all noise is drawn from |
| `invitation` | what it enrols with, once |
| `identity.key` | its Ed25519 key, made here when it first starts; never leaves |
| `lock` | held by the one process that works on the folder |
| `ledger`, `ledger.seq` | what was spent, what the trainer keeps, the last message (`veilrec.client.federated`) |
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from veilrec.client.federated import FederatedClient
from veilrec.client.local_training import LocalData
from veilrec.core.errors import BadInput, counted
from veilrec.core.files import Seal, WrongSeal, key_in, replacing
from veilrec.federation.facts import FederationFacts
from veilrec.federation.federation import CLIENTS, FILE
from veilrec.federation.identity import IDENTITY, INVITATION, Invitation, keep, read_invitation
from veilrec.privacy.ledger import Ledger
from veilrec.privacy.randomness import (
    KeyedSource,
    noise_of_client,
    noise_of_learning,
    noise_of_report,
    share_of_comparison,
    share_of_report,
)

DATA = "data"
Data = TypeVar("Data", bound=LocalData)


def arrays_of(value: Any, prefix: str = "") -> dict[str, NDArray[Any]]:
    """Every array of a client's data by the names of the fields that lead to it."""
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


def write_data(folder: Path, data: LocalData, seal: Seal) -> None:
    """Put a client's data into its folder."""
    content = save({name: np.ascontiguousarray(array) for name, array in arrays_of(data).items()})
    with replacing(folder / DATA, mode=0o600) as part:
        part.write_bytes(seal.close(content, DATA))


def read_data(folder: Path, template: Data, seal: Seal) -> Data:
    """A client's data, of the kind that the template is."""
    path = folder / DATA
    try:
        arrays = load(seal.open(path.read_bytes(), DATA))
        data: Data = filled(template, arrays)
    except FileNotFoundError:
        raise BadInput(
            f"{folder} is a client without data: bring it with `veilrec federate bring`, or leave it out"
        ) from None
    except (WrongSeal, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise BadInput(f"{path} is not the data of this device ({error}): bring back its own") from None
    return data


KEY, ABOUT, LEDGER = "key", "client.json", "ledger"


def name_of(number: int) -> str:
    """Name of the client with a number."""
    return f"d{number:05d}"


@dataclass(frozen=True)
class ClientRecord:
    """The content of `client.json`."""

    number: int
    place: int  # at the coordinator, among those of its role
    shared: bytes | None  # of a rehearsal


def write(
    folder: Path, data: LocalData | None, invitation: Invitation, *, number: int, place: int, shared: bytes | None
) -> None:
    """A folder that is ready to be handed to its user, who brings the data if there is none yet."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    seal = Seal(key_in(folder / KEY))
    if data is not None:
        write_data(folder, data, seal)
    spec = {"number": number, "place": place} | ({} if shared is None else {"shared": shared.hex()})
    keep(folder / ABOUT, json.dumps(spec) + "\n")
    keep(folder / INVITATION, invitation.text())


def check(folder: Path) -> None:
    """Refuse what is no client's folder, and name those of a federation that was given in their place."""
    if not folder.is_dir():
        raise BadInput(f"there is no client {folder}: give a folder that `veilrec federate init` made")
    if (folder / ABOUT).is_file():
        return
    above = folder / CLIENTS if (folder / FILE).is_file() else folder
    found = sorted(place for place in above.glob("*") if (place / ABOUT).is_file())
    if not found:
        raise BadInput(f"{folder} is no client: it has no {ABOUT}; give a folder that `federate init` made")
    several = f"{found[0]} to {found[-1].name}" if len(found) > 1 else f"{found[0]}"
    raise BadInput(f"{folder} is no client, but holds {counted(len(found), 'client')}: give one or more of {several}")


def read_record(folder: Path) -> ClientRecord:
    """Read `client.json`."""
    try:
        content = json.loads((folder / ABOUT).read_text())
        shared = content.get("shared")
        return ClientRecord(
            int(content["number"]), int(content["place"]), None if shared is None else bytes.fromhex(shared)
        )
    except FileNotFoundError:
        raise BadInput(f"{folder} is no client: it has no {ABOUT}; give a folder that `federate init` made") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{folder / ABOUT} cannot be read ({type(error).__name__}): bring back its own") from None


def open_client(folder: Path, known: FederationFacts) -> FederatedClient[Any]:
    """The client of a folder, whatever happened to the process that had it before."""
    spec, made = read_record(folder), known.federation
    read_invitation(folder).check(made)
    if made.rehearsal != (spec.shared is not None):
        raise BadInput(f"{folder} is of a rehearsal, or the federation is one, and not both: use what belongs together")
    if not (folder / KEY).is_file():
        raise BadInput(f"{folder / KEY}: there is no key here, and without it nothing of this device can be read")
    data = data_of(folder, known, spec.number)
    validates = _validates(known, data)
    noise = _noise_of(spec, validates=validates)
    if Ledger.was_made(folder / LEDGER):
        return FederatedClient.open(folder, known.plan, data, **noise)
    if (folder / IDENTITY).exists():
        raise BadInput(
            f"{folder / LEDGER} is gone, and this client has taken part: what it has spent is not known, so it sends"
            " nothing; bring the ledger back"
        )
    return FederatedClient.create(
        folder,
        known.plan,
        data,
        [known.budget],
        number=spec.number,
        draws_seed=made.seed if made.rehearsal else None,
        unprotected=made.unprotected,
        **noise,
    )


def data_of(folder: Path, known: FederationFacts, number: int) -> LocalData:
    """The user's data; a client that has none takes no part."""
    everybody = known.method.clients(known.config, known.problem)
    if not 0 <= number < len(everybody.rows):
        raise BadInput(f"{folder} is client {number}, and this federation has no such: it belongs to another one")
    template = everybody.take(np.array([number], np.int64))
    data = read_data(folder, template, Seal(key_in(folder / KEY)))
    if not data.rows.lengths()[0] and not _validates(known, data):
        raise BadInput(f"{folder} is a client without data: it has nothing to learn from, so it takes no part")
    return data


def _validates(known: FederationFacts, data: LocalData) -> bool:
    """Whether this is the data of a held-out validation client."""
    return known.plan.model_selection is not None and len(known.plan.model_selection.validator.clients(data)) > 0


def _share_of_gain(secret: bytes, period: int, number: int) -> KeyedSource:
    return share_of_comparison(secret, number)


def _noise_of(spec: ClientRecord, *, validates: bool) -> dict[str, Any]:
    """Where noise comes from: the machine's own source, but in a rehearsal the secret that all clients share."""
    if spec.shared is None:
        return {}
    secret, number = spec.shared, spec.number
    share = _share_of_gain if validates else share_of_report
    return {
        "noise_of_message": lambda round_number: noise_of_client(secret, round_number, number),
        "noise_of_report": lambda period: noise_of_report(secret, period, number),
        "noise_of_learning": lambda round_number: noise_of_learning(secret, round_number, number),
        "noise_of_share": lambda period: share(secret, period, number),
    }
