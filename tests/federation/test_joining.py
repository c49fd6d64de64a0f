"""Who comes later: a free place is what the plan knew of, and a run with late joiners is that of its simulation."""

import json
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from tests.federation import loopback
from tests.wire.raising import raises
from veilrec.audit.contract_subject import ContractSubject, same
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.core.features import Features
from veilrec.core.files import write_text
from veilrec.data.datasets import load
from veilrec.data.population import Interactions, Population, Strings
from veilrec.federation import federation, helper
from veilrec.federation.client import folder as client_folder
from veilrec.federation.coordinator.registry import NotInvited, Registry
from veilrec.federation.federation import CLIENTS, COORDINATOR, HELPERS, BadTask, FederationTask, joined
from veilrec.federation.finishing import read_end
from veilrec.federation.helper import HelperAnswers
from veilrec.federation.identity import Invitation, identity_of, read_invitation
from veilrec.federation.joining import bring, invite, own_data, take_place
from veilrec.federation.making import FederationOptions, make
from veilrec.methods.base import promised
from veilrec.server.secure_reports import run_digest

LATE, FROM = 5, 2  # the client that comes in a later round, and the first in which it may; nobody takes place 6


def without_the_last(basis, count):
    problem, first = basis.problem, np.arange(len(basis.problem.train) - count)
    features = problem.features
    few = problem.train.take(first)
    fewer = replace(
        problem,
        train=few,
        ratings=None if problem.ratings is None else problem.ratings[: len(few.items)],
        features=None if features is None else Features(features.users.take(first), features.items),
    )
    method = ContractSubject(basis.method).method
    plan, data = method.plan(basis.config, fewer), method.clients(basis.config, fewer)
    return replace(basis, problem=fewer, plan=plan, data=data, guarantee=promised(method, basis.config, fewer))


def person(basis, number, *others):
    """One of the people as a data set of their own, with items that no federation knows."""
    row, features = basis.problem.train.row(number), basis.problem.features
    names = Strings.of([*(basis.items[item] for item in row.tolist()), *others])
    items = np.arange(len(names), dtype=np.int32)
    log = Interactions(np.array([0, len(items)]), items, np.full(len(items), 3.0, np.float32))
    known = None if features is None else Features(features.users.take(np.array([number])), features.items)
    return Population("own", Strings.of(["anna"]), names, log, features=known, rating_scale=(1.0, 5.0))


class Held:
    """A round, from FROM on, that is held back until somebody new has come, who is asked from the next one on."""

    def __init__(self):
        self.number = -1
        self.begun, self.has_come, self._lock = threading.Event(), threading.Event(), threading.Lock()

    def wait(self, number):
        with self._lock:
            if self.number < 0 and number >= FROM:
                self.number = number
                self.begun.set()
        if number == self.number:
            assert self.has_come.wait(60.0)

    def answers(self, name, answers):
        class Waiting:
            def answer(_, task, content):  # noqa: N805
                if name != client_folder.name_of(LATE):
                    self.wait(task.number)
                return answers.answer(task, content)

        return Waiting()


def run_with_a_latecomer(folder, basis):
    """All clients that are there; one more is invited and comes while a round is open. Which one."""
    known, held, stop = loopback.known_in(folder), Held(), threading.Event()
    name = client_folder.name_of(LATE)

    def come():
        held.begun.wait(60.0)
        with Registry(folder / COORDINATOR) as registry:
            secret = (folder / COORDINATOR / "secret").read_bytes()
            invited = take_place(folder, known, registry, person(basis, LATE), None, shared=secret)
        loopback.run_client(invited.folder, known, lambda _: None, stop, held.answers)

    def watch():
        with Registry(folder / COORDINATOR) as registry:
            loopback.until(lambda: (entry := registry.find(name)) is not None and entry.key is not None)
        held.has_come.set()

    with loopback.coordinating(folder, known):
        for work in (come, watch):
            threading.Thread(target=work, daemon=True).start()
        present = [client_folder.name_of(number) for number in range(LATE)]
        loopback.run_everybody(folder, known, lambda _: None, present, wrap=held.answers)
        stop.set()
    return held.number


