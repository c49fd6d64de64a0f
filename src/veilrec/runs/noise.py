"""Where the noise of a run comes from, and whether its model may be published.

`seeded` noise is made to be repeated: whoever knows the seed of a run can draw it again and take it off. `secure` noise
is drawn from a secret that the run keeps, so that a run that was stopped goes on with the same noise, and that nobody
else can draw. Only then does a promise hold against those who see the model.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from veilrec.core.errors import BadInput, unknown_name
from veilrec.core.files import KEY_BYTES, check_key
from veilrec.methods.base import Config, Method
from veilrec.privacy.guarantee import Guarantee
from veilrec.runs.checkpoint import PRIVATE, private_folder, read_config

Noise = Literal["seeded", "secure"]
_FILE = "secret.key"
READ_OFF = "no noise covers what is read off people's data"  # how such an obstacle begins
Real = Literal["clients", "rehearsal"]
"""How real clients trained a model: each with noise of its own, or all with one shared secret (a rehearsal)."""
_OF_CLIENTS = (
    "Every client had its own user's data only, drew its own noise from the machine's cryptographic source, and charged"
    " its ledger before a message left; {sums}."
)
_OF_PLAIN_CLIENTS = "Every client had its own user's data only."
_BY_COORDINATOR = "the noise of sums is drawn by the coordinator"
_DISTRIBUTED = "the noise of sums is what clients drew, and the coordinator adds none"
_COVERED = "What is promised covers people against those who get its model and nothing else."


def check_noise(noise: str, method: Method[Config]) -> None:
    """Refuse noise that does not exist, and secrets where no client draws anything."""
    if noise not in get_args(Noise):
        raise unknown_name("noise", noise, get_args(Noise))
    if noise == "secure" and method.kind != "federated":
        raise BadInput(
            f"--noise secure is for methods that add noise, and {method.name} ({method.kind}) adds none: leave it out,"
            " or train a private method such as dp-fedmf"
        )


def new_secret() -> bytes:
    """Draw a secret from the operating system's random source."""
    return os.urandom(KEY_BYTES)


def keep_secret(folder: Path, secret: bytes) -> None:
    """Write the secret of a new run where only its owner can read it, and make sure that it is on disk."""
    path = private_folder(folder) / _FILE
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as out:
        out.write(secret)
        out.flush()
        os.fsync(out.fileno())


def kept_secret(folder: Path) -> bytes | None:
    """The secret of a run that goes on, since a round with two noises would give both away; None for seeded noise."""
    if read_config(folder).get("noise") != "secure":
        return None
    path = folder / PRIVATE / _FILE
    try:
        secret = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}): bring it back, or train into a new folder") from None
    check_key(path, secret)
    return secret


def obstacle(
    guarantee: Guarantee,
    noise: str,
    seeded_before: str | None = None,
    real: Real | None = None,
    read_off: Sequence[str] = (),
) -> str | None:
    """Why the model of a run may not be published, in plain words; None where it may.

    `seeded_before` names the earlier run that it started from, where that one's noise can be drawn again; `read_off`
    says what of the model is read off people's data exactly.
    """
    if guarantee.basis == "none":
        return "nothing is promised about what the model gives away"
    if guarantee.basis == "as published":
        return "the promise is a paper's claim and not proven"
    if seeded_before is not None:
        again = "" if noise == "secure" else ", and train this one with --noise secure as well"
        return (
            f"its model holds that of the earlier run {seeded_before}, whose noise is seeded: whoever knows the seed of"
            f" that run can draw its noise again and take it off; start from a run with secure noise{again}"
        )
    if real == "rehearsal":
        return "it is a rehearsal: whoever holds the secret that its clients share can draw all noise again"
    if noise != "secure":
        return "whoever knows the seed can draw the noise again and take it off; train with --noise secure"
    return f"{READ_OFF}: {'; '.join(read_off)}" if read_off else None


def kept_obstacle(guarantee: Guarantee, noise: str) -> str | None:
    """Say why a finished run may not be published, from its statement, which also knows of earlier runs."""
    return guarantee.obstacle or obstacle(guarantee, noise)


def stated(
    guarantee: Guarantee,
    noise: str,
    seeded_before: str | None = None,
    real: Real | None = None,
    read_off: Sequence[str] = (),
) -> Guarantee:
    """Add to a guarantee whom it covers, and why the model of the run is not to be published, if it is not.

    Statement, reports, releases and the command line all read the obstacle that stands here.
    """
    reason = obstacle(guarantee, noise, seeded_before, real, read_off)
    sums = _DISTRIBUTED if guarantee.trust == "server sees only noisy sums" else _BY_COORDINATOR
    told = _OF_PLAIN_CLIENTS if guarantee.basis == "none" else _OF_CLIENTS.format(sums=sums)
    clients = (told,) if real == "clients" else ()
    covered = (_COVERED,) if reason is None and real is None else ()
    return replace(guarantee, caveats=(*guarantee.caveats, *clients, *covered), obstacle=reason or "")
