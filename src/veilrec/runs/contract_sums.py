"""The check of the contract that is about sums: whole numbers, the same in whichever order and however grouped."""

from __future__ import annotations

from typing import Any

import numpy as np

from veilrec.lattice import Lattice
from veilrec.runs.contract_checks import need
from veilrec.runs.contract_subject import SECRET, SEED, Subject
from veilrec.server.aggregate import Aggregator
from veilrec.simulate.simulation import one_of
from veilrec.updates import Round, Uploads

_SHARDS = 3


def sums(subject: Subject) -> None:
    """Messages in another order, in shards, and as the integers that a device would mask add up to the same bits."""
    sim = subject.simulation(secret=SECRET)
    server: Any = sim.server
    taken: list[tuple[Lattice, Uploads]] = []
    abouts: list[Round] = []
    add = server.add

    def noting(uploads: Uploads) -> None:
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
