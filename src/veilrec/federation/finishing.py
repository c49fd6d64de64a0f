"""What comes of a federation: a run folder like any other, and the proof that a simulation comes to the same.

Both need the people that a trial was made of (`people/`), on the machine where it was made. A federation whose clients
are elsewhere has a model without them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.files import new_folder
from veilrec.federation import federation
from veilrec.federation.client import folder as client_folder
from veilrec.federation.coordinator.process import locked, open_coordinator
from veilrec.federation.facts import FederationFacts
from veilrec.federation.federation import CLIENTS, COORDINATOR, PEOPLE, RUN, Federation, command
from veilrec.federation.making import settings_of, spec_of
from veilrec.privacy.guarantee import Guarantee
from veilrec.runs import checkpoint
from veilrec.runs.checkpoint import Progress
from veilrec.runs.model_files import ModelFiles, save_model
from veilrec.runs.noise import Real, stated
from veilrec.runs.request import PreparedRun, RunRequest, prepare
from veilrec.runs.training import save_finished
from veilrec.server.round_store import RoundReport, totals
from veilrec.server.server import SelectionOutcome
from veilrec.simulation.simulation import Simulation


@dataclass(frozen=True)
class Ended:
    """All that a coordinator has come to."""

    state: dict[str, Any]
    history: tuple[RoundReport, ...]
    selection: SelectionOutcome | None
    weights: dict[str, Any]
    sent: Any

    @property
    def digest(self) -> str:
        """Digest the weights and everything else that a next round would depend on."""
        return checkpoint.digest(self.state)


def read_end(folder: Path, known: FederationFacts) -> Ended:
    """Read the end of a run from the coordinator's folder; refused while it runs, or before the last round."""
    with locked(folder / COORDINATOR), open_coordinator(folder, known) as server:
        done, wanted = server.round_number, known.federation.rounds
        if done < wanted or (known.plan.model_selection is not None and server.selection is None):
            raise BadInput(f"{folder} is at round {done} of {wanted}: go on with `{command('up', folder)}`")
        server_state, selection = server.server_state, server.selection
        keeps_start = selection is not None and selection.kept == "start"
        weights = {**known.plan.start, **server_state.known} if keeps_start else dict(server_state.weights)
        state = {name: np.array(values) for name, values in server_state.state().items()}
        return Ended(state, server.history(), selection, weights, server_state.sent_items)


@dataclass(frozen=True)
class Finished:
    """The result of a federation."""

    result: dict[str, Any] | None  # None: only the model could be written
    void: str  # a warning, where every round was: empty otherwise


def finish(folder: Path, known: FederationFacts) -> Finished:
    """Write the run folder."""
    ended, out = read_end(folder, known), folder / RUN
    if out.exists():
        raise BadInput(f"{out} is there already: the federation is over, and this is what came of it")
    if not (folder / PEOPLE).is_dir():
        _write_model(out, known, ended)
        return Finished(None, _void(ended))
    prepared, simulation = _prepared(folder, known, None)
    simulation.server_state.load_state(ended.state, known.federation.rounds)
    simulation.selection = ended.selection
    _gather(folder, known, simulation)
    sums = totals(ended.history)
    progress = Progress(
        rounds_done=len(ended.history),
        clients=sum(report.clients for report in ended.history),
        down_bytes=sums["down_bytes"],
        up_bytes=sums["up_bytes"],
        selection_bytes=sums["report_bytes"],
    )
    with new_folder(out) as part:
        warnings, facts = [_void(ended)] if _void(ended) else [], _facts(known.federation, ended)
        result = save_finished(prepared, part, progress, warnings=warnings, federation=facts)
    return Finished(result, _void(ended))


def _void(ended: Ended) -> str:
    if not all(report.void for report in ended.history):
        return ""
    return (
        f"Nothing was learnt: every round was void ({len(ended.history)} of {len(ended.history)}), because too few"
        " messages came. See logs/ for why, and make the federation again: what its clients have spent is spent."
    )


