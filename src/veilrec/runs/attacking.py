"""Attacks on the uploads of news models, and on the queries of their users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from veilrec._arrays import Doubles
from veilrec._csr import Csr
from veilrec.errors import BadInput
from veilrec.runs.attack_subjects import Populations, Subject
from veilrec.runs.evaluation import refuse_changed_data
from veilrec.runs.request import read_trained
from veilrec.runs.saved import SavedModel, open_model
from veilrec.simulate.attacks.gradient_rows import recover_clicks
from veilrec.simulate.attacks.readers import Finding
from veilrec.simulate.attacks.repeated_queries import COUNTS, Asking, Curve, average_queries, best_guess

_USERS = 500  # test users whose interests are looked for, at most


@dataclass(frozen=True)
class Attacked:
    """A subject, and what was found."""

    subject: Subject
    rounds: int  # of each device, taken together
    findings: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        """The first finding, which is the one that the method's statement is about, and all of them."""
        s = self.subject
        about = {"attack": "gradient-rows", "method": s.method, "calibration": s.calibration, "model": s.trained}
        terms = {"padding": s.padding, "claimed": s.claimed.to_json(), "data": s.data, "rounds": self.rounds}
        every = [finding.to_json() for finding in self.findings]
        return about | self.findings[0].to_json() | terms | {"findings": every}


def attack_uploads(subject: Subject, *, uploads: int, rounds: int = 1, seed: int = 0) -> Attacked:
    """Look for clicked news in what a subject's devices send."""
    with subject.named():
        found = recover_clicks(
            subject.plan, subject.devices, subject.weights, uploads=uploads, rounds=rounds, seed=seed
        )
    return Attacked(subject, rounds, found)


@dataclass(frozen=True)
class Asked:
    """A run whose users' queries were averaged."""

    folder: Path
    method: str
    data: str
    users: int
    interests: int
    chance: float  # of naming the right interest without a query
    asking: Asking
    curves: tuple[Curve, ...]

    def to_json(self) -> dict[str, Any]:
        """For `veilrec attack repeated-queries --json`."""
        a = self.asking
        return {
            "attack": "repeated-queries",
            "run": str(self.folder),
            "method": self.method,
            "data": self.data,
            "users": self.users,
            "interests": self.interests,
            "chance": self.chance,
            "calibration": a.calibration,
            "noise": a.noise,
            "clip_norm": a.clip_norm,
            "curves": [curve.to_json() for curve in self.curves],
        }


def attack_queries(
    folder: Path, populations: Populations, asking: Asking, *, counts: Sequence[int] = COUNTS, seed: int = 0
) -> Asked:
    """Average the queries of a run's test users."""
    trained, model = read_trained(folder), open_model(folder)
    scorer = _with_interests(model)
    population = populations.load(trained.data)
    refuse_changed_data(folder, trained, model, population)
    attention = attention_of_test_users(scorer, trained.split(population).test.impressions, seed)
    curves = average_queries(attention, asking, counts=counts, seed=seed)
    users, interests = attention.shape
    return Asked(folder, trained.method, trained.data, users, interests, best_guess(attention), asking, curves)


def clip_norm_of(folder: Path) -> float:
    """The bound on attention that a run's model was trained with."""
    return float(_with_interests(open_model(folder)).model.sizes.attention_clip)


def _with_interests(model: SavedModel) -> Any:
    scorer: Any = model.for_anybody
    if not hasattr(getattr(scorer, "model", None), "padded_attention"):
        raise BadInput(
            f"{model.folder} is a run of {model.method}, whose model has no basis vectors, so that its devices send no"
            " attention: train one that has, such as privaterec, and give its folder"
        )
    return scorer


def attention_of_test_users(scorer: Any, impressions: Any, seed: int) -> Doubles:
    """Attention over the basis of test users with a history, some of them: [users, B]."""
    import torch

    if impressions is None:
        raise BadInput("the run's protocol asks about no impressions: train with --protocol mind")
    _, first = np.unique(impressions.users, return_index=True)  # one history a user
    rows = np.unique(impressions.history_of[first]).astype(np.int64)
    rows = rows[impressions.histories.lengths()[rows] > 0]
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed])))
    rows = np.sort(generator.permutation(rows)[:_USERS])
    if not len(rows):
        raise BadInput("no test user has clicked anything before: there are no interests to find")
    items, mask = _padded(impressions.histories.take(rows), scorer.longest)
    with torch.inference_mode():
        past = scorer.states[torch.from_numpy(items)]
        found = scorer.model.attention(scorer.model.whole_user(past, torch.from_numpy(mask)))
    attention = found.numpy().astype(np.float64)
    return np.asarray(attention / attention.sum(axis=1, keepdims=True))


def _padded(histories: Csr, longest: int) -> tuple[Any, Any]:
    """The latest clicks of every history: [users, longest] and which are real."""
    width = max(1, min(longest, int(histories.lengths().max(initial=0))))
    items, mask = np.zeros((len(histories), width), np.int64), np.zeros((len(histories), width), np.bool_)
    for row in range(len(histories)):
        latest = histories.row(row)[-width:]
        items[row, : len(latest)], mask[row, : len(latest)] = latest, True
    return items, mask
