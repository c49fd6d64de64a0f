"""A coordinator: what it takes in and refuses, when it moves the model, what it remembers, and its last step."""

import shutil
import struct
from dataclasses import replace
from functools import cache
from unittest.mock import Mock

import numpy as np
import pytest

from tests.harm import harmed, refused
from tests.methods.tastes import build, same, small_problem
from tests.wire.raising import raises
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.plan import ModelSelection
from veilrec.core.schema import ClientUpdates, RoundSpec, Rows
from veilrec.privacy.mechanisms.sums import GainSum
from veilrec.privacy.randomness import noise_of_comparison
from veilrec.server.coordinator import Coordinator
from veilrec.server.secure_reports import MessageRefused
from veilrec.server.server import SelectionOutcome, decide, selection_of
from veilrec.simulation.real_clients import SECRET, RealRun, put_secret
from veilrec.wire import messages, rounds
from veilrec.wire import messages as gains

CLIENTS, COHORT = 4, 3
CLEAR, CLIPPED, ASKED, PARTS = "fedmf", "dp-fedmf", "priv-fedmf-sub", "dp-fedncf-dgc"


@cache
def simulated(name, *settings):
    return build(name, small_problem(CLIENTS), (f"cohort.size={COHORT}", *settings), secret=SECRET)


def plan_of(name, *settings):
    fixed = ("cohort.sampling=fixed",) if name in (CLIPPED, PARTS) and not settings else ()
    return simulated(name, *fixed, *settings).plan


def start(folder, plan, clients=CLIENTS, **options):
    server = Coordinator(put_secret(folder), plan, **options)
    for number in range(clients):
        server.enrol(f"client {number}")
    return server


def rows_message(plan, number, values, examples=None):
    table = plan.schema.tables[0]
    rows = Rows(np.array([0, 1]), np.array([2], np.int32), values.reshape(1, -1).astype(np.float32))
    told = None if examples is None else np.array([examples])
    return messages.encode_update(ClientUpdates(number, 1, {table.name: rows}, examples=told), plan.schema)


def small(plan, number=0, size=1e-3):
    return rows_message(plan, number, np.full(plan.schema.tables[0].shape[1], size))


def refusal(receive, client, message):
    with pytest.raises(MessageRefused) as error:
        receive(client, message)
    return error.value.reason


def model(server):
    return {name: values.copy() for name, values in server.server_state.state().items()}


def test_a_message_is_taken_once_and_known_when_it_comes_again(tmp_path):
    plan = plan_of(CLEAR)
    server = start(tmp_path, plan)
    _, cohort = server.open_round()
    assert server.receive(cohort[0], small(plan)) == "taken"
    assert server.receive(cohort[0], small(plan)) == "known already"
    assert refusal(server.receive, cohort[0], small(plan, size=2e-3)) == "second message"
    report = server.close_round()
    assert (report.clients, report.messages, report.void) == (COHORT, 1, False)
    assert report.up_bytes == len(small(plan))
    assert dict(report.refused) == {"second message": 1}


def test_every_kind_of_bad_message_is_refused_counted_and_forgotten(tmp_path):
    plan = plan_of(CLIPPED)
    width = plan.schema.tables[0].shape[1]
    server, untouched = start(tmp_path / "a", plan, minimum_messages=0), start(tmp_path / "b", plan, minimum_messages=0)
    assert refusal(server.receive, "client 0", small(plan)) == "nothing is open"
    _, cohort = server.open_round()
    untouched.open_round()
    client = cohort[0]
    (outside,) = {f"client {number}" for number in range(CLIENTS)} - set(cohort)
    good = small(plan)
    not_a_number = good[:-4] + struct.pack("<f", float("nan"))
    wanted = {
        "not enrolled": ("stranger", good),
        "not in the cohort": (outside, good),
        "another round": (client, small(plan, 1)),
        "not finite": (client, not_a_number),
        "bad bytes": (client, good[:-1]),
        "beyond its bound": (client, rows_message(plan, 0, np.full(width, 10.0))),
        "examples": (client, rows_message(plan, 0, np.zeros(width), examples=5)),
    }
    for reason, (sender, message) in wanted.items():
        assert refusal(server.receive, sender, message) == reason
    assert refusal(server.receive, client, b"") == "bad bytes"
    assert refusal(server.receive, client, good + b"\0") == "bad bytes"
    report = server.close_round()
    assert report.messages == 0
    assert dict(report.refused) == dict.fromkeys(wanted, 1) | {"bad bytes": 3, "nothing is open": 1}
    untouched.close_round()
    assert same(model(server), model(untouched))
    assert server.history()[0] == report


