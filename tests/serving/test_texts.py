"""Ids, titles and categories by number, and numbers by id."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.serving.toys import packed
from veilrec.core.errors import BadInput
from veilrec.serving.edition import ReleaseTexts


def _texts(ids: list[str]) -> ReleaseTexts:
    return ReleaseTexts(
        {
            **packed("ids", ids),
            **packed("titles", [f"title {name}" for name in ids]),
            **packed("categories", ["news", "sport"]),
            "category": np.array([number % 3 - 1 for number in range(len(ids))], np.int32),
        }
    )


def test_ids_are_found_whole() -> None:
    ids = ["1", "11", "111", "é", "e", ""]
    texts = _texts(ids)
    assert [texts.find(name) for name in ids] == [0, 1, 2, 3, 4, 5]
    assert texts.find("1111") is None
    assert texts.find("\xe9x") is None


def test_what_comes_and_goes() -> None:
    texts = _texts(["a", "b"])
    texts.add(7, "c", 'a "title"', "sport")
    assert texts.find("c") == 7
    assert json.loads(texts.json(7) + b"1}") == {"id": "c", "title": 'a "title"', "category": "sport", "score": 1}
    assert texts.json(8) is None
    texts.hide(0)
    assert texts.find("a") is None
    texts.add(8, "a", "new", "")
    assert texts.find("a") == 8
    assert texts.numbers().tolist() == [1, 7, 8]
    texts.hide(8)
    assert texts.find("a") is None
    assert texts.numbers().tolist() == [1, 7]


def test_codes() -> None:
    texts = _texts(["a"])
    assert (texts.category_code("sport"), texts.category_code(""), texts.category_code("x")) == (1, -1, None)
    assert texts.category_code("x", new=True) == 2
    assert texts.category_code("x") == 2
    assert texts.region_code("north") is None
    assert texts.region_code("north", new=True) == 0


def test_odd_arrays_are_refused() -> None:
    arrays = {**packed("ids", ["a"]), **packed("titles", ["a"]), **packed("categories", [])}
    with pytest.raises(BadInput, match="without a name"):
        ReleaseTexts(arrays | {"category": np.zeros(1, np.int32)})
    with pytest.raises(BadInput, match="as many"):
        ReleaseTexts(arrays | {"category": np.full(2, -1, np.int32)})
    with pytest.raises(BadInput, match="end to end"):
        ReleaseTexts(arrays | {"ids.offsets": np.array([0, 9]), "category": np.full(1, -1, np.int32)})
