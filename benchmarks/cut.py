"""What one person more moves, by how a log is cut: python benchmarks/cut.py [--json].

A small log of impressions is read with and without a person who has one impression, two days after everybody else's.
veil trains on both at epsilon 1, everybody in its one round. Printed are how far the person moves the round's sum, in
clip norms, and how large an epsilon an attacker can prove from the released weights, who knows everybody else: from
counts alone, and given that the noise is Gaussian.

The first cut is the last day of the log, as it was made before: the person decides it.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from veilrec.audit.bounds import epsilon_from_gaussian_scores, epsilon_from_scores
from veilrec.client.local_training import Cohort
from veilrec.core.arrays import Doubles
from veilrec.core.plan import Plan
from veilrec.data.impression_logs import read_impressions
from veilrec.data.synthetic_draws import DAY, FIRST_DAY
from veilrec.data.synthetic_news import generate
from veilrec.evaluation.protocols import make_split
from veilrec.methods.base import Problem, configure
from veilrec.methods.registry import get
from veilrec.runs.request import problem_of
from veilrec.simulation.simulation import Seeds, Simulation

USERS, DAYS, DELTA, ALPHA = 200, 4, 1e-6, 0.05
SETTINGS = ("privacy.epsilon=1", f"privacy.delta={DELTA}", "cohort.size=0", "rounds=1", "titles=off")
LATE = FIRST_DAY + (DAYS + 2) * DAY


def write_log(folder: Path, *, with_person: bool) -> Path:
    """Write synthetic impressions as one's own log; the person, last by name, was shown what others were."""
    people = generate(users=USERS, news=300, days=DAYS, seed=1)
    known: Any = people.catalogue
    items = zip(people.items, known.titles, known.categories, strict=True)
    lines: list[dict[str, Any]] = [{"item": i, "title": title, "category": category} for i, title, category in items]
    for part in people.impressions.values():
        for row in range(len(part)):
            shown, past = part.shown.row(row), part.histories.row(int(part.history_of[row]))
            clicked = part.clicked[part.shown.offsets[row] : part.shown.offsets[row + 1]]
            lines.append(
                {
                    "user": people.users[int(part.users[row])],
                    "time": int(part.times[row]),
                    "shown": [people.items[int(item)] for item in shown],
                    "clicked": [people.items[int(item)] for item in shown[clicked == 1]],
                    "history": [people.items[int(item)] for item in past],
                }
            )
    if with_person:
        lines.append({**lines[-1], "user": "V", "time": LATE})
    path = folder / f"log-{with_person}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def problem(path: Path, cut: int | None) -> Problem:
    """What a method gets of a log that is cut there."""
    population = read_impressions(path, cut=cut)
    return problem_of(population, make_split(population, "mind", seed=0), seed=0, rounds=1)


def whole_sum(plan: Plan, data: Any) -> Doubles:
    """The sum of everybody's bounded update, without noise."""
    mechanism: Any = plan.mechanism
    clients = np.flatnonzero(data.rows.lengths() > 0).astype(np.int64)
    spec = plan.round_planner.next(0, plan.start, None)
    learned = plan.trainer.learn(Cohort(clients, data.take(clients), {}, 0), plan.start, spec)
    dense = mechanism.bound(learned.updates, spec).dense
    return np.concatenate([dense[name].astype(np.float64).sum(axis=0).ravel() for name in sorted(dense)])


def scores(plan: Plan, data: Any, train: Any, direction: Doubles, draws: int, world: int) -> Doubles:
    """How far each of many released models lies towards the person's presence."""
    found = np.empty(draws)
    for draw in range(draws):
        secret = hashlib.sha256(f"{world} {draw}".encode()).digest()
        simulation = Simulation(plan, data, train, Seeds.all_from(0, secret))
        simulation.step(0)
        weights = simulation.server.weights
        found[draw] = sum(
            float(part @ weights[name].astype(np.float64).ravel())
            for name, part in zip(sorted(weights), np.split(direction, _ends(weights)), strict=True)
        )
    return found


def _ends(weights: Any) -> list[int]:
    return [int(end) for end in np.cumsum([weights[name].size for name in sorted(weights)])[:-1]]


def measure(folder: Path, cuts: tuple[int | None, int | None], draws: int) -> dict[str, float]:
    """One cut of the log with the person, one of the log without; no epsilons without draws."""
    method: Any = get("veil")
    config, _ = configure(method, preset="tuned", dataset="", settings=SETTINGS)
    problems = [problem(folder / f"log-{has}.jsonl", cut) for has, cut in zip((True, False), cuts, strict=True)]
    plan = method.plan(config, problems[0])
    data = [method.clients(config, one) for one in problems]
    sums = [whole_sum(plan, one) for one in data]
    moved = sums[0] - sums[1]
    result = {"clip_norms_moved": float(np.linalg.norm(moved)) / float(plan.mechanism.clip_norm)}
    if not draws:
        return result
    direction = moved / max(float(np.linalg.norm(moved)), 1e-12)
    with_one, without = (
        scores(plan, one, made.train, direction, draws, world)
        for world, (one, made) in enumerate(zip(data, problems, strict=True))
    )
    return result | {
        "epsilon_from_counts": epsilon_from_scores(with_one, without, delta=DELTA, alpha=ALPHA),
        "epsilon_given_gaussian_noise": epsilon_from_gaussian_scores(with_one, without, delta=DELTA, alpha=ALPHA),
    }


def main() -> None:
    """Print one line for each way of cutting."""
    draws = 200 if "--quick" in sys.argv else 1_000
    public = FIRST_DAY + (DAYS - 1) * DAY
    cuts = {
        "the last day of the log (as before)": (LATE // DAY * DAY, public),
        "each user's own last fifth": (None, None),
        "a public date": (public, public),
    }
    with tempfile.TemporaryDirectory() as name:
        for has in (True, False):
            write_log(Path(name), with_person=has)
        results = {words: measure(Path(name), pair, draws) for words, pair in cuts.items()}
    if "--json" in sys.argv:
        sys.stdout.write(json.dumps({"claimed_epsilon": 1.0, "draws": draws, "cuts": results}, indent=2) + "\n")
        return
    for words, found in results.items():
        sys.stdout.write(
            f"{words:36}  the sum moves by {found['clip_norms_moved']:6.2f} clip norms; epsilon is at least"
            f" {found['epsilon_from_counts']:.2f} (counts), {found['epsilon_given_gaussian_noise']:.2f} (Gaussian)\n"
        )


if __name__ == "__main__":
    main()