def test_entries_outside_of_the_round_and_missing_examples_are_refused(tmp_path):
    plan = plan_of(PARTS)
    server = start(tmp_path, plan)
    _, cohort = server.open_round()
    spec = server.server_state.server.spec
    name, share = next(iter(spec.shares.items()))
    assert share < 1.0
    size = plan.schema[name].size
    kept = spec.entries(name, size)
    other = np.setdiff1d(np.arange(size), kept)[:1].astype(np.int32)
    entries = {name: Rows(np.array([0, 1]), other, np.full((1, 1), 1e-3, np.float32))}
    message = messages.encode_update(ClientUpdates(0, 1, entries=entries), server.server_state.server.view)
    assert refusal(server.receive, cohort[0], message) == "outside of the round"
    plan = plan_of(CLEAR, "aggregation=weighted-mean")  # whose messages tell how many examples they are from
    server = start(tmp_path / "weighted", plan)
    _, cohort = server.open_round()
    assert refusal(server.receive, cohort[0], small(plan)) == "examples"
    assert server.receive(cohort[0], rows_message(plan, 0, np.ones(plan.schema.tables[0].shape[1]), 7)) == "taken"


def test_a_round_is_opened_once_and_told_again_until_it_is_closed(tmp_path):
    plan = plan_of(CLEAR)
    server = start(tmp_path, plan)
    broadcast, cohort = server.open_round()
    assert server.open_round() == (broadcast, cohort)
    assert len(cohort) == COHORT
    spec, _ = rounds.decode(broadcast, plan.schema, 0)
    assert spec == RoundSpec(0)
    server.close()
    with Coordinator(tmp_path, plan) as again:
        assert again.stage == "open"
        assert again.open_round() == (broadcast, cohort)


def test_a_round_with_too_few_messages_is_void(tmp_path):
    plan = plan_of(CLIPPED)
    server = start(tmp_path, plan)  # noise on the sum, a cohort of a fixed size: all of it has to answer
    before = model(server)
    _, cohort = server.open_round()
    for client in cohort[:-1]:
        server.receive(client, small(plan))
    report = server.close_round()
    assert (report.void, report.messages) == (True, COHORT - 1)
    assert same(model(server), before)
    server.close()
    server = Coordinator(tmp_path, plan)  # it stays void after a restart
    assert (server.round_number, server.history()) == (1, (report,))
    assert same(model(server), before)
    _, cohort = server.open_round()
    assert refusal(server.receive, cohort[0], small(plan, 0)) == "another round"
    for client in cohort:
        server.receive(client, small(plan, 1))
    assert not server.close_round().void
    assert not same(model(server), before)


def test_a_round_without_messages(tmp_path):
    for name, sampling, void in (
        (CLEAR, "fixed", True),
        (CLIPPED, "fixed", True),
        (CLIPPED, "poisson", False),  # whether anybody came may not be told either
    ):
        server = start(tmp_path / f"{name}-{sampling}", plan_of(name, f"cohort.sampling={sampling}"))
        before = model(server)
        server.open_round()
        assert server.close_round().void == void
        assert same(model(server), before) == void


def test_rounds_that_cannot_be_are_refused(tmp_path):
    plan = replace(plan_of(CLEAR), rounds=1)
    server = start(tmp_path / "clear", plan)
    raises(BadInput, "round 0 is not open: call open_round first", server.close_round)
    server.open_round()
    server.enrol("late")  # waits for the next one
    assert refusal(server.receive, "late", small(plan)) == "not in the cohort"
    server.close_round()
    raises(BadInput, "the plan ends after 1 rounds", server.open_round)
    few = start(tmp_path / "few", plan_of(CLIPPED, "cohort.sampling=poisson"), clients=3)
    raises(BadInput, "3 clients are enrolled, and the noise was chosen for cohorts out of 4", few.open_round)
    everybody = simulated(CLIPPED, "cohort.sampling=fixed", "cohort.size=0").plan
    many = start(tmp_path / "many", everybody, clients=5)
    raises(BadInput, "would have 5 clients, and the noise was chosen for 4 at most", many.open_round)


def test_a_client_is_enrolled_once(tmp_path):
    plan = plan_of(CLEAR)
    with start(tmp_path, plan) as server:
        assert [server.enrol(f"client {number}") for number in (0, 3, 0)] == [0, 3, 0]
        assert server.enrol("another") == CLIENTS
        raises(BadInput, "a client has no id", server.enrol, "")
    with Coordinator(tmp_path, plan) as again:
        assert again.enrol("another") == CLIENTS


