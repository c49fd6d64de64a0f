"""What the index is measured with: vectors of synthetic news by a trained model, and the questions of its readers."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from veilrec.core.arrays import Floats, Indices
from veilrec.core.errors import VeilrecError
from veilrec.data.datasets import load
from veilrec.data.population import ItemTable as Texts
from veilrec.methods.news.ranker import NewsScorer, NewsUsers, encode_all
from veilrec.models.federated_news import Interests
from veilrec.privacy.mechanisms.attention import normalise
from veilrec.runs.config_file import make_request
from veilrec.runs.request import prepare
from veilrec.runs.saved import open_model
from veilrec.runs.training import train

_SEED = 1
_NOISE = 0.3  # scale of the Laplace noise on attention
_SETTINGS = ("calibration=none", "size.heads=20", "size.head_dim=20")  # vectors of 400 numbers
DIM, INTERESTS = 400, 5


@dataclass(frozen=True)
class Items:
    """Items as the index gets them, and weights of the interests to ask with."""

    vectors: Floats  # [items, d]
    interests: Floats  # [B, d]
    category: Indices
    weights: Floats  # [questions, B]
    source: str  # how they were made


def trained_items(count: int, questions: int, *, quick: bool) -> Items:
    """Train PrivateRec on synthetic news, and let it encode `count` unseen titles."""
    users, cohort, rounds = (400, 50, 12) if quick else (2000, 100, 60)
    data = f"synthetic-news:users={users},seed={_SEED}"
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        given = {"method": "privaterec", "data": data, "preset": "tuned", "rounds": rounds, "seed": _SEED}
        request, _ = make_request(None, given, (*_SETTINGS, f"cohort.size={cohort}"))
        train(prepare(request), run)
        scorer = open_model(run).for_users
    if not isinstance(scorer, NewsScorer) or not isinstance(scorer.model, Interests):
        raise VeilrecError("PrivateRec has become another kind of model: the benchmark has to follow")
    # A few readers more than none: the generator makes the news, and wants somebody to read them.
    texts = load(f"synthetic-news:users=20,news={count},seed={_SEED + 1}").catalogue
    interests = NewsUsers(scorer).interests
    if texts is None or interests is None:
        raise VeilrecError("synthetic news without texts, or a model without interests")
    source = (
        f"privaterec (tuned, calibration none, {rounds} rounds of {cohort} clients) trained on {data}; its vectors of"
        f" {count:,} other synthetic titles (synthetic-news, seed {_SEED + 1}); questions: a third attention of its"
        f" readers, a third that with Laplace noise of {_NOISE:g} back on the simplex, a third uniform on the simplex"
    )
    vectors = _encoded(scorer, texts)
    categories = np.unique(list(texts.categories), return_inverse=True)[1].astype(np.int32)
    return Items(vectors, interests, categories, _questions(scorer, scorer.model, questions), source)


def _encoded(scorer: NewsScorer, texts: Texts) -> Floats:
    """All cores: it is not what is measured."""
    torch.set_num_threads(os.cpu_count() or 1)
    vectors: Floats = encode_all(scorer.model, scorer.reader.read(texts)).numpy()
    torch.set_num_threads(1)
    return vectors


def _questions(scorer: NewsScorer, model: Interests, count: int) -> Floats:
    generator = np.random.default_rng(_SEED)
    readers = scorer.vectors_before_basis(np.arange(len(scorer.histories), dtype=np.int64), model)
    with torch.inference_mode():
        attention = model.attention(torch.from_numpy(readers)).numpy().astype(np.float64)
    own = attention[generator.integers(0, len(attention), count)]
    noisy = normalise(own + generator.laplace(0.0, _NOISE, own.shape), "simplex")
    anywhere = generator.dirichlet(np.ones(own.shape[1]), count)
    kind = np.arange(count)[:, np.newaxis] % 3
    return np.select([kind == 0, kind == 1], [own, noisy], anywhere).astype(np.float32)


def anti_correlated(count: int, interests: int) -> Floats:
    """Values with a sum near 1: what is good for one interest is bad for the others. The worst case for bounds."""
    generator = np.random.default_rng(_SEED)
    shares = generator.dirichlet(np.ones(interests), count)
    level = generator.normal(1.0, 0.05, (count, 1))
    return (shares * level).astype(np.float32)
