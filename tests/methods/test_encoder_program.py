"""The user encoder of every network as a program: numpy gives what torch gives."""

import numpy as np
import pytest
import torch

from veilrec.client.released import UserEncoder
from veilrec.core.errors import BadInput
from veilrec.methods.news.encoder_export import encoder_program, encoder_weights
from veilrec.methods.news.prepare import MODELS, make_model
from veilrec.models.federated_news import Interests
from veilrec.models.news_model import NewsShape, NewsSizes
from veilrec.wire.releases import BadRelease

SHAPE = NewsShape(words=30, categories=5, subcategories=6, entities=3, entity_dim=8, sentence_dim=16)
LONGEST = 10
CLOSE = 1e-5


def network(name):
    """With weights that matter: those of the start are partly zero."""
    generator = torch.Generator().manual_seed(3)
    model = make_model(name, NewsSizes(recent=4), SHAPE, generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
    return model


def by_torch(model, clicks):
    mask = torch.ones(1, max(1, len(clicks)), dtype=torch.bool) & (len(clicks) > 0)
    padded = clicks if len(clicks) else torch.zeros(1, model.dim)
    encode = model.whole_user if isinstance(model, Interests) else model.user
    with torch.inference_mode():
        return encode(padded[None], mask)[0].numpy()


def with_vector(name):
    return network(name).is_dot_product


@pytest.mark.parametrize("name", [name for name in MODELS if with_vector(name)])
def test_numpy_gives_what_torch_gives(name):
    model = network(name)
    program = encoder_program(model, LONGEST)
    weights = encoder_weights(model, program)
    encoder = UserEncoder(program, weights)
    generator = torch.Generator().manual_seed(5)
    for length in (0, 1, 3, 4, 5, LONGEST):
        clicks = torch.randn(length, model.dim, generator=generator)
        expected = by_torch(model, clicks)
        scale = max(1.0, float(np.abs(expected).max()))
        assert np.abs(encoder.user(clicks.double().numpy()) - expected).max() < CLOSE * scale


def test_only_the_latest_clicks_count():
    model = network("nrms")
    program = encoder_program(model, LONGEST)
    encoder = UserEncoder(program, encoder_weights(model, program))
    clicks = np.random.default_rng(0).normal(size=(LONGEST + 7, model.dim))
    assert np.array_equal(encoder.user(clicks), encoder.user(clicks[-LONGEST:]))
    assert not np.allclose(encoder.user(clicks), encoder.user(clicks[:LONGEST]))


@pytest.mark.parametrize("name", [name for name in MODELS if not with_vector(name)])
def test_networks_without_a_user_vector_are_refused(name):
    with pytest.raises(BadInput, match="cannot be released"):
        encoder_program(network(name), LONGEST)


@pytest.mark.parametrize(
    "layer", [{"op": "unheard-of"}, {}, "history", {"op": "latest", "count": 1, "of": {"op": "?"}}]
)
def test_an_unknown_layer_is_refused_before_anything_is_encoded(layer):
    program = {"user": layer, "empty": None, "dim": 2, "longest": 3}
    with pytest.raises(BadRelease, match="does not know"):
        UserEncoder(program, {})


def test_a_missing_tensor_and_a_wrong_width_are_refused():
    history = {"op": "history"}
    attend = {"user": {"op": "attend", "weights": "w", "of": history}, "empty": None, "dim": 2, "longest": 3}
    with pytest.raises(BadRelease, match="tensor"):
        UserEncoder(attend, {}).user(np.ones((1, 2)))
    with pytest.raises(BadRelease, match="tensor"):
        UserEncoder(attend | {"empty": "newcomer"}, {})
    with pytest.raises(BadRelease, match="gives"):
        UserEncoder(attend | {"user": history}, {}).user(np.ones((1, 2)))
