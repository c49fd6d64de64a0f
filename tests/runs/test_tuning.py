"""A search: on validation items only, the same however often it is cut off, and what it says about privacy."""

import json
from dataclasses import replace

import numpy as np
import pytest

from veilrec.core.errors import BadInput, VeilrecError
from veilrec.data.datasets import load
from veilrec.evaluation.evaluator import evaluate
from veilrec.evaluation.protocols import make_split
from veilrec.methods.base import configure
from veilrec.methods.registry import get
from veilrec.runs import tuning
from veilrec.runs.config_file import make_request, read_config_file
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.training import train
from veilrec.runs.tuning import Choice, Range, default_space, read_space, tune

DATA = "synthetic-ratings:users=150,items=200,seed=3"
MF = RunRequest("mf", DATA, rounds=3)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    return tune(MF, trials=4, out=tmp_path_factory.mktemp("tune") / "whole")


def write_space(folder, text):
    (folder / "space.yaml").write_text(text)
    return folder / "space.yaml"


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
    class Killed(BaseException):
        """In the third trial, without a chance to put anything in order."""

    run, trained = tuning.loop.run, []

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
    assert (said[0], values(tmp_path / "cut")) == ("2 trials of 4 done before.", values(tuned.folder))
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
    space = write_space(tmp_path, "dim: [8]")  # the same settings, in two processes at once
    two = tune(replace(MF, rounds=1), trials=3, space=space, out=tmp_path / "two", jobs=2)
    one = tune(replace(MF, rounds=1), trials=1, space=space, out=tmp_path / "one")
    assert values(tmp_path / "two") == values(tmp_path / "one")
    assert (two.trials, two.failed, two.value) == (3, 0, one.value)


def test_a_private_method_says_that_the_search_is_not_covered(tmp_path):
    space = write_space(tmp_path, "rounds: [2, 3]")
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
    space = write_space(tmp_path, "cohort.size: [20, 100000]")
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


def test_what_cannot_be_meant_is_refused_and_leaves_nothing(tmp_path):
    for request, options, space, words in (
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
    ):
        path = write_space(tmp_path, space) if space else None
        with pytest.raises(BadInput, match=words):
            tune(request, space=path, out=tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()


def test_rounds_that_are_searched_for_are_said_and_a_preset_outside_is_too(tmp_path):
    space, said = write_space(tmp_path, "rounds: [1, 2]"), []
    tune(replace(MF, rounds=None), space=space, trials=2, out=tmp_path / "out", say=said.append)
    assert said[0] == "The preset tuned lies outside of the space: its own settings are not tried."
    assert all("; rounds=" in line for line in said[1:]) and len(said) == 3


def usual(name):
    method = get(name)
    config, rounds = configure(method, preset="tuned", dataset="")
    return default_space(method, config, rounds)


def read(tmp_path, text, method="fedmf"):
    return read_space(write_space(tmp_path, text), get(method), "tuned", "")


def test_the_rule_is_around_the_preset_without_promises_and_with_private_rounds(tmp_path):
    space = usual("fedmf")
    assert space["local.dim"] == Choice(("16", "32", "64"))
    assert space["local.epochs"] == Range(2, 10, log=True, whole=True)
    assert space["server.rate"] == Range(0.1, 10.0, log=True)
    assert "rounds" not in space
    assert "cohort.size" not in space
    assert usual("ease") == {"ridge": Range(50.0, 5000.0, log=True)}
    space = usual("dp-fedmf")
    assert not [name for name in space if "epsilon" in name or "delta" in name]
    assert space["privacy.clip_norm"] == Range(0.0625, 1.0, log=True)
    assert space["rounds"] == Range(5, 20, log=True, whole=True)
    with pytest.raises(BadInput, match="is a promise and not searched for"):
        read(tmp_path, "privacy.epsilon: [1, 8]", "dp-fedmf")
    with pytest.raises(BadInput, match="popularity has no settings with a usual range: give --space"):
        usual("popularity")
    with pytest.raises(BadInput, match="cannot be read"):
        read_space(tmp_path / "none.yaml", get("mf"), "tuned", "")


def test_a_file_has_ranges_and_choices(tmp_path):
    space = read(
        tmp_path,
        "local.item_rate: {low: 1e-3, high: 1, log: true}\nlocal.dim: {low: 4, high: 64}\n"
        "aggregation: [mean, sum]\nrounds: [3, 5]\n",
    )
    assert space == {
        "local.item_rate": Range(0.001, 1, log=True),
        "local.dim": Range(4, 64, whole=True),
        "aggregation": Choice(("mean", "sum")),
        "rounds": Choice(("3", "5")),
    }
    assert read(tmp_path, "local.layers: [[16, 8], [8, 4]]", "fedncf")["local.layers"].values == ("[16, 8]", "[8, 4]")


def test_a_bad_space_is_refused(tmp_path):
    for text, words in (
        ("locl.dim: [8]", "unknown setting of fedmf 'locl.dim': did you mean local.dim"),
        ("local.dim: {low: 5}", "high: Field required"),
        ("local.dim: {low: five, high: 6}", "low: .*found 'five'"),
        ("local.dim: {low: 5, high: 2}", "low has to be below high"),
        ("local.item_rate: {low: 0, high: 2, log: true}", "logarithmic"),
        ("local.item_rate: {low: 0.1, high: 2, log: maybe}", "log: .*boolean"),
        ("local.dim: 3", "give {low: L, high: H, log: true} or a list"),
        ("local.dim: []", "one or more values"),
        ("local.dim: [8, 8]", "each value once"),
        ("local.dim: {low: 1.5, high: 3}", "whole numbers"),
        ("local.dim: {low: 1, high: 3, step: 1}", "step: Unexpected"),
        ("local.item_rate: {low: -1, high: 2}", "-1 cannot be"),
        ("aggregation: [mean, median]", "median cannot be"),
        ("", "no list of names and values"),
        ("[", "is no YAML"),
    ):
        with pytest.raises(BadInput, match=words):
            read(tmp_path, text)


def test_settings_that_exact_metrics_of_people_chose_are_not_published(tmp_path):
    log = tmp_path / "synthetic-ratings.csv"  # whatever its name says
    rows = [f"u{user},i{(user * 7 + step * 3) % 30}" for user in range(40) for step in range(6)]
    log.write_text("\n".join(["user,item", *rows]))
    for data, told in ((f"csv:{log}", True), (DATA, False)):
        search = RunRequest("dp-fedmf", data, protocol="loo-full", public_catalogue=True)
        out = tmp_path / data.partition(":")[0]
        private = tune(search, trials=1, space=write_space(tmp_path, "rounds: [2]"), out=out)
        request, _ = make_request(read_config_file(out / "best.yaml"), {"noise": "secure", "public_catalogue": True})
        prepared = prepare(request)
        assert ("settings were chosen by exact metrics" in (prepared.obstacle() or "")) == told
        assert private.caveat() in prepared.guarantee().caveats
        again, _ = make_request(read_config_file(out / "best.yaml"), {"noise": "secure", "data": DATA})
        assert ("settings were chosen by exact metrics" in (prepare(again).obstacle() or "")) == told