@pytest.mark.parametrize(
    ("settings", "wishes"),
    [
        (("cohort.size=4",), {}),
        (("cohort.size=0", "privacy.noise=distributed", "privacy.lost=0.58"), {"secagg": "helpers"}),
    ],
    ids=["some by chance, in the open", "everybody, masks and distributed noise"],
)
def test_with_a_late_client_it_is_the_simulation_with_the_same_absences(settings, wishes, tmp_path):
    basis = loopback.basis_of(ContractSubject("dp-fedmf"), *settings, users=7, rounds=6)
    made = loopback.lay_out_in(tmp_path, without_the_last(basis, 2), places=2, round_seconds=600.0, **wishes)
    assert (made.clients, made.places) == (7, 2)
    plan = loopback.known_in(tmp_path).plan  # that of seven people who are all there: fewer would be drawn more often
    assert run_digest(plan) == run_digest(basis.plan)
    assert basis.plan.mechanism.facts() != without_the_last(basis, 2).plan.mechanism.facts() or made.secagg != "none"
    held = run_with_a_latecomer(tmp_path, basis)
    ended = read_end(tmp_path, loopback.known_in(tmp_path))

    def there(number):
        return [client for client in range(7) if client < LATE or (client == LATE and number > held)]

    assert same(ended.state, dict(loopback.simulated(tmp_path, basis, there).server_state.state()))
    assert not any(report.void for report in ended.history)
    with client_folder.open_client(
        tmp_path / CLIENTS / client_folder.name_of(LATE), loopback.known_in(tmp_path)
    ) as client:
        assert client.spent()[0].messages <= 5 - held


def test_what_is_not_sound_with_gaps_is_refused(tmp_path):
    def refused(method, *settings, match, **wishes):
        with pytest.raises(BadInput, match=match):
            loopback.lay_out_in(
                tmp_path, loopback.basis_of(ContractSubject(method), *settings, users=6, rounds=2), places=1, **wishes
            )

    refused("dp-fedmf", "cohort.size=4", "cohort.sampling=fixed", match="about whole ones")
    of_cohorts = ("calibration=as-published", "selection.reports=cohort")
    refused("priv-fedmf-sub", "cohort.size=4", *of_cohorts, match="cohort's reports")
    refused("dp-fedmf", "cohort.size=0", secagg="pairs", match="helpers or none")
    refused("dp-fedmf", "cohort.size=0", secagg="helpers", minimum_messages=7, match="needs 7 clients, and 6")
    shown = loopback.basis_of(ContractSubject("fedrec"), "cohort.size=4", users=16, rounds=1)
    raises(BadInput, "public fact", loopback.lay_out_in, tmp_path, shown, places=1)
    both = FederationOptions(method="fedmf", data="synthetic-ratings", clients=2, places=1, rehearsal=True)
    raises(BadInput, "leave one of them out", make, tmp_path / "x", both)
    assert not (tmp_path / federation.FILE).exists()


def free_one(folder, **wishes):
    basis = loopback.basis_of(ContractSubject("fedmf"), "cohort.size=3", users=4, rounds=2)
    loopback.lay_out_in(folder, without_the_last(basis, 1), places=1, rehearsal=False, **wishes)
    return basis


def test_nobody_takes_a_place_that_was_not_handed_out(tmp_path):
    free_one(tmp_path)
    made = federation.read(tmp_path)
    with Registry(tmp_path / COORDINATOR) as registry:
        stranger = Invitation.new("d00003")
        with pytest.raises(NotInvited, match="nobody has been invited"):
            registry.enrol(made.id, "d00003", b"k" * 32, stranger.endorse(made.id, b"k" * 32))
        registry.hand_out("d00003", stranger.public)
        raises(BadInput, "handed out", registry.hand_out, "d00003", Invitation.new("d00003").public)
        raises(BadInput, "handed out", registry.hand_out, "d00001", stranger.public)  # one that somebody has
        assert registry.enrol(made.id, "d00003", b"k" * 32, stranger.endorse(made.id, b"k" * 32)).number == 3


