"""`veilrec federate init`: from a method and a data set to the folders of a coordinator and of every client.

What the server may see is chosen first (`trust`), and then made.
"""

from __future__ import annotations

import json
import secrets
import shlex
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

import numpy as np

from veilrec.client.federated import plan_digest
from veilrec.client.local_training import LocalData
from veilrec.core.arrays import Offsets
from veilrec.core.errors import BadInput, VeilrecError, counted
from veilrec.core.files import new_folder, write_text
from veilrec.core.plan import Plan
from veilrec.data import packed
from veilrec.data.datasets import load
from veilrec.data.population import Population, Strings, some_users
from veilrec.federation import facts, federation, helper, identity, page
from veilrec.federation.client import folder as client_folder
from veilrec.federation.coordinator.registry import Registry, Role
from veilrec.federation.facts import of_clients, spending_of
from veilrec.federation.federation import (
    CA,
    CLIENTS,
    COORDINATOR,
    FACTS,
    FIRST_VALIDATOR,
    HELPERS,
    INVITED,
    PEOPLE,
    Federation,
    SecAgg,
)
from veilrec.federation.identity import Invitation, InvitationList, invited_text, list_digest
from veilrec.federation.joining import Places, check_places, places_in
from veilrec.federation.secagg.terms import Neighbourhood, choose
from veilrec.federation.trust import TrustCosts, TrustWishes, choices, costs
from veilrec.methods.base import Config, Problem, is_set, leaves, promised
from veilrec.methods.public import different, public_people, public_problem
from veilrec.methods.registry import get
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.distributed import DistributedNoiseSum
from veilrec.privacy.mechanisms.sums import CohortSum
from veilrec.runs.noise import READ_OFF
from veilrec.runs.request import PreparedRun, RunRequest, prepare
from veilrec.server.round_specs import TooFewClients
from veilrec.server.round_store import put_secret
from veilrec.server.secure_reports import over_selection_obstacle
from veilrec.simulation.simulation import Simulation
from veilrec.wire.signing import checked_host

OVER_SELECTION = 1.3  # as many clients are drawn as a round needs, times this, where that is allowed


@dataclass(frozen=True, kw_only=True)
class FederationOptions:
    """A federation to be made; what its server may see is settled (`trusting` settles it)."""

    method: str
    data: str
    clients: int
    places: int = 0  # kept free for clients that are invited later
    settings: tuple[str, ...] = ()
    seed: int = 0
    rounds: int | None = None
    protocol: str | None = None
    secagg: SecAgg = "none"
    helpers: int = 2  # of secure aggregation
    corrupt: float = 0.2  # share of a round's clients that may work with the server, in sums among clients alone
    lost: float = 0.3  # share of them that may be gone before the end, likewise
    rehearsal: bool = False
    host: str = "127.0.0.1"
    port: int = 8471
    minimum_messages: int | None = None
    round_seconds: float = 60.0
    public_catalogue: bool = False  # whether anybody may know the items, where no table lists them


@dataclass(frozen=True)
class Basis:
    """What is to be federated: a method as it is configured, and everybody's data, which is then parted."""

    method: str
    config: Config
    problem: Problem
    plan: Plan
    data: LocalData
    items: Strings
    guarantee: Guarantee
    protocol: str
    places: Places = ()  # behind the people of the data, for those who come later


@dataclass(frozen=True)
class Made:
    """A federation that was made, and notes for its operator."""

    federation: Federation
    notes: tuple[str, ...]
    prepared: PreparedRun


def trusting(folder: Path, wishes: FederationOptions, asked: TrustWishes) -> tuple[Made, TrustCosts]:
    """Write all folders with the trust model that is asked for, or the strongest one that can be had; its costs."""
    told: list[str] = []
    possible = choices(asked, wishes.settings, wishes.clients, wishes.places)
    for choice in possible:
        chosen = replace(
            wishes,
            secagg=choice.secagg,
            helpers=choice.helpers,
            corrupt=choice.corrupt,
            lost=choice.lost,
            settings=(*choice.settings, *wishes.settings),
        )
        try:
            made = make(folder, chosen)
        except BadInput as error:
            if choice is possible[-1]:
                raise
            told.append(f"not --trust {choice.trust}: {error}")
            continue
        run = made.prepared.trainer
        if not isinstance(run, Simulation):
            raise VeilrecError(f"{wishes.method} is not learnt on clients")
        problem = made.prepared.problem
        if wishes.places:
            problem = facts.FederationFacts(folder, made.federation).problem
        found = costs(made.federation, choice, made.prepared, run, problem)
        return replace(made, notes=(*told, *made.notes)), replace(found, compare=_compared(found, wishes, made))
    raise VeilrecError("no trust model is left")