def test_who_takes_part_is_a_secret_of_the_folder(tmp_path):
    plan = plan_of(CLEAR)
    cohorts = []
    for secret in (SECRET, SECRET, bytes([7] * 32)):
        folder = put_secret(tmp_path / str(len(cohorts)), secret)
        with Coordinator(folder, replace(plan, cohort=replace(plan.cohort, size=20))) as server:
            for number in range(60):
                server.enrol(f"client {number}")
            cohorts.append(server.open_round()[1])
    assert cohorts[0] == cohorts[1] != cohorts[2]


def test_reports_are_asked_for_once_counted_and_forgotten(tmp_path):
    plan = plan_of(ASKED)
    length = plan.reports.mechanism.length
    server = start(tmp_path, plan, minimum_reports=CLIENTS)
    question = server.ask()
    assert server.ask() == question
    assert question.clients == tuple(f"client {number}" for number in range(CLIENTS))
    told = messages.encode_report(np.arange(length) < 9, question.round_number)
    assert server.receive_report("client 0", told) == "taken"
    assert server.receive_report("client 0", told) == "known already"
    raises(BadInput, "1 of 4 clients have reported: round 0 needs 4", server.open_round)
    bad = [
        ("second message", "client 0", messages.encode_report(np.arange(length) < 8, 0)),
        ("not enrolled", "stranger", told),
        ("another round", "client 1", messages.encode_report(np.arange(length) < 9, 1)),
        ("bad bytes", "client 1", told[:-1]),
        ("beyond its bound", "client 1", messages.encode_report(np.ones(length, np.bool_), 0)),
    ]
    for reason, client, message in bad:
        assert refusal(server.receive_report, client, message) == reason
    assert refusal(server.receive, "client 0", small(plan)) == "nothing is open"
    for client in question.clients[1:]:
        server.receive_report(client, told)
    server.open_round()
    raises(MessageRefused, "no reports are asked for at this time", server.receive_report, "client 0", told)
    raises(BadInput, "round 0 is open: clients are asked before it", server.ask)
    assert server.close_round().report_bytes == CLIENTS * len(told)
    assert server.ask() is None  # one tally serves the whole run


def test_only_the_cohort_is_asked_where_the_plan_says_so(tmp_path):
    plan = plan_of("fedmf-sub-rr", "selection.reports=cohort", "selection.fresh=true")
    server = start(tmp_path, plan)
    question = server.ask()
    assert len(question.clients) == COHORT
    (outside,) = {f"client {number}" for number in range(CLIENTS)} - set(question.clients)
    told = messages.encode_report(np.arange(plan.reports.mechanism.length) < 9, 0)
    assert refusal(server.receive_report, outside, told) == "not in the cohort"
    server.receive_report(question.clients[0], told)
    assert server.open_round()[1] == question.clients
    server.close_round()
    assert (server.ask() or question).period == 1


def test_it_goes_on_where_it_was_stopped(tmp_path):
    chosen = simulated("fedmf-lean", "row_share=0.5", "server.momentum=0.5")  # a running mean, rounds about parts
    straight = RealRun(tmp_path / "straight", chosen.plan, chosen.data, chosen.seeds)
    stopped = RealRun(tmp_path / "stopped", chosen.plan, chosen.data, chosen.seeds)
    for _ in range(3):
        straight.step()
        stopped.step()
        stopped.coordinator.close()
        stopped.coordinator = Coordinator(tmp_path / "stopped" / "server", chosen.plan)
    assert same(model(stopped.coordinator), model(straight.coordinator))
    assert stopped.coordinator.history() == straight.coordinator.history()
    assert stopped.coordinator.server_state.averages
    assert len(np.unique(stopped.coordinator.server_state.sent)) > 1
    models = [path.name for path in (tmp_path / "stopped" / "server").glob("model-*")]
    assert models == ["model-3.safetensors"]


