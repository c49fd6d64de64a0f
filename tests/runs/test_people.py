"""Recommendations to somebody of whom more is known than a history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tests.cli.test_recommend import veilrec
from veilrec.api import Run
from veilrec.client.rankers import ModelParts, PopularityModel, sent_first
from veilrec.core.arrays import Floats, Indices, Offsets
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.core.features import Feature, Side, without_rows
from veilrec.data.population import Strings
from veilrec.models.scores import KnowsPeople, Scorer
from veilrec.privacy.guarantee import Guarantee
from veilrec.runs.saved import SavedModel, about_people, read_about

PEOPLE = without_rows((Feature("gender", "category", ("F", "M")), Feature("age", "number", low=0, high=100)))


class PeopleModel:
    """Item c scores highest for those whose first code is c; the rest follow by age."""

    n_items = 6

    def __init__(self, people: Side = PEOPLE) -> None:
        self.people = people

    def score_all(self, users: Offsets) -> Floats:
        """[users, items]."""
        rows = self.people.take(users)
        scores: Floats = rows.numbers * np.arange(6, dtype=np.float32)
        scores[np.arange(len(users)), rows.codes[:, 0]] += 100
        return scores

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """[users, candidates]."""
        return np.take_along_axis(self.score_all(users), items.astype(np.int64), axis=1)

    def fold_in(self, histories: Csr) -> Scorer:
        """Strangers."""
        return self.fold_in_people(histories, self.people.strangers(len(histories)))

    def fold_in_people(self, histories: Csr, people: Side) -> PeopleModel:
        """By their features alone."""
        assert len(histories) == len(people)
        return PeopleModel(people)


class _Parts:
    def __init__(self, model: Any) -> None:
        self._model = model

    def model(self, histories: Csr) -> Any:
        """The same for all."""
        return self._model


def saved(model: Any) -> SavedModel:
    parts, guarantee = cast(ModelParts, _Parts(model)), cast(Guarantee, None)
    return SavedModel(Path("run"), "trial", parts, Strings.of("abcdef"), None, guarantee)


def names(model: SavedModel, *history: str, about: dict[str, str | float] | None = None) -> str:
    return "".join(best.item for best in model.recommend(history, 3, about))


def test_what_is_known_of_somebody_changes_the_list():
    model = saved(PeopleModel())
    assert names(model) == names(model, about={}) == "afe"
    assert names(model, about={"gender": "F", "age": 100}) == "bfe"
    assert names(model, "f", about={"gender": "M"}) == "ced"
    assert names(model, about={"gender": "other"}) == "afe"


def test_a_name_that_the_model_does_not_know_is_refused():
    with pytest.raises(BadInput, match="unknown feature 'sex'.*known are age, gender"):
        saved(PeopleModel()).recommend([], 3, {"sex": "F"})
    with pytest.raises(BadInput, match="trial reads nothing of people but their items: leave out"):
        saved(PopularityModel(np.arange(6, dtype=np.float32))).recommend([], 3, {"gender": "F"})


def test_items_that_no_device_saw_stay_behind_for_people_too():
    sent = np.array([True, True, True, False, False, False])
    model = sent_first(PeopleModel(), sent)
    assert isinstance(model, KnowsPeople)
    assert names(saved(model), about={"gender": "M"}) == "cba"
    assert not isinstance(sent_first(PopularityModel(np.zeros(6, np.float32)), sent), KnowsPeople)


def test_what_is_given_by_hand_is_read():
    assert read_about(["age= 25 ", "likes=a=b"]) == {"age": "25", "likes": "a=b"}
    for wrong in (["age"], ["=3"], ["age="], ["age=1", "age=2"]):
        with pytest.raises(BadInput, match="--about"):
            read_about(wrong)


def test_values_that_say_nothing_are_told():
    assert list(about_people(PEOPLE, {"gender": "F", "age": "25"})) == []
    assert list(about_people(PEOPLE, {"gender": "f", "age": "old"})) == [
        "gender 'f' is not among what the model knows (F, M): taken as unknown",
        "age 'old' is no finite number: taken as unknown",
    ]


def test_the_command_takes_what_is_known(monkeypatch, tmp_path):
    monkeypatch.setattr("veilrec.runs.saved.open_model", lambda run, method: saved(PeopleModel()))
    (tmp_path / "run").mkdir()
    run = str(tmp_path / "run")
    code, out, words = veilrec("recommend", run, "--history", "f", "--about", "gender=M", "--about", "age=x", "--json")
    assert code == 0, words
    told = json.loads(out)
    assert told["about"] == {"gender": "M", "age": "x"}
    assert told["recommendations"][0]["item"] == "c"
    assert "age 'x' is no finite number" in words
    assert "about" not in json.loads(veilrec("recommend", run, "--history", "f", "--json")[1])
    for wrong in (("--about", "age=3"), ("--user", "u", "--about", "age=3"), ("--history", "", "--about", "sex=F")):
        code, _, words = veilrec("recommend", run, *wrong)
        assert (code, words.count("\n")) == (2, 1), words


def test_python_takes_what_is_known(monkeypatch, tmp_path):
    monkeypatch.setattr("veilrec.runs.saved.open_model", lambda folder, method: saved(PeopleModel()))
    run = Run(tmp_path)
    assert run.recommend([], about={"gender": "M"}, k=1)[0].item == "c"
    with pytest.raises(BadInput, match="about is for somebody new"):
        run.recommend(user="u1", about={"gender": "M"})
