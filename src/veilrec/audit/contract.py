"""The method contract behind `veilrec check method`: what every method must satisfy, whoever wrote it.

The project's own tests run the same checks over every registered method.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from veilrec.audit import contract_checks as checks
from veilrec.audit.contract_checks import need
from veilrec.audit.contract_subject import SECRET, SEED, ContractBroken, ContractSubject, DoesNotApply, subjects
from veilrec.core.errors import VeilrecError
from veilrec.core.extras import MissingPart
from veilrec.core.fixed_point import FixedPoint
from veilrec.core.schema import ClientUpdates, RoundSpec
from veilrec.methods.registry import get
from veilrec.server.aggregation import Aggregator
from veilrec.simulation.simulation import one_of

_SHARDS = 3


def sums(subject: ContractSubject) -> None:
    """Client updates in another order, in shards, and as masked integers add up to the same bits."""
    sim = subject.simulation(secret=SECRET)
    server: Any = sim.server
    taken: list[tuple[FixedPoint, ClientUpdates]] = []
    abouts: list[RoundSpec] = []
    add = server.add

    def noting(uploads: ClientUpdates) -> None:
        taken.append((server.lattice, uploads))
        abouts.append(server.about)
        add(uploads)

    server.add = noting
    sim.step(0)
    alone = [one_of(uploads, place) for _, uploads in taken for place in range(uploads.count)]
    need(len(alone) > _SHARDS, f"{len(alone)} messages are too few to be in another order")
    lattice, rule = taken[0][0], sim.plan.aggregation
    need(lattice == sim.plan.lattice(abouts[0]), "a device would add integers of another lattice")
    whole, shuffled, shards = (Aggregator(lattice, rule) for _ in range(3))
    for _, uploads in taken:
        whole.add(uploads)
    order = np.random.default_rng(SEED).permutation(len(alone))
    for place in order:
        shuffled.add(alone[place])
    for some in np.array_split(order, _SHARDS):
        part = Aggregator(lattice, rule)
        for place in some:
            part.add(alone[place])
        shards.add_integers(part.vector, devices=part.devices)
    masked = np.zeros(lattice.size, np.int64)
    for message in alone:
        masked += lattice.integers(message)[0]
    for name, other in (("in another order", shuffled.vector), ("in shards", shards.vector), ("as masked", masked)):
        need(np.array_equal(whole.vector, other), f"messages {name} add up to other bits")
    need(bool(whole.vector.any()), "nothing was added up")


Verdict = Literal["holds", "broken", "exempt", "does not apply", "not checked"]


@dataclass(frozen=True)
class ContractCheck:
    """One requirement of the contract."""

    name: str
    means: str
    run: Callable[[ContractSubject], None]
    every_calibration: bool = False


CONTRACT = (
    ContractCheck("parts", "it has a plan for devices or a trainer, and says what it is", checks.parts),
    ContractCheck(
        "settings", "every preset can be had, and impossible settings are refused in one line", checks.settings
    ),
    ContractCheck("guarantee", "what it promises is whole, and its plan spends no more", checks.guarantee, True),
    ContractCheck("honest", "beside a paper's claim stands what accounting says", checks.honest, True),
    ContractCheck("seed", "the same seed gives the same bits, another one another model", checks.seed),
    ContractCheck("resume", "a resumed training gives the same bits as an uninterrupted one", checks.resume),
    ContractCheck("scores", "some items are scored as all are", checks.scores),
    ContractCheck("new-users", "a new user gets recommendations from a history alone", checks.new_users),
    ContractCheck("without-data", "a saved model ranks without the data that it was learnt from", checks.without_data),
    ContractCheck("learns", "on synthetic data it finds held-out items more often than popularity", checks.learns),
    ContractCheck("cohort", "a cohort of 50 gives what 50 cohorts of one give, noise included", checks.cohort, True),
    ContractCheck("sums", "messages in any order, in shards and masked add up to the same bits", sums),
    ContractCheck("shortcut", "a sum learnt at once is the sum of all messages", checks.shortcut, True),
    ContractCheck("noise", "batched noise has the size of each device's own", checks.noise_at_once, True),
    ContractCheck("bounds", "no message is larger than its bound, and noise reaches all of a sum", checks.bounds, True),
    ContractCheck("outside", "a device that has nothing in a round's part sends nothing", checks.outside_part, True),
    ContractCheck("nobody", "the plan, which every client gets, holds no user's data", checks.holds_no_user_data),
    ContractCheck("bytes", "bytes are counted in whole messages", checks.whole_messages, True),
    ContractCheck("real-rounds", "real devices over bytes give the simulation's model", checks.real_rounds, True),
    ContractCheck("audit", "what is proven withstands a quick audit", checks.audited),
)


@dataclass(frozen=True)
class CheckOutcome:
    """The result of one check."""

    check: ContractCheck
    calibration: str | None
    verdict: Verdict
    found: str = ""  # why, where it does not simply hold
    seconds: float = 0.0
    data: str | None = None  # the kind of people, where it is not the usual one

    @property
    def name(self) -> str:
        """The name of the check, with the calibration or the dataset where it runs on several."""
        way = self.calibration or self.data
        return self.check.name if way is None else f"{self.check.name} ({way})"

    def to_json(self) -> dict[str, Any]:
        """JSON form for `veilrec check method --json`."""
        return {
            "check": self.check.name,
            "calibration": self.calibration,
            **({} if self.data is None else {"data": self.data}),
            "means": self.check.means,
            "verdict": self.verdict,
            "found": self.found or None,
            "seconds": round(self.seconds, 3),
        }


def cases(spec: str, names: Sequence[str] = ()) -> list[tuple[ContractCheck, ContractSubject]]:
    """All checks of a method, or those named, for every calibration and synthetic dataset they apply to."""
    every = subjects(spec)
    usual = [subject for subject in every if subject is every[0] or subject.data is not None]
    chosen = [check for check in CONTRACT if not names or check.name in names]
    return [(check, s) for check in chosen for s in (every if check.every_calibration else usual)]


def try_check(check: ContractCheck, subject: ContractSubject) -> CheckOutcome:
    """Run one check; whatever a method raises becomes a finding and does not stop the other checks."""
    started = time.perf_counter()
    verdict: Verdict = "holds"
    found = ""
    try:
        check.run(subject)
    except ContractBroken as broken:
        verdict, found = "broken", str(broken)
    except DoesNotApply as reason:
        verdict, found = "does not apply", str(reason)
    except MissingPart as missing:
        verdict, found = "not checked", str(missing)
    except VeilrecError as error:
        verdict, found = "broken", str(error)
    except Exception as error:
        verdict, found = "broken", f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    exemption = subject.exemption(check.name)
    if verdict == "holds" and exemption is not None:
        verdict, found = "exempt", exemption.reason
    several = check.every_calibration and subject.calibration is not None
    calibration = subject.calibration if several else None
    return CheckOutcome(check, calibration, verdict, found, time.perf_counter() - started, subject.data)


def check_method(spec: str, names: Sequence[str] = ()) -> Iterator[CheckOutcome]:
    """Yield every outcome as soon as it is known."""
    get(spec)  # an unknown name is refused before anything else
    for check, subject in cases(spec, names):
        yield try_check(check, subject)
