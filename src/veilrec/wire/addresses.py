"""Which addresses are this machine's own: only there may a query or its answer travel in plain text unasked."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a host, by name or number, is this machine, for nobody else to reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
