"""The plan of a federation: from public facts alone, with distributed noise where that is wanted, and its secure sums.

The public facts themselves are in `veilrec.methods.public`. Whoever makes a federation checks that the plan of the
facts is the plan of the data (`making`).

With distributed noise clients add the noise that the server would add, each a part, so that nobody sees a sum without.

A secure sum is over the updates of a round, over what everybody reports before the first one, or over the gains of
held-out validation clients after the last one. Reports are summed under masks where the server is trusted with them
(`ItemReports.under_masks`). What is told once is whole numbers, and its mechanism says how large (`masked_width`): no
sum of honest clients wraps around or is refused for its width.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from veilrec.client.federated import plan_digest
from veilrec.core.errors import BadInput, counted
from veilrec.core.plan import Plan
from veilrec.core.schema import FIRST_COMPARISON_SUM, FIRST_REPORT_SUM, ComparisonSum, ReportSum, RoundSpec
from veilrec.data import packed
from veilrec.federation.federation import CA, FACTS, FILE, Federation, SecAgg
from veilrec.federation.secagg.terms import Neighbourhood, Terms
from veilrec.methods.base import IN_PLAINTEXT, Config, Method, promised
from veilrec.methods.private import DECLARED, SERVER_SEES
from veilrec.methods.public import public_problem
from veilrec.methods.registry import get
from veilrec.privacy.accounting.composition import flattened
from veilrec.privacy.budget import Budget, Cost, budget_for
from veilrec.privacy.disclosure import disclosure_of
from veilrec.privacy.events import Event
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.base import Mechanism, SummedOnce
from veilrec.privacy.mechanisms.distributed import DistributedNoiseSum
from veilrec.privacy.mechanisms.sums import CohortSum
from veilrec.wire import messages

_ROOM = 1 << 16  # bytes of heads
_OF_ONE_CLIENT = 512  # bytes: two round keys, a lasting key and its endorsement, in hexadecimal digits
_OF_MASKS = (
    "The epsilon is not against the server: it sees who takes part, and sums before it adds the noise. With"
    " noise of clients (privacy.noise=distributed) nobody sees a sum without noise."
)
_EXACT_SUMS = (
    "The server sees no single message, but exact sums of them, which no noise covers: where few clients are in one, or"
    " much is known of the others, it tells what a client has sent."
)
_OF_HELPERS = "It takes secure sums that hold: one of the helpers has to refuse to work with the server."
_OF_REHEARSALS = "A rehearsal protects nobody: whoever made it can draw all of its noise again."
_MARGIN = 1.0 + 1e-9  # of an epsilon that was rounded
_FEWEST = 2  # clients of a secure sum, whatever is asked for
_LAST_DIGITS = 1e-9  # by which figures may differ from machine to machine


class FederationFacts:
    """The method of a federation, its settings, and the plan that everybody makes of its files."""

    def __init__(self, folder: Path, federation: Federation) -> None:
        self.folder, self.federation = folder, federation
        if not packed.is_packed(folder / FACTS):
            raise BadInput(f"{folder / FACTS} is not there: copy it from the federation, beside {FILE} and {CA}")
        if digest_of(folder / FACTS) != federation.facts:
            raise BadInput(f"{folder / FACTS} is not that of this federation: copy it again from where init wrote it")
        self.people = packed.load(folder / FACTS)
        self.method: Method[Any] = get(federation.method)
        self.config = config_of(self.method, federation)
        self.problem = public_problem(self.people, seed=federation.seed, rounds=federation.rounds)
        if self.method.plan is None:
            raise BadInput(f"{self.method.name} has no plan for clients: a federation needs a federated method")
        self.plan = self.method.plan(self.config, self.problem)
        if plan_digest(self.plan) != federation.plan:
            raise BadInput(
                f"this veilrec makes another plan of {folder / FILE} than the one that was agreed on: use the veilrec"
                " that made the federation"
            )
        self.guarantee = self._promise()
        self.budget, unprotected = spending_of(self.plan)
        least = least_for(self.plan, federation.secagg, federation.minimum_messages)
        self._refuse_edited(
            guarantee=self.guarantee.to_json(),
            budget=budget_fields(self.budget),
            unprotected=unprotected,
            least=least,
            least_reported=least_reported(self.plan, least),
            least_compared=least_compared(self.plan, federation.validators),
        )

    def _promise(self) -> Guarantee:
        """What the plan promises, whatever the file says."""
        made, guarantee = self.federation, promised(self.method, self.config, self.problem)
        woven = made.woven() if made.secagg == "pairs" else None
        return of_clients(
            guarantee, self.plan, made.secagg, woven, rehearsal=made.rehearsal, declared=made.public_catalogue
        )

    def _refuse_edited(self, **derived: Any) -> None:
        """Refuse a file whose promise or budget is not that of its plan: nobody takes its word for an epsilon."""
        learn = int((self.method.clients(self.config, self.problem).rows.lengths() > 0).sum())
        for name, value in {**derived, "clients": learn}.items():
            for place, (said, found) in _differing(name, getattr(self.federation, name), value):
                raise BadInput(
                    f"{self.folder / FILE} says {place} {said}, and its plan comes to {found}: it was edited, so"
                    " nothing is done; bring back the one that init wrote"
                )


def least_for(plan: Plan, secagg: SecAgg, minimum_messages: int | None) -> int:
    """Number of clients without which no secure sum of a plan's rounds is opened.

    Where clients add the noise, as many as it takes. A proof that is about whole cohorts needs all of a cohort;
    otherwise half of it, unless told otherwise.
    """
    if secagg == "none":
        return _FEWEST
    mechanism, size = plan.mechanism, plan.cohort.size
    if isinstance(mechanism, DistributedNoiseSum):
        return max(_FEWEST, mechanism.distributed_noise.least)
    if isinstance(mechanism, CohortSum):
        size = size or mechanism.taking_part.population
        if plan.cohort.sampling != "poisson":
            return max(_FEWEST, size)
    return max(_FEWEST, minimum_messages or size // 2)


def least_reported(plan: Plan, least: int) -> int:
    """Number of clients without which no sum of reports is opened: as many as carry its noise, or as in rounds."""
    shares = None if plan.reports is None else plan.reports.mechanism.shares
    return least if shares is None else max(_FEWEST, shares.carried.least)


def least_compared(plan: Plan, validators: int) -> int:
    """Number of validation clients without which no sum of gains is opened: as many as carry its noise, or half."""
    shares = None if plan.model_selection is None else plan.model_selection.mechanism.shares
    return max(_FEWEST, (validators + 1) // 2 if shares is None else shares.carried.least)


def _differing(place: str, said: Any, found: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Where two statements differ by more than the last digits of a number, the figures first."""
    if isinstance(said, Mapping) and isinstance(found, Mapping):
        names = sorted({*said, *found}, key=lambda name: (not isinstance(found.get(name), float), name))
        for name in names:
            yield from _differing(f"{place}.{name}", said.get(name), found.get(name))
    elif isinstance(said, list | tuple) and isinstance(found, list | tuple) and len(said) == len(found):
        for number, pair in enumerate(zip(said, found, strict=True)):
            yield from _differing(f"{place}.{number}", *pair)
    elif isinstance(said, float) and isinstance(found, int | float):
        if not math.isclose(said, found, rel_tol=_LAST_DIGITS):
            yield place, (said, found)
    elif said != found or type(said) is not type(found):
        yield place, (said, found)


