"""A search: on validation items only, the same however often it is cut off, and what it says about privacy."""

import json
from dataclasses import replace

import numpy as np
import pytest

from veilrec.core.errors import BadInput, VeilrecError
from veilrec.data.datasets import load
from veilrec.evaluation.evaluator import evaluate
from veilrec.evaluation.protocols import make_split
from veilrec.runs import tuning
from veilrec.runs.config_file import make_request, read_config_file
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.training import train
from veilrec.runs.tuning import tune

DATA = "synthetic-ratings:users=150,items=200,seed=3"
MF = RunRequest("mf", DATA, rounds=3)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    return tune(MF, trials=4, out=tmp_path_factory.mktemp("tune") / "whole")


def trials(folder):
    return {path.parent.name: path.read_text() for path in folder.glob("trials/*/trial.json")}


def values(folder):
    return {name: json.loads(text)["value"] for name, text in trials(folder).items()}


def test_the_best_is_no_worse_than_the_preset_and_popularity_stands_beside_it(tuned):
    found = values(tuned.folder)
    assert len(found) == tuned.trials == 4
    assert tuned.value == max(found.values()) >= tuned.at_start
    assert tuned.at_start in found.values()
    popularity = prepare(RunRequest("popularity", DATA), searching=True)
    popularity.trainer.step(0)
    split = popularity.split
    assert tuned.popularity == evaluate(split.test, split.train, popularity.trainer.model())["ndcg@10"] > 0.0
    text = (tuned.folder / "best.yaml").read_text()
    assert f"(popularity: {tuned.popularity:.4f})" in text
    assert "chosen by 4 trials" in text and "epsilon" not in text


