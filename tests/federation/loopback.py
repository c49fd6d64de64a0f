"""A whole federation in one process, for tests and measurements: the real service, and real clients in threads."""

import os
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO

import numpy as np

from veilrec.audit.method import small_problem
from veilrec.core.errors import VeilrecError
from veilrec.data.population import Strings
from veilrec.federation import federation
from veilrec.federation.client import folder as client_folder
from veilrec.federation.client.process import answers_of
from veilrec.federation.coordinator.process import Control, coordinate
from veilrec.federation.facts import FederationFacts, largest_content
from veilrec.federation.federation import CA, CLIENTS, COORDINATOR, HELPERS
from veilrec.federation.helper import run_helper
from veilrec.federation.identity import identity_of, pin, read_invitation
from veilrec.federation.link import HttpsLink, live
from veilrec.federation.making import Basis, FederationOptions, lay_out
from veilrec.methods.base import promised
from veilrec.server.round_specs import CohortSampler
from veilrec.serving.middleware import Log
from veilrec.simulation.simulation import Seeds, Simulation

_PATIENCE_SECONDS = 600.0
LONG = 120.0  # seconds: nothing in a test ends by such a deadline


def free_port():
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def basis_of(subject, *settings, users=6, rounds=2):
    method, config = subject.method, subject.config(*settings)
    problem = subject.problem(users=users, rounds=rounds)
    if subject.reads_news:
        problem = replace(small_problem(method, users, rounds), public_seed=problem.public_seed)
    if method.plan is None:
        raise VeilrecError(f"{method.name} has no plan for clients")
    items = Strings.of(f"i{number}" for number in range(problem.n_items))
    plan, data = method.plan(config, problem), method.clients(config, problem)
    return Basis(subject.spec, config, problem, plan, data, items, promised(method, config, problem), "loo-99")


def lay_out_in(folder, basis, **wishes):
    """A federation of synthetic people, which is a rehearsal unless told otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    asked = {"rehearsal": True, "port": free_port(), **wishes}
    return lay_out(folder, basis, FederationOptions(method=basis.method, data="synthetic-ratings", clients=1, **asked))


def rewritten(folder, **changes):
    """Another federation.yaml in the place of the one that was made, to which everybody is then invited."""
    made = replace(federation.read(folder), **changes)
    federation.write(made, folder)
    for place in (*(folder / CLIENTS).iterdir(), *(folder / HELPERS).glob("*")):
        pin(place, made)


def known_in(folder):
    return FederationFacts(folder, federation.read(folder))


@contextmanager
def coordinating(folder, known, *, rate=0.0, stay=True, page=None):
    """The coordinator in a thread; it goes on serving when the rounds are over."""
    control, failures = Control(), list[BaseException]()

    def run():
        try:
            quiet = Log(BytesIO())
            coordinate(folder, known, lambda _: None, control=control, log=quiet, rate=rate, stay=stay, page=page)
        except BaseException as error:
            failures.append(error)
            control.ready.set()
        finally:
            control.ended.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    control.ready.wait(_PATIENCE_SECONDS)
    try:
        if failures:
            raise failures[0]
        yield control
    finally:
        control.stop()
        thread.join(_PATIENCE_SECONDS)
    if failures:
        raise failures[0]


class _Alone:
    """A client that shares its process with others, whose models are not made for several threads."""

    def __init__(self, answers, lock):
        self._answers, self._lock = answers, lock

    def answer(self, task, content):
        with self._lock:
            return self._answers.answer(task, content)


def link_of(folder, known):
    key, name = identity_of(folder), read_invitation(folder).client
    return HttpsLink(known.federation, known.folder / CA, name, key, largest_content=largest_content(known))


def run_client(folder, known, say, stop, wrap):
    with client_folder.open_client(folder, known) as client:
        link, place = link_of(folder, known), client_folder.read_record(folder).place
        answers = wrap(folder.name, answers_of(client, known, place, identity_of(folder)))
        try:
            return live(link, answers, say, stop, lambda: link.enrol(read_invitation(folder)))
        finally:
            link.close()


def run_all(folder, names=None, *, wrap=lambda _, answers: answers):
    """A federation from its first round to its last; what its clients said."""
    known, said = known_in(folder), list[str]()
    with coordinating(folder, known) as control:
        run_everybody(folder, known, said.append, names, wrap=wrap, given_up=control.ended)
    return said


def run_everybody(folder, known, say, names=None, *, helpers=None, wrap=lambda _, answers: answers, given_up=None):
    """All clients and helpers of a folder, or some, in threads, until it is over, or their coordinator has given up."""
    alone, stop, failures = threading.Lock(), threading.Event(), list[BaseException]()

    def guarded(work):
        try:
            work()
        except BaseException as error:
            failures.append(error)

    def apart(name, answers):
        return wrap(name, _Alone(answers, alone))

    clients = [p for p in sorted((folder / CLIENTS).iterdir()) if names is None or p.name in names]
    helping = [p for p in sorted((folder / HELPERS).glob("*")) if helpers is None or p.name in helpers]
    work = [
        *(lambda place=place: run_helper(place, folder, say, stop) for place in helping),
        *(lambda place=place: run_client(place, known, say, stop, apart) for place in clients),
    ]
    threads = [threading.Thread(target=guarded, args=(each,), daemon=True) for each in work]
    for thread in threads:
        thread.start()
    until = time.monotonic() + _PATIENCE_SECONDS
    while any(thread.is_alive() for thread in threads) and not failures and time.monotonic() < until:
        if given_up is not None and given_up.is_set():
            stop.set()
            return
        time.sleep(0.02)
    stop.set()
    if failures:
        raise failures[0]
    if any(thread.is_alive() for thread in threads):
        raise VeilrecError(f"the federation in {folder} does not come to its end (process {os.getpid()})")


def run_with_a_restart(folder, known, half):
    """All clients, and a coordinator that is ended when `half` comes back, and then started again."""
    clients = threading.Thread(target=run_everybody, args=(folder, known, lambda _: None), daemon=True)
    with coordinating(folder, known) as control:
        clients.start()
        assert half(control)
    with coordinating(folder, known):
        clients.join(LONG)


def until(done, seconds=LONG):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := done():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def simulated(folder, basis, there=None):
    """The simulation with the secrets of a rehearsal, after all rounds; `there` says who is, in a round."""
    secret = (folder / COORDINATOR / "secret").read_bytes()
    made = Simulation(basis.plan, basis.data, basis.problem.train, Seeds.all_from(basis.problem.public_seed, secret))
    if there is not None:
        made.sampler = _OfThose(made.sampler, there)
    for number in range(basis.problem.rounds):
        made.step(number)
    return made


class _OfThose(CohortSampler):
    def __init__(self, sampler, there):
        super().__init__(sampler.settings, sampler.eligible, sampler.seed)
        self._sampler, self._there = sampler, there

    def draw(self, round_number):
        drawn = self._sampler.draw(round_number)
        return drawn[np.isin(drawn, self._there(round_number))]


def opened(folder, known):
    return client_folder.open_client(folder, known)