def test_closing_that_fails_is_tried_again_or_finished_at_the_next_start(tmp_path, monkeypatch):
    plan = plan_of(CLIPPED)
    straight, again, crashed = servers = [start(tmp_path / name, plan) for name in ("straight", "again", "crashed")]
    for server in servers:
        _, cohort = server.open_round()
        for client in cohort:
            server.receive(client, small(plan))
    straight.close_round()
    full = OSError("no space left on device")
    with monkeypatch.context() as broken:
        broken.setattr("veilrec.server.round_store.save_file", Mock(side_effect=full))
        for server in (again, crashed):
            raises(OSError, "no space", server.close_round)
            assert server.stage == "closing"
            assert refusal(server.receive, cohort[0], small(plan)) == "nothing is open"
            raises(BadInput, "round 0 is still closing", server.open_round)
    assert not again.close_round().void
    crashed.close()
    crashed = Coordinator(tmp_path / "crashed", plan)
    assert (crashed.round_number, crashed.stage) == (1, "between rounds")
    assert crashed.history()[0].messages == COHORT
    assert all(same(model(server), model(straight)) for server in (again, crashed))


def test_a_folder_is_private_for_one_coordinator_and_one_plan(tmp_path):
    plan, folder = plan_of(CLEAR), tmp_path / "run"
    with Coordinator(folder, plan):
        assert oct(folder.stat().st_mode & 0o777) == "0o700"
        for name in ("secret", "coordinator.sqlite"):
            assert oct((folder / name).stat().st_mode & 0o777) == "0o600"
        assert len((folder / "secret").read_bytes()) == 32
        raises(BadInput, "is another coordinator running on it", Coordinator, folder, plan)
    doubled = {name: 2.0 * values for name, values in plan.start.items()}
    for other in (replace(plan, rounds=plan.rounds + 1), replace(plan, start=doubled)):
        raises(BadInput, "started with another plan", Coordinator, folder, other)
    copied = (folder / "coordinator.sqlite").read_bytes()
    with start(folder, plan) as server:
        server.open_round()
    for path in folder.glob("coordinator.sqlite*"):
        path.unlink()
    for content, line in ((copied, "this is an older copy"), (b"something else" * 100, "not the database of a coord")):
        (folder / "coordinator.sqlite").write_bytes(content)
        raises(VeilrecError, line, Coordinator, folder, plan)


@cache
def simulated_comparison(name, *settings):
    return build(name, small_problem(8), settings, secret=SECRET)


class _Comparison:
    """Validation clients of whom only what they tell is known."""

    validator, people = None, 3

    def __init__(self):
        self.mechanism = GainSum(clip=0.1, epsilon=1.0, delta=1e-6, adjacency="add-remove")


def judged(folder, rounds_done=1):
    simulation = simulated_comparison("fedmf", "cohort.size=2")
    plan = replace(simulation.plan, rounds=rounds_done)
    real = RealRun(folder, plan, simulation.data, simulation.seeds)
    for _ in range(rounds_done):
        real.step()
    real.close()
    with_validators = replace(plan, model_selection=_Comparison())
    server = Coordinator(folder / "server", with_validators)
    for number in range(3):
        assert server.enrol(f"judge {number}", "validators") == number
    return server, with_validators


def test_validators_are_asked_once_counted_once_and_answered_for_good(tmp_path):
    server, plan = judged(tmp_path)
    asked = server.compare()
    assert asked.clients == ("judge 0", "judge 1", "judge 2")
    assert rounds.decode(asked.start, plan.schema, asked.number)[1] is not None
    for number, gain in enumerate((0.1, -0.05)):
        assert server.receive_gain(f"judge {number}", gains.encode_gain(gain)) == "taken"
        assert server.receive_gain(f"judge {number}", gains.encode_gain(gain)) == "known already"
    for name, message, reason in (
        ("judge 0", gains.encode_gain(0.01), "second message"),
        ("judge 2", gains.encode_gain(0.2), "beyond its bound"),
        ("judge 2", b"?", "bad bytes"),
        ("judge 2", gains.encode_gain(float("nan")), "not finite"),
        ("client 0", gains.encode_gain(0.0), "not enrolled"),
    ):
        assert refusal(server.receive_gain, name, message) == reason
    server.close()
    server = Coordinator(tmp_path / "server", plan)  # killed, and started again
    selection = server.close_comparison()
    assert selection.validators == 3  # however many answered: who is enrolled is public, and who answers is not
    told = [gains.encode_gain(gain) for gain in (0.1, -0.05)]
    assert selection == selection_of(told, plan.model_selection, noise_of_comparison(SECRET))
    raises(MessageRefused, "no comparison", server.receive_gain, "judge 2", gains.encode_gain(0.1))
    server.close()
    server = Coordinator(tmp_path / "server", plan)
    assert server.close_comparison() == selection == server.selection
    assert server.compare() is None
    server.close()