def test_an_invitation_makes_a_folder_for_its_owner_alone_and_places_run_out(tmp_path):
    basis = free_one(tmp_path)
    known = loopback.known_in(tmp_path)
    log = known.people.interactions  # facts know of places and of nobody's items
    assert (log.items.tolist(), np.diff(log.offsets).tolist()) == ([0] * 4, [1] * 4)
    invited = invite(tmp_path, known, person(basis, 3, "a stranger"))
    assert (invited.name, invited.role, invited.free) == ("d00003", "trainer", 0)
    assert invited.brought.left_out == 1
    assert invited.folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in invited.folder.iterdir())
    mine = client_folder.data_of(invited.folder, known, 3)
    wanted = basis.data.take(np.array([3]))
    assert np.array_equal(np.sort(mine.rows.items), np.sort(wanted.rows.items))
    raises(BadInput, "no free place", invite, tmp_path, known)


def test_a_user_brings_their_own_file_once(tmp_path):
    basis = free_one(tmp_path / "trial")
    known = loopback.known_in(tmp_path / "trial")
    invited = invite(tmp_path / "trial", known)
    assert not (invited.folder / client_folder.DATA).exists()
    raises(BadInput, "federate bring", client_folder.open_client, invited.folder, known)
    row = basis.problem.train.row(3).tolist()
    write_text(tmp_path / "own.csv", "user,item\n" + "".join(f"anna,{basis.items[item]}\n" for item in row))
    bring(invited.folder, known, load(f"csv:{tmp_path / 'own.csv'}"))
    assert sorted(client_folder.data_of(invited.folder, known, 3).rows.items.tolist()) == sorted(row)
    with client_folder.open_client(invited.folder, known):
        pass
    raises(BadInput, "has data already", bring, invited.folder, known, load(f"csv:{tmp_path / 'own.csv'}"))


def test_what_cannot_be_brought_is_one_line(tmp_path):
    basis = free_one(tmp_path)
    known, two = loopback.known_in(tmp_path), person(basis, 3)
    log = Interactions(np.array([0, 1, 1]), np.zeros(1, np.int32))
    two = replace(two, users=Strings.of(["anna", "ben"]), interactions=log, features=None)
    for who, match in ((None, "name it with --user"), ("carl", "nobody of that name"), ("ben", "nothing that this")):
        raises(BadInput, match, own_data, known, 3, two, who)
    assert list(own_data(known, 3, two, "anna").data.rows.lengths()) == [1]


def with_ratings(basis, *settings):
    subject = ContractSubject(basis.method)
    config = subject.config("cohort.size=4", *settings) if settings else basis.config
    problem = replace(basis.problem, ratings=np.full(len(basis.problem.train.items), 0.6, np.float32))
    plan, data = subject.method.plan, subject.method.clients(config, problem)
    return replace(basis, config=config, problem=problem, plan=plan(config, problem), data=data)


def test_features_and_ratings_of_a_late_person_are_those_that_they_would_have_had(tmp_path):
    asked = ("local.loss=rating", "model.popularity=false", "features.users=[hint]")
    basis = with_ratings(loopback.basis_of(ContractSubject("privrec"), users=5, rounds=1), *asked)
    fewer = with_ratings(without_the_last(basis, 1))
    loopback.lay_out_in(tmp_path, fewer, places=1)
    found = client_folder.arrays_of(own_data(loopback.known_in(tmp_path), 4, person(basis, 4)).data)
    wanted = client_folder.arrays_of(basis.data.take(np.array([4])))
    assert found.keys() == wanted.keys()
    assert wanted["people.codes"].size
    assert all(np.array_equal(found[name], wanted[name]) for name in found), found
    unrated = person(basis, 4)
    unrated = replace(unrated, interactions=replace(unrated.interactions, ratings=None))
    raises(BadInput, "ratings of 1 to 5", own_data, loopback.known_in(tmp_path), 4, unrated)


