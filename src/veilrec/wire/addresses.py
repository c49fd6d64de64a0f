"""Addresses: which are this machine's own, where alone something may travel in plain text unasked, and of what form."""

from __future__ import annotations

import ipaddress
import re

from veilrec.errors import BadInput

_ORIGIN = re.compile(r"(?P<scheme>https?)://(?P<host>[a-z0-9][a-z0-9.-]*|\[[0-9a-f:]+\])(:[0-9]{1,5})?")


def is_loopback(host: str) -> bool:
    """Whether a host, by name or number, is this machine, for nobody else to reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def checked_origin(address: str) -> str:
    """An origin as browsers write it, which is safe in a header; BadInput for anything else."""
    found = _ORIGIN.fullmatch(address)
    if found is None or (found["scheme"] == "http" and not is_loopback(found["host"].strip("[]"))):
        raise BadInput(
            f"{address!r} is no origin: give https://HOST or https://HOST:PORT, in small letters and without a path"
            " (http only on this machine)"
        )
    return address