def budget_fields(budget: Budget) -> dict[str, Any]:
    """A budget as `federation.yaml` has it."""
    return {name: value for name, value in vars(budget).items() if value is not None}


def config_of(method: Method[Any], federation: Federation) -> Config:
    """The settings, as they were when the federation was made."""
    try:
        found: Config = method.config.model_validate(federation.config)
    except ValueError as error:
        raise BadInput(f"{FILE}: the config of {method.name} cannot be read ({str(error).splitlines()[0]})") from None
    return found


def digest_of(folder: Path) -> str:
    """Digest all files of the facts."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        total.update(f"{path.name}\n".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def largest_content(known: FederationFacts) -> int:
    """Bytes of the largest thing that a federation sends: twice a whole model, for those who compare two."""
    return 2 * _whole_model(known.plan) + _said_of_clients(known) + _ROOM


def largest_answer(known: FederationFacts) -> int:
    """Bytes of the largest answer that a federation allows: every entry of the model with its number beside it."""
    plan = known.plan
    items = 0 if plan.reports is None else plan.reports.mechanism.length
    reports = max(messages.size(items), 8 * items)  # under masks an item takes a word
    return max(3 * _whole_model(plan), reports) + _said_of_clients(known) + _ROOM


def _said_of_clients(known: FederationFacts) -> int:
    """Keys, shares and signatures, where clients mask against each other."""
    return _OF_ONE_CLIENT * known.federation.clients if known.federation.secagg == "pairs" else 0


def _whole_model(plan: Plan) -> int:
    return sum(8 * int(np.prod(tensor.shape)) for tensor in plan.schema.tensors)


_WIDTH = 64  # bits of a sum, as in rounds whose messages are seen


def terms_of(plan: Plan, spec: RoundSpec, federation: bytes, least: int | None = None) -> Terms:
    """Terms of the secure sum of a round; `least`: clients, where the plan's own noise does not say how many."""
    fixed_point = plan.fixed_point(spec)
    if least is not None and not isinstance(plan.mechanism, DistributedNoiseSum):
        return Terms(federation, spec.number, fixed_point.size, _WIDTH, least)
    mechanism = _shared(plan)
    return Terms(
        federation, spec.number, fixed_point.size, mechanism.width(fixed_point, spec), mechanism.distributed_noise.least
    )


