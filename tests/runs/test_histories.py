"""What is given by hand of somebody: a history, whatever an id holds, and features."""

import csv
import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from veilrec.api import Run
from veilrec.client.rankers import PopularityModel, sent_first
from veilrec.core.errors import BadInput
from veilrec.core.features import Feature, without_rows
from veilrec.data.population import Strings
from veilrec.models.scores import KnowsPeople
from veilrec.runs.saved import SavedModel, about_people, read_about, read_history, read_history_file

ID = st.text(st.sampled_from("ab,\"';| é"), max_size=6).map(lambda text: f"x{text}x")


@given(ids=st.lists(ID, max_size=5))
def test_what_a_csv_writer_writes_is_read(ids):
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(ids)
    assert read_history([line.getvalue()]) == ids
    assert read_history([f'"{text.replace(chr(34), 2 * chr(34))}"' for text in ids]) == ids


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=st.lists(ID, max_size=5), end=st.sampled_from(["\n", "\r\n", "\n\n"]))
def test_a_line_of_a_file_is_an_id_as_it_is(tmp_path, ids, end):
    path = tmp_path / "ids.txt"
    path.write_bytes(("\ufeff" + end.join(ids)).encode())
    assert read_history_file(path) == ids


def test_blanks_quotes_and_commas():
    for texts, ids in (
        ([""], []),
        ([" , "], []),
        ([], []),
        ([" a , b", "c"], ["a", "b", "c"]),
        (['"Bügel;Eisen 8" ,Straße Nr 10'], ["Bügel;Eisen 8", "Straße Nr 10"]),
        (['a, "b,""c"" ,d" , e'], ["a", 'b,"c" ,d', "e"]),
    ):
        assert read_history(texts) == ids
    known = {"Tee, Milch", "a", "b", "a,b", '8" a,b'}
    for text, ids in (("Tee, Milch", ["Tee, Milch"]), ("a,b", ["a", "b"]), ("Tee, Milch,a", ["Tee", "Milch", "a"])):
        assert read_history([text], known.__contains__) == ids


def test_what_cannot_be_split_or_read_is_said(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff")
    for read, given_text, words in (
        (read_history, ['"a'], "cannot be split .* give --history-file"),
        (read_history_file, tmp_path / "nothing", "cannot be read"),
        (read_history_file, tmp_path / "binary", "is not UTF-8"),
    ):
        with pytest.raises(BadInput, match=words):
            read(given_text)


PEOPLE = without_rows((Feature("gender", "category", ("F", "M")), Feature("age", "number", low=0, high=100)))


class PeopleModel:
    """Item c scores highest for those whose first code is c; the rest follow by age."""

    n_items = 6

    def __init__(self, people=PEOPLE):
        self.people = people

    def score_all(self, users):
        rows = self.people.take(users)
        scores = rows.numbers * np.arange(6, dtype=np.float32)
        scores[np.arange(len(users)), rows.codes[:, 0]] += 100
        return scores

    def score_some(self, users, items):
        return np.take_along_axis(self.score_all(users), items.astype(np.int64), axis=1)

    def fold_in(self, histories):
        return self.fold_in_people(histories, self.people.strangers(len(histories)))

    def fold_in_people(self, histories, people):
        assert len(histories) == len(people)
        return PeopleModel(people)


def saved(model):
    parts = SimpleNamespace(model=lambda histories: model)
    return SavedModel(Path("run"), "trial", parts, Strings.of("abcdef"), None, None)


def names(model, *history, about=None):
    return "".join(best.item for best in model.recommend(history, 3, about))


def test_what_is_known_of_somebody_changes_the_list_and_unknown_names_are_refused():
    model = saved(PeopleModel())
    assert names(model) == names(model, about={}) == "afe"
    assert names(model, about={"gender": "F", "age": 100}) == "bfe"
    assert names(model, "f", about={"gender": "M"}) == "ced"
    assert names(model, about={"gender": "other"}) == "afe"
    with pytest.raises(BadInput, match="unknown feature 'sex'.*known are age, gender"):
        saved(PeopleModel()).recommend([], 3, {"sex": "F"})
    with pytest.raises(BadInput, match="trial reads nothing of people but their items: leave out"):
        saved(PopularityModel(np.arange(6, dtype=np.float32))).recommend([], 3, {"gender": "F"})


def test_items_that_no_client_saw_stay_behind_for_people_too():
    sent = np.array([True, True, True, False, False, False])
    model = sent_first(PeopleModel(), sent)
    assert isinstance(model, KnowsPeople)
    assert names(saved(model), about={"gender": "M"}) == "cba"
    assert not isinstance(sent_first(PopularityModel(np.zeros(6, np.float32)), sent), KnowsPeople)


def test_what_is_given_by_hand_is_read_and_values_that_say_nothing_are_told():
    assert read_about(["age= 25 ", "likes=a=b"]) == {"age": "25", "likes": "a=b"}
    for wrong in (["age"], ["=3"], ["age="], ["age=1", "age=2"]):
        with pytest.raises(BadInput, match="--about"):
            read_about(wrong)
    assert list(about_people(PEOPLE, {"gender": "F", "age": "25"})) == []
    assert list(about_people(PEOPLE, {"gender": "f", "age": "old"})) == [
        "gender 'f' is not among what the model knows (F, M): taken as unknown",
        "age 'old' is no finite number: taken as unknown",
    ]


def test_python_takes_what_is_known(monkeypatch, tmp_path):
    monkeypatch.setattr("veilrec.runs.saved.open_model", lambda folder, method: saved(PeopleModel()))
    run = Run(tmp_path)
    assert run.recommend([], about={"gender": "M"}, k=1)[0].item == "c"
    with pytest.raises(BadInput, match="about is for somebody new"):
        run.recommend(user="u1", about={"gender": "M"})
