import numpy as np
import pytest

from veilrec.core.schema import MAX_TENSORS, Schema, Tensor, whole_model

SCHEMA = Schema((Tensor("items", (5, 2), True), Tensor("bias", (3,), False), Tensor("scale", (), False)))


def test_schemas_that_are_refused():
    for shape in [(5,), (5, 2, 2), (0, 2), (5, 0), ()]:
        with pytest.raises(ValueError, match="shape"):
            Tensor("items", shape, by_row=True)
    many = tuple(Tensor(str(number), (1,), False) for number in range(MAX_TENSORS + 1))
    Schema(many[:-1])
    with pytest.raises(ValueError, match="255"):
        Schema(many)
    with pytest.raises(ValueError, match="own name"):
        Schema((many[0], many[0]))


def test_the_whole_model_has_every_row_of_every_tensor():
    weights = {
        "items": np.arange(10, dtype=np.float32).reshape(5, 2),
        "bias": np.ones(3, np.float32),
        "scale": np.array(2.0, np.float32),
    }
    model = whole_model(SCHEMA, weights, 4)
    assert (model.round_number, model.count) == (4, 1)
    assert model.tables["items"].index.tolist() == [0, 1, 2, 3, 4]
    assert np.array_equal(model.tables["items"].values, weights["items"])
    assert model.dense["bias"].shape == (1, 3)
    assert model.dense["scale"].shape == (1,)