def _shared(plan: Plan) -> DistributedNoiseSum:
    if not isinstance(plan.mechanism, DistributedNoiseSum):
        raise BadInput(
            f"the noise of the plan's {plan.mechanism.name} is not the clients': plan with privacy.noise=distributed"
        )
    return plan.mechanism


def spending_of(plan: Plan) -> tuple[Budget, bool]:
    """What a client may spend: just what the whole plan costs it as its ledger counts, which no sampling makes cheaper.

    True beside it: messages leave in plaintext, and no budget is large enough for them.
    """
    plenty = budget_for(plan)
    mechanism, reports = plan.mechanism, plan.reports
    events: list[tuple[Mechanism[Any, Any], Event]]
    costs = mechanism.events(plan.participations)  # of the rounds that a client takes part in, the costliest
    events = [(mechanism, event) for event, count in costs for _ in range(count)]
    if reports is not None:
        events += [(reports.mechanism, reports.mechanism.event())] * (plan.rounds if reports.fresh else 1)
    if plan.model_selection is not None:
        events.append((plan.model_selection.mechanism, plan.model_selection.mechanism.event()))
    clear = any(flattened(event).in_plaintext for _, event in events)
    total = Cost()
    for owner, event in events:
        cost = None if flattened(event).in_plaintext else plenty.cost(event, owner.unit, owner.adjacency)
        total = total if cost is None else total.plus(cost)
    if total == Cost():
        return plenty, clear
    epsilon = plenty.spent(total)[0] * _MARGIN
    budget = replace(plenty, epsilon=epsilon, lifetime_epsilon=epsilon)
    while not budget.allows(total, total):  # rounding
        epsilon *= _MARGIN
        budget = replace(plenty, epsilon=epsilon, lifetime_epsilon=epsilon)
    return budget, clear


