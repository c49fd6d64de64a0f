"""Whom a federation trusts: what `veilrec federate init --trust` sets, what does not go together, and what it costs.

`server`: messages as they are, and the server adds the noise. `sums`: secure aggregation, and the server adds the noise
to exact sums. `noisy-sums`: secure aggregation, and the clients add the noise. Without a choice the strongest one is
tried first that the other options allow, and one that a method or its data does not admit gives way to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import ceil, sqrt
from typing import Any, Literal

from veilrec.core.errors import BadInput, counted
from veilrec.core.plan import Plan
from veilrec.core.schema import ReportSum
from veilrec.evaluation.evaluator import evaluate_cases
from veilrec.federation.facts import terms_in, terms_of
from veilrec.federation.federation import Federation
from veilrec.methods.base import Config, Problem, is_set
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.distributed import DistributedNoiseSum
from veilrec.privacy.mechanisms.schedules import TreeSum
from veilrec.privacy.mechanisms.shares import DistributedNoise
from veilrec.runs.request import PreparedRun
from veilrec.simulation.simulation import Simulation
from veilrec.wire import messages

TrustOption = Literal["server", "sums", "noisy-sums"]
Masks = Literal["helpers", "pairs"]
STRONGEST_FIRST: tuple[TrustOption, ...] = ("noisy-sums", "sums", "server")
_NOISE, _SILENT, _LOST = "privacy.noise", "privacy.silent", "privacy.lost"
_LOST_BY_ITSELF = 0.1  # of the clients of a noisy sum, beside free places, unless --lost says otherwise
_MEASURED = ("hr@10", "ndcg@10", "auc", "mrr")  # of lists, and of impressions
_LOST_OF_PAIRS, _CORRUPT, _HELPERS = 0.3, 0.2, 2


@dataclass(frozen=True, kw_only=True)
class TrustWishes:
    """The options of `veilrec federate init` about trust; None where nothing was said."""

    trust: TrustOption | None = None
    secagg: Masks | None = None
    helpers: int | None = None
    silent: float | None = None
    lost: float | None = None
    corrupt: float | None = None


@dataclass(frozen=True, kw_only=True)
class TrustChoice:
    """A trust model with everything that follows from it."""

    trust: TrustOption = "server"
    secagg: Literal["none", "helpers", "pairs"] = "none"
    settings: tuple[str, ...] = ()  # of the method, before those of the user
    helpers: int = _HELPERS
    corrupt: float = _CORRUPT  # share of a round's clients that may work with the server, in sums among clients alone
    lost: float = _LOST_OF_PAIRS  # share of them that may be gone before the end, likewise


def choices(wishes: TrustWishes, settings: tuple[str, ...], clients: int, places: int) -> tuple[TrustChoice, ...]:
    """The trust models that the options allow, the strongest first; options that exclude each other raise BadInput."""
    masks: Masks = wishes.secagg or "helpers"
    if wishes.corrupt is not None and masks != "pairs":
        raise BadInput("--corrupt is for sums among clients alone: add --secagg pairs, or leave it out")
    if wishes.helpers is not None and masks != "helpers":
        raise BadInput("--helpers are those of --secagg helpers, and with --secagg pairs there are none: leave one out")
    asked = STRONGEST_FIRST if wishes.trust is None else (wishes.trust,)
    reasons = {trust: _unfit(trust, wishes, settings) for trust in asked}
    fit = [trust for trust in asked if reasons[trust] is None]
    if not fit:
        raise BadInput(str(reasons[asked[0]]))
    return tuple(_chosen(trust, masks, wishes, settings, clients, places) for trust in fit)


def _unfit(trust: TrustOption, wishes: TrustWishes, settings: tuple[str, ...]) -> str | None:
    """Why the other options do not go with a trust model."""
    given = {name: value for name, value in asdict(wishes).items() if name != "trust" and value is not None}
    noise = next((s.partition("=")[2].strip() for s in reversed(settings) if is_set((s,), _NOISE)), None)
    if trust == "server" and given:
        name = next(iter(given))
        return f"--{name} is about secure aggregation, and --trust server has none: use --trust noisy-sums or sums"
    if trust == "sums" and "silent" in given:
        return "--silent is about noise that clients add, and with --trust sums the server does: use --trust noisy-sums"
    if trust == "sums" and "lost" in given and wishes.secagg != "pairs":
        return (
            "--lost is about noise that clients add, or sums among clients alone: use --trust noisy-sums or --secagg"
            " pairs, or leave it out"
        )
    if (trust == "noisy-sums") != (noise == "distributed") and noise is not None:
        other = "noisy-sums" if noise == "distributed" else "sums or server"
        return f"--set {_NOISE}={noise} is --trust {other}, and --trust is {trust}: leave one of them out"
    for option, name in (("silent", _SILENT), ("lost", _LOST)):
        if option in given and is_set(settings, name):
            return f"--{option} sets {name}, and --set does as well: leave one of them out"
    return None


def _chosen(
    trust: TrustOption, masks: Masks, wishes: TrustWishes, settings: tuple[str, ...], clients: int, places: int
) -> TrustChoice:
    if trust == "server":
        return TrustChoice()
    made = TrustChoice(
        trust=trust,
        secagg=masks,
        helpers=wishes.helpers or _HELPERS,
        corrupt=_CORRUPT if wishes.corrupt is None else wishes.corrupt,
        lost=_LOST_OF_PAIRS if wishes.lost is None else wishes.lost,
    )
    if trust == "sums":
        return made
    # A free place is a client that is lost. Rounded up: rounded down, it would be a client less.
    margin = ceil((places + _LOST_BY_ITSELF * clients) / (places + clients) * 1e6 - 1e-6) / 1e6
    lost = margin if wishes.lost is None else wishes.lost
    colluding = made.corrupt if masks == "pairs" else 0.0  # the server knows the noise of those who work with it
    silent = colluding if wishes.silent is None else wishes.silent
    own = {_NOISE: "distributed", _SILENT: silent, _LOST: lost}
    return replace(
        made, lost=lost, settings=tuple(f"{name}={value}" for name, value in own.items() if not is_set(settings, name))
    )


@dataclass(frozen=True)
class Traffic:
    """Bytes of a client, without keys and signatures: one message, the model of a round, and all of a run."""

    message: int
    model: int
    rounds: float  # that a client takes part in, on average
    run_up: int
    run_down: int


@dataclass(frozen=True)
class TrustCosts:
    """What a trust model costs beside `--trust server`."""

    trust: TrustOption
    traffic: Traffic
    by_server: Traffic  # with `--trust server`
    parties: tuple[str, ...]  # who is needed, in words
    noise: Mapping[str, float]  # standard deviation on sums over that of `--trust server`, by what is summed
    accuracy: Mapping[str, tuple[float, float]]  # in a rehearsal: here and with `--trust server`, by metric
    compare: str = ""  # the command that measures accuracy; empty where the noise is the same

    def to_json(self) -> dict[str, Any]:
        """All of it, for `--json`."""
        return asdict(self) | {"noise": dict(self.noise), "parties": list(self.parties)}


def costs(
    made: Federation, choice: TrustChoice, prepared: PreparedRun, run: Simulation, problem: Problem
) -> TrustCosts:
    """Work out what a trust model costs: noise from two plans, bytes from their first rounds, which are simulated.

    Of a rehearsal, which protects nobody, both plans are simulated to their end and measured.

    Args:
        run: the simulation of the federation's people, after its first round.
        problem: with the free places, of which `prepared` and `run` know nothing.
    """
    plan = central = run.plan
    whole = whole_central = plan if prepared.method.plan is None else prepared.method.plan(prepared.config, problem)
    if choice.trust == "noisy-sums" and prepared.method.plan is not None:
        settings = _central(prepared, made.dataset)
        central, whole_central = (prepared.method.plan(settings, of) for of in (prepared.problem, problem))
    by_server = _traffic(Simulation(central, run.data, run.histories, run.seeds), made.validators)
    traffic, noise = by_server, dict[str, float]()
    if made.secagg != "none":
        vector = terms_of(whole, run.server.spec, made.digest, made.least).vector_bytes
        report = by_server.run_up - round(by_server.rounds * by_server.message)
        if whole.reports is not None and whole.reports.mechanism.under_masks:
            report = terms_in(made, whole, ReportSum()).vector_bytes
        times = _times(run)
        traffic = Traffic(
            vector, by_server.model, times, round(times * vector) + report, round(times * by_server.model)
        )
    accuracy = dict[str, tuple[float, float]]()
    if central is not plan:
        noise = _noise(whole, whole_central)
        if made.rehearsal:
            here, there = (
                _measured(Simulation(p, run.data, run.histories, run.seeds), prepared) for p in (plan, central)
            )
            accuracy = {name: (value, there[name]) for name, value in here.items()}
    return TrustCosts(choice.trust, traffic, by_server, tuple(parties(made, whole)), noise, accuracy)


def _measured(run: Simulation, prepared: PreparedRun) -> dict[str, float]:
    """Two of the main metrics after all rounds."""
    for number in range(run.plan.rounds):
        run.step(number)
    found = evaluate_cases(prepared.split.test, prepared.split.train, run.model()).main
    return {name: found[name] for name in _MEASURED if name in found}


def _times(run: Simulation) -> float:
    clients = max(1, int((run.data.rows.lengths() > 0).sum()))
    return run.plan.rounds * min(clients, run.plan.cohort.among(clients)) / clients


def _traffic(run: Simulation, validators: int) -> Traffic:
    """Bytes of a client in plaintext, by the first round that has anybody in it."""
    for number in range(run.plan.rounds):
        done = run.step(number)
        if done.clients:
            break
    compared = validators if number + 1 == run.plan.rounds and run.plan.model_selection is not None else 0
    clients, times = max(1, done.clients), _times(run)
    model = done.down_bytes // (clients + 2 * compared)
    message = (done.up_bytes - done.selection_bytes - messages.SIZE * compared) // clients
    report = done.selection_bytes // clients
    return Traffic(message, model, times, round(times * message) + report, round(times * model))


def _central(prepared: PreparedRun, dataset: str) -> Config:
    """Settings with noise of the server, and cohorts drawn as they are where it adds the noise."""
    settings = (*prepared.request.settings, f"{_NOISE}=central", f"{_SILENT}=0", f"{_LOST}=0")
    config = replace(prepared.request, settings=settings).configured(dataset)[0]
    cohorts: list[Any] = [getattr(one, "cohort", None) for one in (config, prepared.config)]
    if None in cohorts:
        return config
    return config.model_copy(update={"cohort": replace(cohorts[0], size=cohorts[1].size)})


def _noise(plan: Plan, central: Plan) -> dict[str, float]:
    """Standard deviations of the noise on full sums, over those of noise of the server."""
    found = {"updates": _of_all_rounds(plan) / _of_all_rounds(central)}
    reports = [None if p.reports is None else p.reports.mechanism for p in (plan, central)]
    gains = [None if p.model_selection is None else p.model_selection.mechanism for p in (plan, central)]
    for name, pair in (("reports", reports), ("gains", gains)):
        sigma, server = (getattr(mechanism, "sigma", 0.0) for mechanism in pair)
        if sigma and server:
            found[name] = sigma / server
    return found


def _of_all_rounds(plan: Plan) -> float:
    """Standard deviation of the noise on the sum of all rounds."""
    mechanism = plan.mechanism
    nodes = plan.rounds
    if isinstance(mechanism, TreeSum):
        trees, rest = divmod(plan.rounds, mechanism.steps)
        nodes = trees * mechanism.steps.bit_count() + rest.bit_count()
    return float(getattr(mechanism, "sigma", 0.0)) * sqrt(nodes)


def parties(made: Federation, plan: Plan) -> list[str]:
    """Who is needed beside the server and the clients, and who may fail or lie."""
    if made.secagg == "none":
        return ["nobody but the server, which has to be trusted, and the clients"]
    told = []
    if made.secagg == "helpers":
        count = len(made.helpers)
        told.append(
            f"{counted(count, 'helper')}, run by others than the server: all of them have to answer, and one has to"
            " refuse to work with it"
        )
    else:
        woven = made.woven()
        told.append(
            f"no helper: of the {woven.clients} to {woven.most} clients of a round {woven.corrupt} at most may work"
            " with the server"
        )
    mechanism = plan.mechanism
    if isinstance(mechanism, DistributedNoiseSum):
        told.append(_of_sums("in a round", mechanism.distributed_noise))
        once = [
            ("with reports before the first round", None if plan.reports is None else plan.reports.mechanism.shares)
        ]
        if plan.model_selection is not None:
            once.append(("with gains after the last round", plan.model_selection.mechanism.shares))
        told += [_of_sums(name, shares.carried) for name, shares in once if shares is not None]
    else:
        told.append(f"{counted(made.least, 'client')} that answer in a round")
    return told


def _of_sums(what: str, carried: DistributedNoise) -> str:
    silent = carried.least - carried.honest
    noise = f"of which {silent} may add no noise" if silent else "each with its part of the noise"
    return f"{carried.least} of {counted(carried.clients, 'client')} that answer {what}, {noise}"


_SEEN = {
    None: "Nothing is proven",
    "nobody": "Clients add noise to every message",
    "server": "The server adds the noise, and is trusted with that",
    "server sees only sums": "The server adds the noise to exact sums, and is trusted with that",
    "server sees only noisy sums": "The clients add the noise, so that nobody sees a sum without it",
}


def trust_line(made: Federation) -> str:
    """What the server of a federation sees, and what is trusted, in plain words."""
    guarantee = Guarantee.from_json(made.guarantee)
    if made.secagg == "none":
        sees = "The server sees every message, and whose it is"
    elif made.secagg == "helpers":
        helpers = counted(len(made.helpers), "helper")
        sees = f"The server sees sums alone, as long as one of {helpers} refuses to work with it"
    else:
        sees = f"The server sees sums alone, as long as at most {made.woven().corrupt} clients of a round work with it"
    proves = _SEEN[guarantee.trust if guarantee.basis == "proven" else None]
    return f"{sees}. {proves}."
