"""Features: codes and numbers that a model can read, whatever was given."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilrec.core.errors import BadInput
from veilrec.core.features import NO_CODE, Feature, Side, assembled, text_entries, without_rows

AGE = Feature("age", "number", low=0.0, high=100.0)
SEX = Feature("gender", "category", ("F", "M"))
TASTES = Feature("tastes", "categories", ("art", "beer", "chess"))
EMPTY = without_rows((AGE, SEX, TASTES))
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def rows(*given):
    return EMPTY.encoded(given)


def test_codes_are_numbered_feature_after_feature_with_the_unknown_first():
    side = rows({"age": 25, "gender": "M", "tastes": "chess|art"}, {"gender": "F"}, {})
    assert side.starts.tolist() == [0, 3, 7]
    assert side.n_codes == 7
    assert side.codes.tolist() == [[2, 4, 6], [1, 3, NO_CODE], [0, 3, NO_CODE]]
    assert side.numbers.tolist() == [[0.25], [0.5], [0.5]]
    assert (side.codes.dtype, side.numbers.dtype) == (np.int32, np.float32)
    side = rows({"gender": "x", "tastes": "beer| golf |beer"}, {"gender": " F ", "tastes": "||"})
    assert side.codes.tolist() == [[0, 3, 5], [1, 3, NO_CODE]]
    assert side.unknown().tolist() == [[True, True], [False, True]]


@given(st.lists(st.floats(), max_size=20), FINITE, FINITE)
def test_whatever_a_number_is_a_model_sees_0_to_1(numbers, one, other):
    low, high = sorted((one, other))
    if not (low < high and np.isfinite(high - low)):
        with pytest.raises(BadInput, match="low must be below high"):
            Feature("n", "number", low=low, high=high)
        return
    assert rows({"age": "old"}, {"age": -5}, {"age": 1e300}).numbers.ravel().tolist() == [0.5, 0.0, 1.0]
    scaled = Feature("n", "number", low=low, high=high).scaled(np.array(numbers, np.float64))
    assert ((scaled >= 0) & (scaled <= 1)).all()
    assert (scaled[~np.isfinite(numbers)] == 0.5).all()


VALUES = st.text(st.characters(exclude_characters="|", exclude_categories=["Cs", "Z", "Cc"]), min_size=1, max_size=4)


@given(st.lists(VALUES, unique=True, max_size=6), st.lists(st.lists(VALUES, max_size=5), max_size=8))
def test_codes_say_which_values_a_row_has(values, people):
    feature = Feature("tags", "categories", tuple(values))
    side = without_rows([AGE, SEX, feature]).encoded([{"tags": "|".join(person)} for person in people])
    start = int(side.starts[1])
    for row, person in zip(side.codes.tolist(), people, strict=True):
        held = [code for code in row if code != NO_CODE]
        assert held == sorted(set(held))
        assert row == held + [NO_CODE] * (len(row) - len(held))
        tags = {code - start for code in held if code >= start}
        expected = {1 + values.index(tag) for tag in person if tag in values}
        strangers = not person or any(tag not in values for tag in person)
        assert tags == expected | ({0} if strangers else set())


@given(st.lists(st.sampled_from(["age", "gender", "tastes"]), max_size=4), st.data())
def test_selected_features_are_what_they_alone_would_be(names, data):
    person = st.fixed_dictionaries(
        {}, optional={"age": FINITE, "gender": st.sampled_from("FMx"), "tastes": st.sampled_from(["art", "beer|art"])}
    )
    people = data.draw(st.lists(person, max_size=5))
    chosen = EMPTY.encoded(people).select(names)
    alone = without_rows([f for f in EMPTY.features if f.name in names]).encoded(
        [{name: value for name, value in row.items() if name in names} for row in people]
    )
    assert chosen.features == alone.features
    assert np.array_equal(chosen.codes, alone.codes)
    assert np.array_equal(chosen.numbers, alone.numbers)


@pytest.mark.parametrize("use", [lambda side: side.select(["gendre"]), lambda side: side.encoded([{"gendre": "F"}])])
def test_an_unknown_name_is_refused_with_those_that_exist(use):
    with pytest.raises(BadInput, match="unknown feature 'gendre': did you mean gender.*known are age, gender, tastes"):
        use(EMPTY)
    with pytest.raises(BadInput, match="there are none here"):
        use(without_rows((), 3))


def test_strangers_are_rows_without_values():
    side = rows({"age": 3, "tastes": "art|beer|chess"}, {})
    for made in (side.strangers(2), side.of({}, 2)):
        assert made.codes.tolist() == [[0, 3, NO_CODE, NO_CODE]] * 2
        assert made.numbers.tolist() == [[0.5]] * 2
    again = side.of(side.kept(), 2)
    assert np.array_equal(again.codes, side.codes)
    assert side.take(np.array([1])).codes.tolist() == side.strangers(1).codes.tolist()
    assert EMPTY.strangers(1).codes.tolist() == [[0, 3]]


def test_features_survive_json():
    again = Side.from_json(json.loads(json.dumps(rows({"age": 3}).to_json())))
    assert again.features == EMPTY.features
    assert len(again) == 0
    assert again.encoded([{"tastes": "beer"}]).codes.tolist() == [[0, 5]]
    for broken in ([{"name": "a"}], [{"name": "a", "kind": "colour"}], [3], "text"):
        with pytest.raises(BadInput):
            Side.from_json(broken)


def test_a_feature_that_makes_no_sense_is_refused():
    for wrong, told in [
        ({"name": ""}, "no name"),
        ({"kind": "colour"}, "unknown kind 'colour'.*categories, category, number"),
        ({"values": ("a", "a")}, "'a' twice"),
        ({"low": 1.0, "high": 1.0}, "low must be below high"),
        ({"low": float("-inf")}, "both finite"),
        ({"separator": ""}, "empty separator"),
    ]:
        with pytest.raises(BadInput, match=told):
            Feature(**{"name": "a", "kind": "category", **wrong})


def test_columns_become_rows_whatever_their_order():
    texts = text_entries(TASTES, ["", "beer|art", "golf"], np.array([2, 1, 0, 1]))
    genders = (np.array([3, 0]), np.array([2, 1], np.int32))  # rows 1 and 2 say nothing
    side = assembled([SEX, TASTES], 4, [genders, texts], [])
    assert side.codes.tolist() == [[1, 3, -1], [0, 4, 5], [0, 3, -1], [2, 4, 5]]
    assert side.numbers.shape == (4, 0)
