"""`veilrec check method`: what every method owes, whoever wrote it; our own tests run the same checks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from veilrec._extras import MissingPart
from veilrec.errors import VeilrecError
from veilrec.methods.registry import get
from veilrec.runs import contract_checks as checks
from veilrec.runs import contract_sums
from veilrec.runs.contract_subject import Broken, DoesNotApply, Subject, subjects

Verdict = Literal["holds", "broken", "exempt", "does not apply", "not checked"]


@dataclass(frozen=True)
class Check:
    """One thing that a method owes."""

    name: str
    means: str
    run: Callable[[Subject], None]
    every_calibration: bool = False


CONTRACT = (
    Check("parts", "it has a plan for devices or a trainer, and says what it is", checks.parts),
    Check("settings", "every preset can be had, and impossible settings are refused in one line", checks.settings),
    Check("guarantee", "what it promises is whole, and its plan spends no more", checks.guarantee, True),
    Check("honest", "beside a paper's claim stands what accounting says", checks.honest, True),
    Check("seed", "the same seed gives the same bits, another one another model", checks.seed),
    Check("resume", "stopped and gone on gives the same bits as straight through", checks.resume),
    Check("scores", "some items are scored as all are", checks.scores),
    Check("new-users", "somebody new gets a list from a history alone", checks.new_users),
    Check("without-data", "a saved model ranks without the data that it was learnt from", checks.without_data),
    Check("learns", "it finds what made-up people like more often than popularity does", checks.learns),
    Check("cohort", "a cohort of 50 gives what 50 cohorts of one give, noise included", checks.cohort, True),
    Check("sums", "messages in any order, in shards and masked add up to the same bits", contract_sums.sums),
    Check("shortcut", "a sum learnt at once is the sum of all messages", checks.shortcut, True),
    Check("noise", "noise drawn for all at once has the size of each device's own", checks.noise_at_once, True),
    Check("bounds", "no message is larger than its bound, and noise reaches all of a sum", checks.bounds, True),
    Check("outside", "a device that has nothing in a round's part sends nothing", checks.outside_part, True),
    Check("nobody", "the plan, which everybody gets, holds nothing of anybody", checks.holds_nobody),
    Check("bytes", "bytes are counted in whole messages", checks.whole_messages, True),
    Check("real-rounds", "real devices over bytes give the simulation's model", checks.real_rounds, True),
    Check("audit", "what is proven withstands a quick audit", checks.audited),
)


@dataclass(frozen=True)
class Outcome:
    """What came of a check."""

    check: Check
    calibration: str | None
    verdict: Verdict
    found: str = ""  # why, where it does not simply hold
    seconds: float = 0.0
    data: str | None = None  # the kind of people, where it is not the usual one

    @property
    def name(self) -> str:
        """Of the check, with the calibration or the people where it is tried in several ways."""
        way = self.calibration or self.data
        return self.check.name if way is None else f"{self.check.name} ({way})"

    def to_json(self) -> dict[str, Any]:
        """For `veilrec check method --json`."""
        return {
            "check": self.check.name,
            "calibration": self.calibration,
            **({} if self.data is None else {"data": self.data}),
            "means": self.check.means,
            "verdict": self.verdict,
            "found": self.found or None,
            "seconds": round(self.seconds, 3),
        }


def cases(spec: str, names: Sequence[str] = ()) -> list[tuple[Check, Subject]]:
    """Every check of a method, in every calibration that it is about and on every kind of people; or some, by name."""
    every = subjects(spec)
    usual = [subject for subject in every if subject is every[0] or subject.data is not None]
    chosen = [check for check in CONTRACT if not names or check.name in names]
    return [(check, s) for check in chosen for s in (every if check.every_calibration else usual)]


def try_check(check: Check, subject: Subject) -> Outcome:
    """Run one check; whatever a method raises is a finding, and never ends the others."""
    started = time.perf_counter()
    verdict: Verdict = "holds"
    found = ""
    try:
        check.run(subject)
    except Broken as broken:
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
    return Outcome(check, calibration, verdict, found, time.perf_counter() - started, subject.data)


def check_method(spec: str, names: Sequence[str] = ()) -> Iterator[Outcome]:
    """Every outcome as soon as it is there."""
    get(spec)  # an unknown name is refused before anything else
    for check, subject in cases(spec, names):
        yield try_check(check, subject)
