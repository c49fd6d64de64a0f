"""How often one address may ask: a bucket of tokens for each, in a table that cannot grow without bound."""

from __future__ import annotations

import ipaddress
from math import ceil

_BURST_SECONDS = 2.0  # what may be asked at once after a pause, in seconds of the rate
_MOST = 1 << 16  # addresses that are remembered; beyond that the one seen first is forgotten


class RateLimit:
    """`rate` requests a second for each address, and twice as many at once; 0 means no limit.

    Addresses stay in memory for as long as their bucket is not full again, which is two seconds, and go nowhere.
    """

    def __init__(self, rate: float, *, most: int = _MOST) -> None:
        self.rate, self.burst, self._most = rate, max(1.0, rate * _BURST_SECONDS), most
        self._buckets: dict[str, tuple[float, float]] = {}  # tokens, and when they were counted
        self._swept = 0.0

    def __len__(self) -> int:
        return len(self._buckets)

    def wait(self, address: str, now: float) -> int:
        """0 if the address may ask now, which is counted; else the seconds until it may."""
        if self.rate <= 0:
            return 0
        if ":" in address:
            address = _network(address)
        if now - self._swept > _BURST_SECONDS:
            self._sweep(now)
        tokens, since = self._buckets.get(address, (self.burst, now))
        tokens = min(self.burst, tokens + (now - since) * self.rate)
        if tokens < 1.0:
            return ceil((1.0 - tokens) / self.rate)
        if address not in self._buckets and len(self._buckets) >= self._most:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[address] = (tokens - 1.0, now)
        return 0

    def _sweep(self, now: float) -> None:
        """Forget whose bucket is full again."""
        self._swept = now
        full = self.burst / self.rate
        self._buckets = {who: bucket for who, bucket in self._buckets.items() if now - bucket[1] < full}


def _network(address: str) -> str:
    """One household of the new internet has 2^64 addresses: they share a bucket."""
    try:
        whole = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(whole.ipv4_mapped or (int(whole) >> 64))
