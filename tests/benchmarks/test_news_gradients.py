"""The loop over clients finds the gradients that we find at once."""

import numpy as np
import pytest

from _news import each_news_once, titles_of_every_example
from _news_gradients import Cohorts
from veilrec.kernels.title_encoder import WORDS
from veilrec.models.news_model import NewsSizes

SOURCE, CLIENTS, CLOSE = "synthetic-news:users=60,seed=1", 12, 1e-5
SMALL = NewsSizes(word_dim=8, heads=2, head_dim=4, attention=4, category_dim=3, dropout=0.0)
NETWORKS = pytest.mark.parametrize("network", ["nrms", "naml", "plm-nr", "interest-nrms"])


def assert_close(ours, theirs):
    assert np.linalg.norm(ours - theirs) <= CLOSE * (np.linalg.norm(theirs) + 1e-3)


@NETWORKS
@pytest.mark.parametrize("loss", [each_news_once, titles_of_every_example])
def test_the_loop_finds_our_gradients(network, loss):
    cohorts = Cohorts(network, SOURCE, CLIENTS, SMALL)
    found = cohorts.each(3)
    for client, theirs in enumerate(cohorts.loop(loss, 3)):
        for name, values in found.dense.items():
            expected = theirs[name].numpy() if name in theirs else np.zeros_like(values[client])
            assert_close(values[client], expected)
        if found.words is not None:
            rows = slice(found.words.offsets[client], found.words.offsets[client + 1])
            table = np.zeros_like(cohorts.weights[WORDS])
            table[found.words.index[rows]] = found.words.values[rows]
            assert_close(table, theirs[WORDS].numpy())


@NETWORKS
def test_the_loop_finds_our_gradients_of_the_user_model(network):
    cohorts = Cohorts(network, SOURCE, CLIENTS, SMALL)
    found, in_vectors = cohorts.each_user(3)
    theirs, in_theirs = cohorts.loop_of_users(3)
    assert_close(in_vectors, np.concatenate([values.numpy() for values in in_theirs]))
    for client, of_client in enumerate(theirs):
        for name, values in of_client.items():
            assert_close(found[name][client], values.numpy())
