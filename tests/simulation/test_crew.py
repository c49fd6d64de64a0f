"""Workers, in this process, in others and of Ray, give the bits of one process."""

import os
import pickle
import signal
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.wire.raising import raises
from veilrec.audit.contract_subject import SECRET, ContractSubject, copied, same
from veilrec.core.errors import BadInput
from veilrec.simulation.pieces import Piece
from veilrec.simulation.simulation import Simulation
from veilrec.simulation.workers import LostWorker, Packed, ProcessPool, RayWorkers, Worker, shared_out

# Private state; reports and parts of the model; large private state and noise on what is sent; noise on messages drawn
# at once; weights by examples; a network; noise before learning.
METHODS = {
    "fedmf": (),
    "priv-fedmf-sub": (),
    "dp-fedncf-dgc": ("calibration=as-published",),
    "dp-fedmf": ("calibration=as-published",),
    "fednewsrec": ("calibration=as-published",),
    "dp-privrec": (),
    "privaterec": ("training=reports", "cohort.sampling=cyclic"),
}
ROUNDS = 2


class Unwilling:
    """Local training that never comes to an end."""

    def learn(self, cohort, model, spec):
        raise BadInput("no training today")


class Here:
    """A crew in this process, to which everything goes as bytes."""

    def __init__(self, workers, folder, simulation):
        packed = Packed.write(folder / "numbers", simulation.plan, simulation.data, simulation.seeds)
        self.workers = [Worker(pickle.loads(pickle.dumps(packed))) for _ in range(workers)]  # noqa: S301

    def learn(self, opened, pieces):
        given = [pickle.loads(pickle.dumps((opened, part))) for part in shared_out(pieces, len(self.workers))]  # noqa: S301
        answers = [worker.learn(*one) for worker, one in zip(self.workers, given, strict=True)]
        return [told for part, _ in answers for told in part], [total for _, total in answers]

    def close(self):
        pass


def simulation_of(name, *settings, at_once=7, secret=None):
    made = ContractSubject(name).on_clients(None, "cohort.drop_out=0.1", *settings, secret=secret)
    return Simulation(replace(made.plan, clients_per_batch=at_once), made.data, made.histories, made.seeds)


def assert_same_run(alone, together, rounds=ROUNDS):
    start = copied(alone.state())
    for number in range(rounds):
        assert together.step(number) == alone.step(number)
    assert same(together.state(), alone.state())
    assert not same(alone.state(), start)


@pytest.mark.parametrize(("name", "secret"), [*((name, None) for name in METHODS), ("dp-fedmf", SECRET)])
def test_workers_give_the_bits_of_one_process(name, secret, tmp_path):
    """With a secret they rehearse real clients."""
    alone, *crews = (simulation_of(name, *METHODS[name], secret=secret) for _ in range(3))
    start = copied(alone.state())
    for number, together in enumerate(crews, 1):
        (tmp_path / str(number)).mkdir()
        together.crew = Here(number, tmp_path / str(number), together)
    for number in range(ROUNDS):
        report = alone.step(number)
        assert [together.step(number) for together in crews] == [report] * 2
    assert all(same(together.state(), alone.state()) for together in crews)
    assert not same(alone.state(), start)


def test_processes_give_the_bits_of_one():
    alone, together = (simulation_of("priv-fedmf-sub") for _ in range(2))
    with ProcessPool(2, together.plan, together.data, together.seeds) as crew:
        together.crew = crew
        assert_same_run(alone, together)


@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install 'veilrec[ray]'")
@pytest.mark.parametrize(("name", "workers"), [("fedmf", 1), ("fedmf", 2), ("priv-fedmf-sub", 2)])
def test_ray_gives_the_bits_of_one_process(name, workers):
    alone, together = (simulation_of(name) for _ in range(2))
    with RayWorkers(workers, together.plan, together.data, together.seeds) as crew:
        together.crew = crew
        assert_same_run(alone, together)


def test_a_worker_that_is_killed_is_noticed_and_one_that_fails_says_why():
    simulation = simulation_of("fedmf")
    with ProcessPool(1, replace(simulation.plan, trainer=Unwilling()), simulation.data, simulation.seeds) as crew:
        simulation.crew = crew
        raises(BadInput, "no training today", simulation.step, 0)
        folder = Path(crew._folder.name)
        assert folder.exists()
        pid = crew._workers[0].pid
        os.kill(pid, signal.SIGKILL)
        raises(LostWorker, "--resume", simulation.step, 1)
    assert not folder.exists()


def test_the_file_of_numbers_is_all_that_a_worker_reads(tmp_path):
    simulation = simulation_of("fedmf")
    packed = Packed.write(tmp_path / "numbers", simulation.plan, simulation.data, simulation.seeds)
    assert len(packed.head) < simulation.data.rows.items.nbytes
    hand = packed.open()
    assert np.array_equal(hand.data.rows.items, simulation.data.rows.items)
    assert not hand.data.rows.items.flags.writeable
    (tmp_path / "numbers").unlink()
    raises(BadInput, "--shared", packed.open)


def test_pieces_are_shared_out_whole_and_in_order():
    pieces = [Piece(start, np.arange(1), np.arange(1), np.ones(1, np.bool_), {}) for start in range(5)]
    assert [[piece.start for piece in part] for part in shared_out(pieces, 2)] == [[0, 1], [2, 3, 4]]
    assert [[piece.start for piece in part] for part in shared_out(pieces[:1], 3)] == [[], [0], []]
    raises(BadInput, "--workers is 0", ProcessPool, 0, None, None, None)