def _compared(found: TrustCosts, wishes: FederationOptions, made: Made) -> str:
    """The command that measures what noise of clients costs in accuracy, on all people of the data."""
    if found.trust != "noisy-sums":
        return ""
    privacy, method = made.federation.config["privacy"], shlex.quote(wishes.method)
    margins = [f"privacy.{name}={privacy[name]:g}" for name in ("silent", "lost") if privacy[name]]
    rest = [
        s for s in wishes.settings if not any(is_set((s,), f"privacy.{name}") for name in ("noise", "silent", "lost"))
    ]
    distributed = ",".join(["privacy.noise=distributed", *margins])
    words = [f"veilrec compare {method}:privacy.noise=central {method}:{distributed} --data {shlex.quote(wishes.data)}"]
    return " ".join([*words, f"--rounds {made.federation.rounds}", *(f"--set {shlex.quote(s)}" for s in rest)])


def make(folder: Path, wishes: FederationOptions) -> Made:
    """Write all folders; the folder is whole, or not there."""
    checked_host(wishes.host)
    if wishes.places and wishes.rehearsal:
        raise BadInput(
            "--rehearsal is compared with a simulation of people who are all there from the start, and --places is for"
            " those who are not: leave one of them out"
        )
    with new_folder(folder) as part:
        prepared, notes = prepared_for(part / PEOPLE, wishes)
        simulation, plan = prepared.trainer, prepared.plan
        if plan is None or not isinstance(simulation, Simulation):
            raise VeilrecError(f"{prepared.method.name} is not learnt on clients")
        guarantee = promised(prepared.method, prepared.config, prepared.problem)
        if guarantee.basis == "proven" and (read_off := prepared.read_off):
            raise BadInput(f"every client would get it, and {READ_OFF}: {'; '.join(read_off)}")
        basis = Basis(
            prepared.request.method,
            prepared.config,
            prepared.problem,
            plan,
            simulation.data,
            prepared.population.items,
            guarantee,
            prepared.split.protocol,
        )
        made = lay_out(part, basis, wishes)
    folder.chmod(0o700)
    simulation.step(0)  # whatever has to be compiled is in the cache before a deadline counts
    return Made(made, notes, prepared)


def lay_out(folder: Path, basis: Basis, wishes: FederationOptions) -> Federation:
    """Everything but the people: what is public, the coordinator's folder, and those of the clients."""
    if wishes.places:
        basis = _with_places(basis, wishes)
    least = _check_secure(basis.plan, wishes)
    if wishes.secagg != "none" and least > len(trainers(basis.data)):
        margin = "larger --lost" if basis.plan.mechanism.noise_on == "share" else "smaller --least"
        raise BadInput(
            f"a secure sum of this plan needs {least} clients, and {len(trainers(basis.data))} that can learn are there"
            f" from the start: give a {margin}, fewer --places, or more --clients"
        )
    woven = _weave(basis, wishes, least) if wishes.secagg == "pairs" else None
    basis = replace(
        basis,
        guarantee=of_clients(
            basis.guarantee,
            basis.plan,
            wishes.secagg,
            woven,
            rehearsal=wishes.rehearsal,
            declared=wishes.public_catalogue,
        ),
    )
    made = _describe(folder, wishes, basis)
    made = replace(
        made,
        least=least,
        least_reported=facts.least_reported(basis.plan, least),
        least_compared=facts.least_compared(basis.plan, made.validators),
        neighbourhood={} if woven is None else vars(woven),
    )
    if wishes.secagg != "none" and basis.plan.model_selection is not None:
        made = _with_comparison(made, wishes)
    check_same(made.method, facts.FederationFacts(folder, made).plan, basis.plan)  # first weights included
    secret = secrets.token_bytes(32)
    _write_coordinator(folder / COORDINATOR, made, secret, wishes.host)
    with Registry(folder / COORDINATOR, new=True) as registry:
        invited = _write_clients(folder, made, basis, secret, registry)
        if made.secagg == "pairs":
            text = invited_text(invited)
            write_text(folder / INVITED, text)
            made = replace(made, invited=list_digest(text))
        if made.secagg == "helpers":
            made = replace(made, helpers=_write_helpers(folder, wishes.helpers, invited, registry))
    made = replace(made, page=_page_of(folder, made))
    for path in (*(folder / CLIENTS).glob("*"), *(folder / HELPERS).glob("*")):
        identity.pin(path, made)
    federation.write(made, folder)  # last: without it the folder is none
    return made


