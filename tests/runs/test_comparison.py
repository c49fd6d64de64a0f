"""Methods compared on the same cases: what is trained, what is read again, and what the pairs say."""

from contextlib import nullcontext
from itertools import combinations

import numpy as np
import pytest

from veilrec.core.errors import BadInput, VeilrecError
from veilrec.runs.checkpoint import read_result
from veilrec.runs.comparison import Spread, compare, make_contenders
from veilrec.runs.loop import Interrupted
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.training import train

DATA = "synthetic-ratings:users=150,items=200,seed=3"
METHODS = ["fedmf:cohort.size=20", "dp-fedmf:privacy.epsilon=4", "ease"]


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("VEILREC_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("compare")


@pytest.fixture(scope="module")
def compared(folder):
    return compare(METHODS, DATA, seeds=2, rounds=2, out=folder)


def times(folder):
    return {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/result.json")}


def test_every_method_has_every_seed_and_the_baselines_stand_once(compared):
    assert [entry.label for entry in compared.entries] == [*METHODS, "popularity", "random"]
    for entry in compared.entries[:3]:
        results = [read_result(run) for run in entry.runs]
        assert [result["seed"] for result in results] == [0, 1]
        for name in ("hr@10", "ndcg@10"):
            assert entry.metrics[name].values == pytest.approx([result["metrics"][name] for result in results])
        popularity = [result["baselines"]["popularity"]["ndcg@10"] for result in results]
        assert compared.entries[3].metrics["ndcg@10"].values == pytest.approx(popularity)
    assert (compared.metric, compared.protocol, compared.users, compared.cases) == ("ndcg@10", "loo-99", 150, 150)
    assert compared.best.label == "ease"
    private = compared.entries[1].guarantee
    assert (private.epsilon, private.unit, private.basis) == (4.0, "user", "proven")
    assert private.caveats
    assert "(4, 1e-06)-DP per user (add-remove), whole run" in compared.table[1]["guarantee"]


def test_the_difference_of_a_pair_is_that_of_the_means(compared):
    means = {entry.label: entry.metrics["ndcg@10"].mean for entry in compared.entries}
    pairs = [*combinations(METHODS, 2), *((name, "popularity") for name in METHODS)]
    assert {frozenset((p.first, p.second)) for p in compared.pairs} == set(map(frozenset, pairs))
    for pair in compared.pairs:
        assert pair.difference == pytest.approx(means[pair.first] - means[pair.second])
        assert 0.0 < pair.p_value <= pair.corrected <= 1.0
    assert Spread((0.1, 0.2, 0.6)).sd == pytest.approx(np.std([0.1, 0.2, 0.6], ddof=1))
    assert Spread((0.1,)).sd is None


def test_finished_runs_are_read_again_and_a_new_method_alone_is_trained(compared, folder):
    before, said = times(folder), []
    again = compare([*METHODS, "mf"], DATA, seeds=2, rounds=2, out=folder, say=said.append)
    assert said == ["6 runs of 8 finished before and read again."]
    assert {path: when for path, when in times(folder).items() if path in before} == before
    assert again.entries[:3] == compared.entries[:3]
    assert [entry.label for entry in again.entries[3:]] == ["mf", "popularity", "random"]


def test_a_run_of_train_is_found_however_its_settings_were_spelt(runs, tmp_path):
    request = RunRequest("mf", DATA, rounds=2, settings=("dim=4", "rate=0.050"), evaluate_every=1)
    train(prepare(request), runs / "mine")
    said = []
    found = compare(["mf:rate=0.05,dim=4"], DATA, seeds=1, rounds=2, out=tmp_path / "out", say=said.append)
    assert found.entries[0].runs == (runs / "mine",)
    assert said == ["1 run of 1 finished before and read again."]
    assert not (tmp_path / "out" / "runs").exists()


def test_other_runs_are_not_taken_for_it(runs, tmp_path):
    usual = {"data": DATA, "rounds": 1, "settings": ("dim=4",)}
    others = ({"patience": 3}, {"rounds": 2}, {"protocol": "loo-full"}, {"seed": 1}, {"settings": ("dim=8",)})
    for number, other in enumerate(others):
        train(prepare(RunRequest("mf", **(usual | other))), runs / f"other{number}")
    found = compare(["mf:dim=4"], DATA, seeds=1, rounds=1, protocol="loo-99", out=tmp_path / "out")
    assert found.entries[0].runs[0].parent == tmp_path / "out" / "runs"
    assert len(list(runs.glob("other*/result.json"))) == len(others)  # they are left where they are


def test_a_run_that_was_stopped_goes_on_and_ends_the_same(tmp_path):
    whole = compare(["mf"], DATA, seeds=1, rounds=4, out=tmp_path / "whole")

    class Stop:
        def on_metrics(self, progress, metrics):
            pass

        def on_round(self, progress, report):
            if progress.rounds_done == 2:
                raise Interrupted("stopped")

    with pytest.raises(Interrupted, match="the same command goes on"):
        compare(["mf"], DATA, seeds=1, rounds=4, out=tmp_path / "cut", follow=lambda title, rounds: nullcontext(Stop()))
    assert compare(["mf"], DATA, seeds=1, rounds=4, out=tmp_path / "cut").entries[0].metrics == whole.entries[0].metrics


def test_a_method_that_fails_stops_no_other(tmp_path):
    found = compare(["mf:rate=1e30", "ease"], DATA, seeds=1, out=tmp_path)
    assert [entry.label for entry in found.measured] == ["ease", "popularity", "random"]
    assert found.entries[0].problem
    assert [pair.first for pair in found.pairs] == ["ease"]
    with pytest.raises(VeilrecError, match="nothing could be trained: mf:rate=1e30"):
        compare(["mf:rate=1e30"], DATA, seeds=1, out=tmp_path)


def test_users_of_several_seeds_are_one_cluster_each(tmp_path):
    found = compare(["ease"], DATA, seeds=3, protocol="holdout-users", out=tmp_path)
    assert found.cases == 33  # of 150 users, each drawn alone
    assert 30 < found.users <= 90  # other users in every seed, some of them again
    means = {entry.label: entry.metrics["ndcg@10"].mean for entry in found.entries}
    assert found.pairs[0].difference == pytest.approx(means["ease"] - means["popularity"])


def test_news_are_compared_by_impressions(tmp_path):
    data = "synthetic-news:users=60,news=200,days=3,seed=3"
    found = compare(["fm", "ease"], data, seeds=1, rounds=1, out=tmp_path)
    assert (found.protocol, found.metric) == ("mind", "auc")
    assert found.users < found.cases  # some have several impressions
    assert not any(entry.problem for entry in found.entries)
    means = {entry.label: entry.metrics["auc"].mean for entry in found.entries}
    assert found.pairs[0].difference == pytest.approx(means["fm"] - means["ease"])


def test_bad_options_are_refused_before_anything_is_trained(tmp_path):
    for options, words in (
        ({"seeds": 0}, "--seeds is 0"),
        ({"jobs": 0}, "--jobs is 0"),
        ({"metric": "auc"}, "unknown metric of loo-99 'auc'"),
        ({"protocol": "loo-98"}, "did you mean loo-99"),
        ({"data": "ml-2m"}, "unknown data set"),
        ({"methods": ["mf", "nrms"]}, "nrms does not learn from synthetic-ratings, but from mind, synthetic-news"),
        ({"methods": ["Popularity", "random"]}, "stand in every comparison"),
    ):
        with pytest.raises(BadInput, match=words):
            compare(**({"methods": ["mf"], "data": DATA, "out": tmp_path / "out"} | options))
        assert not (tmp_path / "out").exists()


GIVEN = {"data": "synthetic-ratings", "protocol": None, "preset": None, "rounds": None}


def test_settings_of_all_and_of_one():
    for specs, shared, found, notes in (
        (
            ["fedmf", "dp-fedmf:privacy.epsilon=4, local.dim=16", "fedncf:local.layers=[16, 8]"],
            [],
            [(), ("privacy.epsilon=4", "local.dim=16"), ("local.layers=[16, 8]",)],
            [],
        ),
        (  # a setting reaches all that have it
            ["fedmf", "ease", "dp-fedmf:local.dim=4"],
            ["local.dim=8"],
            [("local.dim=8",), (), ("local.dim=8", "local.dim=4")],
            ["--set local.dim=8 is for fedmf, dp-fedmf:local.dim=4; not for ease"],
        ),
        (["fedmf", "fedmf-lean"], ["fedmf.local.dim=8"], [("local.dim=8",), ()], []),
    ):
        contenders, told = make_contenders(specs, GIVEN, shared)
        assert [c.label.replace(", ", ",") for c in contenders] == [spec.replace(", ", ",") for spec in specs]
        assert ([c.request.settings for c in contenders], told) == (found, notes)
    contenders, _ = make_contenders(["fedmf:preset=paper", "fedmf:rounds=7", "ease", "mf"], GIVEN | {"rounds": 3})
    asked = [(c.request.preset, c.request.rounds, c.request.settings) for c in contenders]
    assert asked == [("paper", 3, ()), ("tuned", None, ("rounds=7",)), ("tuned", None, ()), ("tuned", 3, ())]


def test_a_file_stands_for_its_settings(tmp_path):
    best = tmp_path / "best.yaml"
    best.write_text("method: mf\ndata: ml-100k\nsettings: [dim=4]\nrounds: 6\ncaveats: [Tuned.]\n")
    (mf,), notes = make_contenders([f"mf:{best},rate=0.1"], GIVEN)
    assert (mf.request.settings, mf.request.rounds, mf.request.data) == (("dim=4", "rate=0.1"), 6, "synthetic-ratings")
    assert (mf.request.caveats, notes) == (("Tuned.",), [])
    with pytest.raises(BadInput, match="is for mf, and ease was asked for"):
        make_contenders([f"ease:{best}"], GIVEN)


def test_what_cannot_be_meant_is_refused():
    for specs, shared, words in (
        ([], (), "at least one method"),
        (["fedmv"], (), "did you mean fedmf"),
        (["mf", "mf"], (), "mf is given twice"),
        (["mf:dim=8", "mf: dim=8"], (), "mf:dim=8 is given twice"),
        (["mf:dims=8"], (), "unknown setting of mf 'dims'"),
        (["mf:dim=eight"], (), "setting dim of mf is 'eight'"),
        (["mf:dim"], (), "dim is neither name=value nor a file"),
        (["mf:preset=best"], (), "unknown preset"),
        (["mf", "ease"], ("dims=8",), "--set dims=8 fits none of mf, ease: unknown setting 'dims': did you mean dim"),
        (["mf"], ("ease.ridge=1",), "ease is not compared; compared are mf"),
        (["mf"], ("dim",), "expected name=value"),
    ):
        with pytest.raises(BadInput, match=words):
            make_contenders(specs, GIVEN, shared)