def test_news_that_a_late_person_was_shown_are_packed_as_everybodys(tmp_path):
    basis = loopback.basis_of(ContractSubject("privaterec"), "cohort.size=4", users=16, rounds=1)
    news = basis.problem.news
    loopback.lay_out_in(tmp_path, basis, places=3)
    known = loopback.known_in(tmp_path)
    last = basis.problem.n_items - 1  # the person's own file numbers items the other way round

    def turned(rows):
        return Csr(rows.offsets, (last - rows.items).astype(np.int32))

    given = news.impressions
    shown = replace(given, shown=turned(given.shown), histories=turned(given.histories))
    log = Interactions(basis.problem.train.offsets, turned(basis.problem.train).items)
    users = Strings.of(str(number) for number in range(16))
    people = Population("all", users, Strings.of(reversed(list(basis.items))), log, {"train": shown})
    rows = known.method.clients(known.config, known.problem).rows
    free = next(number for number in range(16, 19) if rows.row(number).size)
    learning = int(np.flatnonzero(basis.data.rows.lengths() > 0)[0])
    found = own_data(known, free, people, str(learning)).data.rows.row(0)
    assert found.tolist() == basis.data.rows.row(learning).tolist()
    assert len(found) > 0


def test_a_helper_waits_for_somebody_of_whom_it_has_not_heard(tmp_path):
    basis = loopback.basis_of(ContractSubject("fedmf"), "cohort.size=0", users=4, rounds=1)
    loopback.lay_out_in(tmp_path, without_the_last(basis, 1), places=1, secagg="helpers", rehearsal=False)
    made, place = federation.read(tmp_path), tmp_path / HELPERS / "helper-0"
    hidden = (place / helper.REGISTER).read_text()
    invited = invite(tmp_path, loopback.known_in(tmp_path), person(basis, 3))
    assert invited.told == ("helper-0", "helper-1")
    (place / helper.REGISTER).write_text(hidden)  # as on another host, where nobody has announced it yet
    helping = HelperAnswers(place, made)
    key = identity_of(invited.folder).public
    endorsement = read_invitation(invited.folder).endorse(made.id, key)
    register = json.dumps([{"place": 3, "key": key.hex(), "endorsement": endorsement.hex()}]).encode()
    raises(BadTask, "federate admit", helping.answer, FederationTask("open", 0), joined(b"", register))
    assert helper.admit(place, invited.announcement) == "d00003"
    assert helper.admit(place, invited.announcement) == "d00003"  # again
    with pytest.raises(Exception, match="whole|bytes|proposal"):  # it believes the client now, and reads on
        helping.answer(FederationTask("open", 0), joined(b"", register))
    helping.close()
    another = helper.announcement("d00003", 3, Invitation.new("d00003").public)
    raises(BadInput, "nobody is replaced", helper.admit, place, another)
    with pytest.raises(BadInput, match="another place"):
        helper.admit(place, helper.announcement("d00003", 4, read_invitation(invited.folder).public))
    for odd in ("d00003", "d00003:x:00", f"d00003:-1:{'0' * 64}"):
        raises(BadInput, "announces nobody", helper.admit, place, odd)


def test_a_key_that_comes_after_a_secure_round_was_opened_counts_in_it(tmp_path):
    """Somebody who was invited from the start, and is slow: helpers hear of the key when they are asked for the sum."""
    loopback.lay_out_in(
        tmp_path, loopback.basis_of(ContractSubject("fedmf"), "cohort.size=0", users=3, rounds=1), secagg="helpers"
    )
    federation.write(replace(federation.read(tmp_path), enrol_seconds=0.1, round_seconds=600.0), tmp_path)
    known, stop, names = loopback.known_in(tmp_path), threading.Event(), ["d00000", "d00001"]
    with loopback.coordinating(tmp_path, known) as control:
        server = control.driver.coordinator

        def come():
            while server.stage != "open":
                time.sleep(0.01)
            loopback.run_client(tmp_path / CLIENTS / "d00002", known, lambda _: None, stop, lambda _, answers: answers)

        slow = threading.Thread(target=come, daemon=True)
        slow.start()
        loopback.run_everybody(tmp_path, known, lambda _: None, names)
        slow.join(60.0)
    (report,) = read_end(tmp_path, known).history
    assert (report.messages, report.void) == (3, False)