def test_nobody_validators_before_the_last_round(tmp_path):
    plan = replace(simulated_comparison("fedmf", "cohort.size=2").plan, model_selection=_Comparison())
    with Coordinator(put_secret(tmp_path), plan) as server:
        server.enrol("judge 0", "validators")
        raises(BadInput, "not over", server.compare)
        raises(BadInput, "not over", server.close_comparison)
        raises(MessageRefused, "no comparison", server.receive_gain, "judge 0", gains.encode_gain(0.0))


def test_more_are_drawn_than_are_needed_and_the_first_count(tmp_path):
    simulation = simulated_comparison("fedmf", "cohort.size=4")
    real = RealRun(tmp_path, simulation.plan, simulation.data, simulation.seeds, over_selection=1.5)
    broadcast, cohort = real.coordinator.open_round()
    assert len(cohort) == 6
    messages = {name: real.client(name).take_part(broadcast, 0) for name in cohort}
    for name in cohort[:4]:
        assert not real.coordinator.is_complete
        real.coordinator.receive(name, messages[name])
    assert real.coordinator.is_complete
    assert refusal(real.coordinator.receive, cohort[4], messages[cohort[4]]) == "enough messages"
    assert real.coordinator.receive(cohort[0], messages[cohort[0]]) == "known already"
    report = real.coordinator.close_round()
    assert (report.clients, report.messages, report.void) == (6, 4, False)
    real.close()


def test_over_selection_is_refused_where_it_would_change_who_is_drawn(tmp_path):
    for name, settings in (("dp-fedmf", ()), ("fedmf", ("cohort.sampling=cyclic",))):
        plan = simulated_comparison(name, "cohort.size=4", *settings).plan
        raises(BadInput, "over-selection", Coordinator, put_secret(tmp_path / name), plan, over_selection=1.3)


def test_training_is_kept_for_a_clear_gain_only():
    mechanism = GainSum(clip=0.1, epsilon=2.0, delta=1e-6, adjacency="add-remove")
    threshold = mechanism.threshold(500)
    for times, kept in ((1.01, "trained"), (0.99, "start"), (0.0, "start"), (-3.0, "start")):
        found = decide(times * threshold * 500, ModelSelection(validator=None, mechanism=mechanism, people=500))
        assert (found.kept, found.threshold, found.validators) == (kept, threshold, 500)
        assert SelectionOutcome.restored(found.state()) == found
        assert SelectionOutcome(**found.to_json()) == found
        assert ("the trained model is kept" in found.line()) == (kept == "trained")
    assert mechanism.threshold(4) > mechanism.clip  # a handful of validation clients cannot show anything
    few = ModelSelection(validator=None, mechanism=mechanism, people=4)
    assert decide(4 * mechanism.clip, few).kept == decide(0.0, few).kept == "start"


def test_a_harmed_file_of_a_coordinator_gives_one_line_or_the_same_model_and_no_second_noise(tmp_path):
    plan, folder, older = plan_of(CLIPPED), tmp_path / "run", tmp_path / "older"

    def go_on(folder, rounds):
        with Coordinator(folder, plan) as server:
            for _ in range(rounds):
                _, cohort = server.open_round()
                for client in cohort:
                    server.receive(client, small(plan, server.round_number))
                server.close_round()
            return {name: values.tobytes() for name, values in model(server).items()}

    start(folder, plan).close()
    go_on(folder, 1)
    shutil.copytree(folder, older)
    (older / "secret").write_bytes(bytes([9] * 32))  # put back: that of another run
    with Coordinator(folder, plan) as server:
        server.open_round()  # its cohort knows of it
    wanted = go_on(shutil.copytree(folder, tmp_path / "whole"), 2)
    went_on = set()
    for name, harm, work in harmed(folder, older, tmp_path / "work"):
        line, found = refused(lambda work=work: go_on(work, 2))
        assert line is not None or found == wanted, (name, harm)
        went_on |= {(name, harm)} if line is None else set()
    assert went_on <= {("last-step", "put back")}, went_on  # what a crash between the two leaves
    for path in (path for path in folder.rglob("*") if path.is_file()):
        assert path.stat().st_mode & 0o077 == 0, path
    for several in (("coordinator.sqlite", "last-step"), ("coordinator.sqlite", "secret"), ("secret", "last-step")):
        work = shutil.copytree(folder, tmp_path / "-".join(several))
        for name in several:
            (work / name).unlink()
        line, _ = refused(lambda work=work: go_on(work, 1))
        assert line is not None, several
