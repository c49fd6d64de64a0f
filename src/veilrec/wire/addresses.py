"""Addresses: which are this machine's own, where alone something may travel in plain text unasked, and of what form."""

from __future__ import annotations

import ipaddress
import re

from veilrec.errors import BadInput

_ORIGIN = re.compile(r"(?P<scheme>https?)://(?P<host>[a-z0-9][a-z0-9.-]*|\[[0-9a-f:]+\])(:[0-9]{1,5})?")
_LABEL = r"(?!-)[a-zA-Z0-9_-]{1,63}(?<!-)"
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*")


def checked_host(host: str) -> str:
    """A name or an IP address of a machine, without port and brackets; BadInput for anything else."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if _NAME.fullmatch(host) is None or host.rpartition(".")[2].isdecimal():
            raise BadInput(
                f"{host!r} is no name and no IP address of a machine: give one such as coordinator.example.org,"
                " 192.0.2.7 or ::1, without https:// and port"
            ) from None
    if "%" in host:
        raise BadInput(f"{host!r} has a zone that only this machine knows: give an address without it")
    return host


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