def _page_of(folder: Path, made: Federation) -> str:
    """Digest of the public file for browsers; empty where they cannot take part."""
    try:
        return page.digest_of(facts.FederationFacts(folder, made))
    except BadInput:
        return ""


def _with_comparison(made: Federation, wishes: FederationOptions) -> Federation:
    """Plan for a secure sum of the gains of validation clients."""
    if made.validators < made.least_compared:
        raise BadInput(
            f"a secure sum of gains needs {made.least_compared} validation clients, and there are {made.validators}:"
            " give more --clients"
        )
    if wishes.secagg != "pairs":
        return made
    if made.validators < 3:
        raise BadInput(
            f"there are {counted(made.validators, 'validation client')}, and sums among clients alone need 3: give more"
            " --clients, or use helpers"
        )
    fewest = max(3, made.least_compared, made.validators - int(wishes.lost * made.validators))
    woven = choose(fewest, most=made.validators, corrupt=wishes.corrupt, lost=wishes.lost)
    return replace(made, compared=vars(woven))


def _with_places(basis: Basis, wishes: FederationOptions) -> Basis:
    """Plan for so many clients more, which come later or never."""
    method, problem = get(basis.method), basis.problem
    told = problem.news is not None and basis.guarantee.basis != "proven"
    check_places(basis.plan, tells_shown=told, secagg=wishes.secagg)
    now, later = (
        public_problem(_public(basis, places), seed=problem.public_seed, rounds=problem.rounds)
        for places in (0, wishes.places)
    )
    if method.plan is None:
        raise VeilrecError(f"{method.name} has no plan for clients")
    check_same(method.name, method.plan(basis.config, now), basis.plan)
    plan, guarantee = method.plan(basis.config, later), promised(method, basis.config, later)
    places = places_in(method.clients(basis.config, later), len(basis.data.rows))
    return replace(basis, plan=plan, guarantee=guarantee, places=places)


def _public(basis: Basis, places: int) -> Population:
    """Public facts of a basis, with so many free places."""
    return public_people(basis.problem, basis.items, tells_shown=basis.guarantee.basis != "proven", places=places)


def _check_secure(plan: Plan, wishes: FederationOptions) -> int:
    """How many clients a secure sum needs; plans for which it would change nothing, or is not proven, are refused."""
    mechanism = plan.mechanism
    if mechanism.noise_on == "share" and wishes.secagg == "none":
        raise BadInput("noise of clients goes under masks, and this federation has none: use --trust noisy-sums")
    if wishes.secagg == "none":
        return facts.least_for(plan, "none", None)
    check_sums(plan)
    if isinstance(mechanism, DistributedNoiseSum) and wishes.minimum_messages is not None:
        raise BadInput("--least follows from how many may be lost where clients add the noise: leave it out")
    return facts.least_for(plan, wishes.secagg, wishes.minimum_messages)


def check_sums(plan: Plan) -> None:
    """Refuse a plan for which secure sums would not hide what clients tell, or whose proof allows for none."""
    reports, mechanism = plan.reports, plan.mechanism
    if reports is not None and reports.mechanism.under_masks and not reports.once:
        raise BadInput(
            f"--secagg would hide updates, and {reports.mechanism.name} of every round reach the server: a secure sum"
            " of reports is one of everybody, once, because its noise is chosen for one release; use another method"
        )
    if isinstance(mechanism, CohortSum) and mechanism.taking_part.rate < 1.0 and plan.cohort.sampling == "poisson":
        raise BadInput(
            "a secure sum needs some clients, and a Poisson sample may have fewer, which a void round would tell:"
            " add --set cohort.sampling=fixed, or --set cohort.size=0 for everybody"
        )