def _write_model(out: Path, known: FederationFacts, ended: Ended) -> None:
    people, catalogue = known.people, known.people.catalogue
    model = ModelFiles(
        method=known.method.name,
        ranker=known.plan.ranker,
        weights=ended.weights,
        sent=ended.sent,
        items=people.items,
        titles=None if catalogue is None else catalogue.titles,
        guarantee=stated(Guarantee.from_json(known.federation.guarantee), "secure", None, _real(known.federation)),
        categories=catalogue.categories if catalogue is not None and len(catalogue.categories.data) else None,
    )
    save_model(out, model)


def _gather(folder: Path, known: FederationFacts, simulation: Simulation) -> None:
    """What the clients of this machine keep, so that the run can rank for them: of those that can be read."""
    for place in sorted((folder / CLIENTS).iterdir()):
        with suppress(VeilrecError), client_folder.open_client(place, known) as client:
            number = client_folder.read_record(place).number
            if number < len(simulation.data.rows):  # whoever came later is not measured
                for name, values in client.private.items():
                    simulation.private[name][number] = values[0]


def _facts(made: Federation, ended: Ended) -> dict[str, Any]:
    return {
        "id": made.id,
        "clients": made.clients,
        "validators": made.validators,
        "void_rounds": totals(ended.history)["void"],
        "messages": totals(ended.history)["messages"],
        "secagg": made.secagg,
        "rehearsal": made.rehearsal,
        "state_sha256": ended.digest,
    }


def _real(made: Federation) -> Real:
    return "rehearsal" if made.rehearsal else "clients"


def _prepared(folder: Path, known: FederationFacts, secret: bytes | None) -> tuple[PreparedRun, Simulation]:
    """The run of a federation's people, whose trainer simulates the very plan that was federated."""
    made = known.federation
    request = RunRequest(
        made.method,
        spec_of(folder / PEOPLE),
        seed=made.seed,
        protocol=made.protocol,
        settings=settings_of(made),
        rounds=made.rounds,
        noise="secure",
        real=_real(made),
        promise=(promise := Guarantee.from_json(made.guarantee)),
        public_catalogue=promise.basis == "proven",  # `init` asks for it
    )
    prepared = prepare(request, secret=secret, dataset=made.dataset)
    if prepared.config.model_dump(mode="json") != made.config:
        raise VeilrecError("the settings of the federation cannot be written as settings of a run")
    if not isinstance(prepared.trainer, Simulation):
        raise VeilrecError(f"{prepared.method.name} is not learnt on clients")
    made_of = prepared.trainer
    simulation = Simulation(known.plan, made_of.data, made_of.histories, made_of.seeds)
    return replace(prepared, trainer=simulation, plan=known.plan), simulation


@dataclass(frozen=True)
class Rehearsed:
    """A federation beside a simulation with its secrets."""

    same: bool  # bit for bit
    federation: str  # digests of the weights
    simulation: str
    rounds: int
    gaps: int  # rounds of the federation in which somebody was missing
    largest_difference: float  # between any two weights


def rehearse(folder: Path, on_round: Callable[[int], None] = lambda _: None) -> Rehearsed:
    """Run the simulation of a rehearsal that is over, and compare."""
    made = federation.read(folder)
    if not made.rehearsal:
        raise BadInput(
            f"{folder} is no rehearsal: its clients draw noise that nobody else can, so nothing can come to the same;"
            " make one with `federate init --rehearsal`"
        )
    if not (folder / PEOPLE).is_dir():
        raise BadInput(f"{folder / PEOPLE} is not there: a rehearsal is compared where it was made")
    known = FederationFacts(folder, made)
    ended = read_end(folder, known)
    _, simulation = _prepared(folder, known, (folder / COORDINATOR / "secret").read_bytes())
    for number in range(made.rounds):
        simulation.step(number)
        on_round(number + 1)
    state = simulation.server_state.state()
    digest = checkpoint.digest(state)
    gaps = sum(report.void or report.messages < report.clients for report in ended.history)
    farthest = max((float(np.abs(state[name] - ended.state[name]).max(initial=0.0)) for name in state), default=0.0)
    is_same = digest == ended.digest and simulation.selection == ended.selection
    return Rehearsed(is_same, ended.digest, digest, made.rounds, gaps, farthest)
