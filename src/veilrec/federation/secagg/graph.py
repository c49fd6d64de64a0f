"""Who masks with whom: a ring in an order that the session names, everybody with the nearest k of it.

How large k and the threshold t of the shares have to be, among n devices of which at most c are corrupt (they tell
the server all that they hold) and of which g do not answer at the end. The order is that of digests bound to the
session, so that to whoever chose the corrupt and the lost before, neighbours are a random choice: hypergeometric.

- Nobody's secrets open early: fewer than t of a device's neighbours are corrupt, for all devices but with chance
  n P[H(n-1, c, k) >= t].
- The sum stays one: without the corrupt and the lost, the ring holds together. Its remaining devices are connected
  unless two disjoint runs of k/2 places are empty: chance at most n (n-1) / 2 times that of k given places.
- The round succeeds: of every device's neighbours at least t answer, but with chance n P[H(n-1, n-1-g, k) < t].
- No two lists of survivors are signed: each takes more than (n + c) / 2 signatures, and honest devices give one.

A round may begin with any number of devices from `devices` to `most`. The same c is fewer of more, and the same part
of more is found by k given places more often: so the first line is taken at the fewest, times the most, the second at
the most with as large a part missing as at the fewest, and the third at both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, comb

from veilrec.core.errors import BadInput
from veilrec.federation.secagg.terms import MOST_DEVICES, digest, packed

_ROUNDING = 1e-9  # of a share that is written in decimals


@dataclass(frozen=True)
class Neighbourhood:
    """Parameters of the mask graph of a round, known to every client from enrolment."""

    devices: int  # n: that a round begins with, at least
    degree: int  # k: of every device, an even number, or everybody else
    threshold: int  # t: shares that open a secret
    corrupt: int  # c: at most
    most: int = MOST_DEVICES  # that a round begins with

    def quorum(self, members: int) -> int:
        """Signatures under a list of survivors without which nobody reveals anything."""
        return (members + self.corrupt) // 2 + 1

    def encode(self) -> bytes:
        """Encode for the session digest."""
        return b"".join(packed(part) for part in (self.devices, self.degree, self.threshold, self.corrupt, self.most))


@dataclass(frozen=True)
class Chances:
    """The failure probabilities that a neighbourhood is chosen for."""

    leak: float = 2.0**-40  # that anything but the sum opens in a round
    failure: float = 1e-3  # that a round with that many lost has to be given up


@lru_cache(maxsize=64)
def choose(
    devices: int,
    *,
    corrupt: float,
    lost: float,
    most: int | None = None,
    chances: Chances = Chances(),  # noqa: B008
) -> Neighbourhood:
    """The smallest degree, and its smallest threshold, for these shares of corrupt and lost devices.

    Rounds begin with `devices` or more, up to `most`; of the most, that share may be corrupt.
    """
    most = devices if most is None else most
    if not 3 <= devices <= most or not 0.0 <= corrupt < 1.0 or not 0.0 <= lost < 1.0:
        raise BadInput(
            f"{devices} devices, {corrupt} corrupt, {lost} lost: give 3 or more, and shares from 0 to below 1"
        )
    bad = ceil(corrupt * most - _ROUNDING)
    for members in (devices, most):
        gone = _part(lost, members)
        if (members + bad) // 2 + 1 > members - gone:
            raise BadInput(
                f"of {members} devices {bad} may be corrupt and {gone} be lost: more than half of all, and half as many"
                " as the corrupt beyond that, have to stay to the end; plan for fewer, or use helpers"
            )
    missing = -(-(bad + _part(lost, devices)) * most // devices)
    for degree in range(4, devices - 1, 2):
        threshold = _threshold(devices, bad, degree, chances.leak / most)
        if threshold is None or _torn(most, missing, degree) > chances.leak:
            continue
        if all(most * _left(n, _part(lost, n), degree, threshold) <= chances.failure for n in (devices, most)):
            return Neighbourhood(devices, degree, threshold, bad, most)
    # Everybody next to everybody: nothing is left to chance, and those of the quorum are enough to open secrets.
    return Neighbourhood(devices, most - 1, bad + 1, bad, most)


def _part(share: float, devices: int) -> int:
    return int(share * devices + _ROUNDING)


def _left(devices: int, gone: int, degree: int, threshold: int) -> float:
    """Probability that too few of a client's neighbours answer at the end."""
    return _below(threshold, devices - 1, devices - 1 - gone, degree)


def _threshold(devices: int, bad: int, degree: int, leak: float) -> int | None:
    """The smallest t with P[corrupt neighbours >= t] <= leak."""
    reach = 0.0
    for count in range(min(degree, bad), -1, -1):
        reach += _exactly(count, devices - 1, bad, degree)
        if reach > leak:
            return count + 1 if count < degree else None
    return 1


def _torn(devices: int, missing: int, degree: int) -> float:
    """At most how likely it is that the ring falls apart."""
    return comb(devices, 2) * comb(missing, degree) / comb(devices, degree)


def _exactly(count: int, people: int, marked: int, drawn: int) -> float:
    return comb(marked, count) * comb(people - marked, drawn - count) / comb(people, drawn)


def _below(count: int, people: int, marked: int, drawn: int) -> float:
    return sum(_exactly(x, people, marked, drawn) for x in range(min(count, marked + 1)))


def neighbours(session: bytes, members: Sequence[int], degree: int) -> dict[int, tuple[int, ...]]:
    """Everybody's neighbours among the members; everybody works out the same."""
    order = sorted(members, key=lambda number: digest(b"place", session, packed(number)))
    n, half = len(order), degree // 2
    if degree >= n - 1:
        return {one: tuple(sorted(other for other in order if other != one)) for one in order}
    return {
        one: tuple(sorted(order[(place + step) % n] for step in range(-half, half + 1) if step))
        for place, one in enumerate(order)
    }