def trusting(guarantee: Guarantee, secagg: SecAgg, woven: Neighbourhood | None = None) -> Guarantee:
    """Restate a guarantee for a server that sees only sums."""
    if secagg == "none" or guarantee.trust == "nobody":
        return guarantee
    told = tuple(c for c in guarantee.caveats if c != SERVER_SEES and not c.startswith(IN_PLAINTEXT))
    if guarantee.basis == "none":
        return replace(guarantee, caveats=(*told, _EXACT_SUMS))
    trust = guarantee.trust
    if trust == "server":
        trust, told = "server sees only sums", (*told, _OF_MASKS, *(() if woven else (_OF_HELPERS,)))
    if woven:
        told += (
            f"It takes secure sums that hold: of the {woven.clients} to {woven.most} clients of a round at most"
            f" {woven.corrupt} may work with the server. Whoever was invited may take part: clients that an operator"
            " made up count among these.",
        )
    return replace(guarantee, trust=trust, caveats=told)


def of_clients(
    guarantee: Guarantee,
    plan: Plan,
    secagg: SecAgg,
    woven: Neighbourhood | None = None,
    *,
    rehearsal: bool = False,
    declared: bool = False,
) -> Guarantee:
    """Restate a guarantee for real clients: for what the server sees, and with their own caveats."""
    guarantee = trusting(guarantee, secagg, woven)
    more = ((DECLARED,) if declared else ()) + ((_OF_REHEARSALS,) if rehearsal else ())
    disclosure = disclosure_of(plan, masked=secagg != "none")
    return replace(guarantee, caveats=(*guarantee.caveats, *more), disclosure=disclosure)


Summed: TypeAlias = RoundSpec | ReportSum | ComparisonSum

ATTEMPTS = {"helpers": 1, "pairs": 64}
"""Sums of reports that a client takes part in, at most: a server that has seen two learns how they differ.

Helpers can be asked about the same list for ever, so that one is enough. Clients that were killed on the way have left
a sum among clients alone for good; it is begun anew, under a number of its own.
"""


def terms_in(made: Federation, plan: Plan, spec: Summed) -> Terms:
    """Work out the terms of a secure sum from the federation's file, as server and clients each do."""
    if isinstance(spec, RoundSpec):
        if spec.number >= FIRST_REPORT_SUM:
            raise BadInput(f"round {spec.number} has the number of a sum of reports: rounds have smaller ones")
        return terms_of(plan, spec, made.digest, made.least)
    attempts = ATTEMPTS.get(made.secagg, 0)
    mechanism, clients = _told_once(made, plan, spec)
    if spec.attempt >= attempts:
        raise BadInput(
            f"what is told once is added up {counted(attempts, 'time')} at most, and this is time {spec.attempt + 1}"
        )
    least = made.least_of(spec.number)
    return Terms(made.digest, spec.number, mechanism.masked_length, mechanism.masked_width(clients), least)


def _told_once(made: Federation, plan: Plan, spec: ReportSum | ComparisonSum) -> tuple[SummedOnce[Any, Any], int]:
    """What clients tell in a sum beside rounds, and how many of them there are."""
    if isinstance(spec, ReportSum):
        if plan.reports is None or not plan.reports.mechanism.under_masks:
            raise BadInput("this plan has no reports that are added up under masks: nothing is sent")
        return plan.reports.mechanism, made.clients
    if plan.model_selection is None:
        raise BadInput("this plan has no validation clients: nothing is sent")
    return plan.model_selection.mechanism, made.validators


def summed(number: int) -> Summed:
    """Which kind of sum a number is that of; nothing else is known of a round by it."""
    return RoundSpec(number) if number < FIRST_REPORT_SUM else told_once(number)


def told_once(number: int) -> ReportSum | ComparisonSum:
    """The sum of reports or gains that has this number; a round's is refused."""
    if number < FIRST_REPORT_SUM:
        raise BadInput(f"number {number} is that of a round, and no sum of reports or gains has it: nothing is sent")
    if number < FIRST_COMPARISON_SUM:
        return ReportSum(number - FIRST_REPORT_SUM)
    return ComparisonSum(number - FIRST_COMPARISON_SUM)