def test_best_yaml_is_what_train_reads_and_its_value_that_of_early_stopping_on_validation_items(tuned, tmp_path):
    request, notes = make_request(read_config_file(tuned.folder / "best.yaml"), {})
    assert (request, notes) == (tuned.request, ())
    assert train(prepare(request), tmp_path / "best")["rounds"] == tuned.request.rounds <= 3
    result = train(prepare(replace(tuned.request, rounds=3, patience=tuning.PATIENCE)), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {line["split"] for line in lines} == {"valid"}
    assert max(line["metrics"]["ndcg@10"] for line in lines) == tuned.value
    assert result["best_round"] == tuned.request.rounds


def test_nobody_in_a_search_has_the_test_items():
    prepared = prepare(MF, searching=True)
    whole = make_split(load(DATA), "loo-99", seed=0)
    split = prepared.split
    assert split.valid is None
    asked, hidden = split.test.positives.items, whole.test.positives.items
    assert np.array_equal(split.test.users, whole.test.users)
    assert not np.any(asked == hidden)
    held = dict(zip(whole.test.users.tolist(), hidden.tolist(), strict=True))
    assert not any(item in prepared.problem.train.row(user) for user, item in held.items())
    # and what is asked is learnt from by the run that follows
    assert all(item in whole.train.row(user) for user, item in zip(split.test.users, asked, strict=True))


@pytest.mark.parametrize("rounds_before", [1, 2])
def test_a_search_that_was_cut_off_ends_as_if_it_had_not_been(tuned, tmp_path, monkeypatch, rounds_before):
    """In the third trial, without a chance to put anything in order."""

    class Killed(BaseException):
        pass

    trained = []
    run = tuning.loop.run

    def dying(folder, trainer, schedule, *rest, **more):
        trained.append(folder)
        if len(trained) == 3:
            short = replace(schedule, rounds=rounds_before, checkpoint_every=1)
            run(folder, trainer, short, *rest, **more)
            raise Killed
        return run(folder, trainer, schedule, *rest, **more)

    monkeypatch.setattr(tuning.loop, "run", dying)
    with pytest.raises(Killed):
        tune(MF, trials=4, out=tmp_path / "cut")
    with (tmp_path / "cut" / "optuna.journal").open("a") as journal:
        journal.write('{"op_code":')  # a line that a kill tore
    said = []
    again = tune(MF, trials=4, out=tmp_path / "cut", say=said.append)
    assert said[0] == "2 trials of 4 done before."
    assert values(tmp_path / "cut") == values(tuned.folder)
    assert (again.request, again.value) == (tuned.request, tuned.value)


def test_more_trials_go_on_and_the_same_number_is_read(tuned, tmp_path):
    first = tune(MF, trials=2, out=tmp_path / "out")
    before = trials(tmp_path / "out")
    said = []
    assert replace(tune(MF, trials=2, out=tmp_path / "out", say=said.append), folder=first.folder) == first
    assert said == ["2 trials of 2 done before."]
    tune(MF, trials=4, out=tmp_path / "out")
    assert values(tmp_path / "out") == values(tuned.folder)
    assert before.items() <= trials(tmp_path / "out").items()


def test_processes_train_what_one_would(tmp_path):
    space = tmp_path / "space.yaml"
    space.write_text("dim: [4, 8]\n")
    two = tune(replace(MF, rounds=1), trials=3, space=space, out=tmp_path / "two", jobs=2)
    one = tune(replace(MF, rounds=1), trials=3, space=space, out=tmp_path / "one")
    shared = values(tmp_path / "one").keys() & values(tmp_path / "two").keys()
    assert shared
    assert all(values(tmp_path / "one")[name] == values(tmp_path / "two")[name] for name in shared)
    assert {two.trials, one.trials} == {3}


def test_a_private_method_says_that_the_search_is_not_covered(tmp_path):
    space = tmp_path / "space.yaml"
    space.write_text("rounds: [2, 3]\n")
    said = []
    private = tune(RunRequest("dp-fedmf", DATA), trials=2, space=space, out=tmp_path / "out", say=said.append)
    assert said[0] == "dp-fedmf: a search looks at people's validation items without noise; no guarantee covers it."
    assert private.private
    assert private.request.rounds in (2, 3)
    request, _ = make_request(read_config_file(tmp_path / "out" / "best.yaml"), {"noise": "secure"})
    result = train(prepare(request), tmp_path / "run")
    assert private.caveat() in result["guarantee"]["caveats"]
    assert "2 trials on the validation items" in private.caveat()


def test_a_trial_that_fails_is_one_that_is_counted(tmp_path):
    space = tmp_path / "space.yaml"
    space.write_text("cohort.size: [20, 100000]\n")
    found = tune(RunRequest("fedmf", DATA, rounds=1), trials=4, space=space, out=tmp_path / "out")
    assert found.failed >= 1
    assert found.request.settings == ("cohort.size=20",)
    space.write_text("cohort.size: [100000, 200000]\n")
    with pytest.raises(VeilrecError, match="no trial could be trained; the first: failed: cohort.size is"):
        tune(RunRequest("fedmf", DATA, rounds=1), trials=2, space=space, out=tmp_path / "none")


def test_another_search_in_the_folder_is_refused_but_not_another_spelling(tuned, tmp_path):
    assert tune(replace(MF, method="MF"), trials=4, out=tuned.folder) == tuned
    assert "method: mf\n" in (tuned.folder / "best.yaml").read_text()
    with pytest.raises(BadInput, match="its seed is 0, now asked for 1"):
        tune(replace(MF, seed=1), trials=4, out=tuned.folder)
    (tmp_path / "thing").write_text("mine")
    with pytest.raises(BadInput, match="holds something else"):
        tune(MF, trials=1, out=tmp_path)
    with tuning._alone(tmp_path / "busy"), pytest.raises(BadInput, match="another search is at work"):
        tune(MF, trials=1, out=tmp_path / "busy")


@pytest.mark.parametrize(
    ("request_", "options", "space", "words"),
    [
        (MF, {"trials": 0}, None, "--trials is 0"),
        (MF, {"jobs": 0}, None, "--jobs is 0"),
        (replace(MF, method="mv"), {}, None, "unknown method"),
        (replace(MF, rounds=0), {}, None, "--rounds is 0"),
        (RunRequest("ease", DATA, settings=("ridge=100",)), {}, None, "every setting with a usual range is given"),
        (RunRequest("nrms", DATA), {}, None, "nrms needs news"),
        (replace(MF, rounds=None), {}, "rounds: [0, 5]", "rounds: 0 cannot be: give whole numbers of 1 or more"),
        (replace(MF, rounds=None), {}, "rounds: {low: 0, high: 5}", "rounds: 0 cannot be"),
        (MF, {}, "rounds: [2, 5]", "searches for rounds, and --rounds 3 gives it: leave one of them out"),
        (replace(MF, settings=("dim=4",)), {}, "dim: [2, 5]", "searches for dim, and --set dim=4 gives it"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_leaves_nothing(tmp_path, request_, options, space, words):
    if space is not None:
        (tmp_path / "space.yaml").write_text(space)
        options = {"space": tmp_path / "space.yaml", **options}
    with pytest.raises(BadInput, match=words):
        tune(request_, out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_rounds_that_are_searched_for_are_said_and_a_preset_outside_is_too(tmp_path):
    (tmp_path / "space.yaml").write_text("rounds: [1, 2]")
    said = []
    tune(replace(MF, rounds=None), space=tmp_path / "space.yaml", trials=2, out=tmp_path / "out", say=said.append)
    assert said[0] == "The preset tuned lies outside of the space: its own settings are not tried."
    assert all("; rounds=" in line for line in said[1:]) and len(said) == 3