def _weave(basis: Basis, wishes: FederationOptions, least: int) -> Neighbourhood:
    """Who masks with whom in sums among clients alone, for all numbers of clients that a round may begin with."""
    plan, clients = basis.plan, len(trainers(basis.data))
    if isinstance(plan.mechanism, DistributedNoiseSum) and plan.mechanism.distributed_noise.silent < wishes.corrupt:
        raise BadInput(
            f"--silent is {plan.mechanism.distributed_noise.silent:g} and --corrupt {wishes.corrupt:g}: whoever works"
            f" with the server tells it what noise they added, so give --silent {wishes.corrupt:g} or more, or leave it"
            " out"
        )
    drawn = plan.cohort.among(clients)
    if _may_over_select(plan, wishes):
        drawn = min(clients, ceil(drawn * OVER_SELECTION))
    if drawn < 3:
        raise BadInput(f"a round has {counted(drawn, 'client')}, and sums among clients alone need 3: use helpers")
    if plan.reports is not None and plan.reports.mechanism.under_masks and drawn < clients:
        raise BadInput(
            f"a round has {drawn} of {clients} clients, and reports before it are a sum of all: clients that mask"
            " against each other do so in rounds of everybody (--set cohort.size=0); or use helpers"
        )
    fewest = max(3, least, drawn - int(wishes.lost * drawn))
    if fewest > drawn:
        raise BadInput(f"--least is {least}, and a round has {counted(drawn, 'client')}: give no more than these")
    return choose(fewest, most=drawn, corrupt=wishes.corrupt, lost=wishes.lost)


def _may_over_select(plan: Plan, wishes: FederationOptions) -> bool:
    return not wishes.rehearsal and over_selection_obstacle(plan) is None


def prepared_for(people: Path, wishes: FederationOptions) -> tuple[PreparedRun, tuple[str, ...]]:
    """The run of so many people of a data set: they lie in a folder of their own, which a rehearsal reads again."""
    if get(wishes.method).plan is None:
        raise BadInput(f"{wishes.method} has no plan for clients: name a federated method, such as fedmf")
    population = load(wishes.data)
    if not 1 <= wishes.clients <= population.n_users:
        raise BadInput(
            f"--clients is {wishes.clients}: {population.name} has {counted(population.n_users, 'user')}, so give a"
            f" number from 1 to {population.n_users}"
        )
    chosen = np.sort(np.random.default_rng(wishes.seed).permutation(population.n_users)[: wishes.clients])
    packed.save(some_users(population, chosen.astype(np.int64)), people)
    dataset = wishes.data.partition(":")[0]
    request = RunRequest(
        wishes.method,
        spec_of(people),
        seed=wishes.seed,
        protocol=wishes.protocol,
        settings=wishes.settings,
        rounds=wishes.rounds,
        noise="secure",
        public_catalogue=wishes.public_catalogue,
    )
    try:
        prepared = prepare(request, dataset=dataset, enrolled=True)
    except TooFewClients as few:
        if is_set(wishes.settings, "cohort.size"):
            raise
        everybody = (*request.settings, "cohort.size=0")
        note = f"every round has all {counted(few.population, 'client')}: there are no more that can learn"
        prepared = prepare(replace(request, settings=everybody), dataset=dataset, enrolled=True)
        return prepared, (note, *prepared.notes)
    return prepared, prepared.notes


def spec_of(people: Path) -> str:
    """The data set that a folder of people is."""
    return f"{'impressions' if packed.load(people).impressions else 'csv'}:{people}"


def _describe(folder: Path, wishes: FederationOptions, basis: Basis) -> Federation:
    plan, problem, data = basis.plan, basis.problem, basis.data
    packed.save(_public(basis, len(basis.places)), folder / FACTS, public=True)
    budget, unprotected = spending_of(plan)
    clients = len(trainers(data)) + sum(role == "trainer" for _, role in basis.places)
    if wishes.minimum_messages is not None:
        _check_least(plan, wishes.minimum_messages, clients)
    return Federation(
        id=secrets.token_hex(16),
        address=f"https://{'[' + wishes.host + ']' if ':' in wishes.host else wishes.host}:{wishes.port}",
        method=basis.method,
        config=basis.config.model_dump(mode="json"),
        rounds=problem.rounds,
        seed=problem.public_seed,
        dataset=wishes.data.partition(":")[0],
        protocol=basis.protocol,
        clients=clients,
        validators=len(validators(plan, data)) + sum(role == "validator" for _, role in basis.places),
        places=len(basis.places),
        plan=plan_digest(plan),
        facts=facts.digest_of(folder / FACTS),
        unprotected=unprotected,
        budget=facts.budget_fields(budget),
        guarantee=basis.guarantee.to_json(),
        secagg=wishes.secagg,
        public_catalogue=wishes.public_catalogue,
        rehearsal=wishes.rehearsal,
        minimum_messages=wishes.minimum_messages,
        over_selection=OVER_SELECTION if _may_over_select(plan, wishes) else 1.0,
        round_seconds=wishes.round_seconds,
        rpc_seconds=min(wishes.round_seconds, Federation.rpc_seconds),
    )


