"""A run of every kind of ranker, trained once for all tests that read it and leave it as it is."""

from functools import cache

import pytest

from tests.methods.tiny_news import SMALL
from veilrec.runs.release_model import open_client
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.training import train

RATINGS = "synthetic-ratings:users=80,items=60,mean_history=8,seed=3"
NEWS = "synthetic-news:users=60,news=200,days=3,seed=3"
WITH_PEOPLE = ("features.users=[group]", "model.embedding=4", "model.hidden=[6]", "local.steps=3")


def ratings(method, *settings, rounds=None):
    return RunRequest(method, RATINGS, seed=1, protocol="loo-full", settings=settings, rounds=rounds)


REQUESTS = {
    "matrix-factorisation": ratings("fedmf", "cohort.size=20", rounds=2),
    "neumf": ratings("fedncf", "cohort.size=20", rounds=2),
    "least-squares": ratings("fcf", "cohort.size=20", rounds=2),
    "item-item": ratings("ease"),
    "popularity": ratings("popularity"),
    "neighbours": ratings("markov"),
    "self-attention": ratings("sasrec", "dim=8", rounds=1),
    "private-least-squares": ratings("dpals"),
    "gram": ratings("private-gram"),
    "veil": ratings("veil", "people=20000", rounds=6),
    "veil-news": RunRequest("veil", NEWS, seed=1, rounds=2),
    "random": ratings("random"),
    "own-history": ratings("own-history"),
    "features": ratings("privrec", "cohort.size=20", *WITH_PEOPLE, rounds=2),
    "news": RunRequest("nrms", NEWS, seed=1, settings=SMALL, rounds=1),
}


def client(release, state, *items):
    """A client with the release and these items."""
    opened = open_client(state, release)
    opened.read(*items)
    return opened


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """From a kind of ranker to its prepared run and the folder that it was trained into."""

    @cache
    def run(kind):
        prepared, out = prepare(REQUESTS[kind]), tmp_path_factory.mktemp("trained") / kind
        train(prepared, out)
        return prepared, out

    return run
