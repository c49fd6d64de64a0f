"""Trainings in which some devices lie: what becomes of everybody's lists, by attack, share and defence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from veilrec import _draws
from veilrec.errors import BadInput, Diverged
from veilrec.evaluate.evaluator import judge
from veilrec.runs.attack_subjects import Subject
from veilrec.runs.attacking_training import Result
from veilrec.simulate.attacks.liars import Liars, Poison, choose_target, lying_data, popular_items
from veilrec.simulate.attacks.poisoning import Defence, PoisonedSimulation, Poisoning, exposure_of, learns_promotion
from veilrec.simulate.simulation import Seeds

SHARES = (0.001, 0.01, 0.05)


def attack_poisoning(
    subject: Subject,
    *,
    poisons: Sequence[Poison],
    shares: Sequence[float],
    defences: Sequence[Defence],
    rounds: int | None = None,
    seed: int = 0,
) -> Result:
    """Train a subject again and again: once where nobody lies, then with every attack against every defence."""
    for share in shares:
        if not 0.0 < share < 0.5:
            raise BadInput(f"--share is {share:g}: it is the share of devices that lie, above 0 and below 0.5")
    if rounds is not None and rounds < 1:
        raise BadInput(f"--rounds is {rounds}: give at least 1")
    with subject.named():
        found = tuple(_trained(subject, poisons, shares, defences, rounds, seed))
    return Result("poisoning", subject, found, {"rounds": min(rounds or subject.plan.rounds, subject.plan.rounds)})


def _trained(
    subject: Subject,
    poisons: Sequence[Poison],
    shares: Sequence[float],
    defences: Sequence[Defence],
    rounds: int | None,
    seed: int,
) -> Iterator[Poisoning]:
    for defence in defences:
        yield _one(subject, None, defence, 0.0, rounds, seed)
        for poison in poisons:
            for share in shares:
                yield _one(subject, poison, defence, share, rounds, seed)


def _one(
    subject: Subject, poison: Poison | None, defence: Defence, share: float, rounds: int | None, seed: int
) -> Poisoning:
    plan, data, split = subject.plan, subject.devices, subject.split
    generator = np.random.default_rng([seed, _draws.COHORT, 1])
    able = np.flatnonzero(data.rows.lengths() > 0).astype(np.int64)
    count = max(1, round(share * len(able))) if poison is not None else 0
    lying = np.sort(generator.permutation(able)[:count])
    target = choose_target(data, split.n_items)
    told, liars = data, None
    if poison is not None:
        liars = Liars(lying, poison, target, popular_items(data, split.n_items, target))
        by_learning = learns_promotion(plan, data)
        told = lying_data(data, split.n_items, liars, generator, by_learning=by_learning)
    training = PoisonedSimulation(plan, told, split.train, Seeds.all_from(seed), liars, defence)
    for number in range(min(rounds or plan.rounds, plan.rounds)):
        training.step(number)
    model = training.model()
    metric, worst = ("auc", 0.5) if subject.reads_news else ("hr@10", 0.0)
    try:
        judged = judge(split.test, split.train, model)
        quality = float(np.mean(judged.values[metric][~np.isin(judged.users, lying)]))
        honest = generator.permutation(np.setdiff1d(able, lying))
        exposure = exposure_of(model, split.train, honest, target)
    except Diverged:  # the attack has won: nothing can be ranked any more
        quality, exposure = worst, 1.0
    return Poisoning(poison, defence, share, count, training.refused, exposure, quality, metric)