def _check_least(plan: Plan, least: int, clients: int) -> None:
    gaps = plan.cohort.sampling == "poisson"
    if plan.mechanism.noise_on == "sum" and not gaps:
        raise BadInput(
            "--least cannot be chosen for this method: its proof is about whole cohorts, so a round with gaps is void"
        )
    if isinstance(plan.mechanism, CohortSum) and plan.mechanism.taking_part.rate < 1.0:
        raise BadInput(
            "--least cannot be chosen for Poisson sampling: a void round would tell how many were drawn, which no noise"
            " covers; leave it out, or ask everybody with --set cohort.size=0"
        )
    if least < 1:
        raise BadInput(f"--least is {least}: give at least 1")
    most = clients if gaps else plan.cohort.among(clients)
    if least > most:
        raise BadInput(
            f"--least is {least}, and a round has {counted(most, 'client')} at most, so that all would be void: give no"
            " more than these"
        )


def trainers(data: LocalData) -> Offsets:
    """The clients that have something to learn from, in the order of their numbers."""
    return np.flatnonzero(data.rows.lengths() > 0).astype(np.int64)


def validators(plan: Plan, data: LocalData) -> Offsets:
    """Return the validation clients."""
    return np.zeros(0, np.int64) if plan.model_selection is None else plan.model_selection.validator.clients(data)


def check_same(method: str, public: Plan, plan: Plan) -> None:
    """Refuse a method whose plan of the public facts is another one."""
    if (found := different(public, plan)) is not None:
        raise BadInput(
            f"{method} plans with more than public facts: what clients would be told depends on people's data, so it"
            f" cannot be federated ({found})"
        )


def _write_coordinator(folder: Path, made: Federation, secret: bytes, host: str) -> None:
    put_secret(folder, secret)
    identity.write_file(folder / "operator.token", secrets.token_hex(32).encode())
    hosts = () if host in identity.ALWAYS else (host,)
    identity.make_certificates(
        folder.parent / CA, folder / "tls.pem", folder / "tls.key", hosts=hosts, federation=made.id
    )


def _write_clients(folder: Path, made: Federation, basis: Basis, secret: bytes, registry: Registry) -> InvitationList:
    """A folder for every client, with its own user's data and nothing else; the invitations, by number in sums."""
    data, invited = basis.data, InvitationList()
    roles: tuple[tuple[Role, Offsets], ...] = (("trainer", trainers(data)), ("validator", validators(basis.plan, data)))
    for role, numbers in roles:
        for place, number in enumerate(numbers.tolist()):
            name = client_folder.name_of(number)
            invitation = Invitation.new(name)
            registry.invite(name, role, place, invitation.public)
            invited[place + (FIRST_VALIDATOR if role == "validator" else 0)] = (name, invitation.public)
            client_folder.write(
                folder / CLIENTS / name,
                data.take(np.array([number], np.int64)),
                invitation,
                number=number,
                place=place,
                shared=secret if made.rehearsal else None,
            )
        later = [number for number, kind in basis.places if kind == role]
        for place, number in enumerate(later, len(numbers)):
            registry.invite(client_folder.name_of(number), role, place)
    return invited


def _write_helpers(folder: Path, count: int, invited: InvitationList, registry: Registry) -> tuple[str, ...]:
    """A folder for every helper, to be handed to its operator; their lasting keys."""
    keys = []
    for place in range(count):
        invitation = Invitation.new(helper.name_of(place))
        registry.invite(invitation.client, "helper", place, invitation.public)
        keys.append(helper.write(folder / HELPERS / invitation.client, invitation, invited).hex())
    return tuple(keys)


def settings_of(made: Federation) -> tuple[str, ...]:
    """The settings of a federation as `--set` would give them, every one."""
    return tuple(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in leaves(made.config)
    )
