"""The Python API: what its page promises."""

import pytest

import veilrec
from veilrec.core.errors import BadInput

DATA = "synthetic-ratings:users=120,items=300,mean_history=10,seed=3"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("api") / "run"
    return veilrec.train("fedmf", DATA, out=out, seed=1, rounds=3, settings={"cohort.size": 20})


def test_a_run_is_trained_opened_and_used(run):
    population = veilrec.load(DATA)
    opened = veilrec.open(run.folder)
    assert opened == run
    assert (opened.metrics, opened.guarantee.basis) == (run.result["metrics"], "none")
    known = opened.recommend(user=population.users[0], k=3)
    new = opened.recommend([population.items[5], population.items[7]], k=3)
    assert len(known) == len(new) == 3
    assert all(one.item in set(population.items) for one in (*known, *new))
    assert opened.evaluate()["metrics"] == run.metrics


def test_settings_may_be_given_either_way(tmp_path):
    run = veilrec.train("popularity", DATA, out=tmp_path / "a", settings=())
    assert run.result["method"] == "popularity"
    with pytest.raises(BadInput, match="unknown setting"):
        veilrec.train("fedmf", DATA, out=tmp_path / "b", settings=["no_such=1"])
    with pytest.raises(BadInput, match="not empty"):
        veilrec.train("popularity", DATA, out=tmp_path / "a")


def test_what_cannot_be_meant_is_refused_in_one_line(run, tmp_path):
    for call, fault in (
        (run.recommend, "either a history of item ids or a user"),
        (lambda: run.recommend(user="u", k=0), "at least 1 item"),
        (lambda: run.recommend("i001"), r"the history is the text 'i001': give a list of item ids, \['i001'\]"),
        (lambda: veilrec.compare("ease", DATA), r"methods is the text 'ease': give a list of methods, \['ease'\]"),
        (lambda: veilrec.open(tmp_path), "has no result.json"),
        (lambda: veilrec.open(tmp_path / "nowhere"), "there is no run .*nowhere"),
    ):
        with pytest.raises(BadInput, match=fault):
            call()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        veilrec.nothing  # noqa: B018


def test_an_audit_is_of_a_mechanism_or_of_a_method():
    assert veilrec.run_audit("k-ary-response")["passed"]
    with pytest.raises(BadInput, match="unknown"):
        veilrec.run_audit("no-such-thing")


def test_a_run_by_a_file_and_a_comparison(run, tmp_path):
    again = veilrec.train(config=run.folder / "config.yaml", out=tmp_path / "again")
    assert again.result["weights_sha256"] == run.result["weights_sha256"]
    other = veilrec.train(config=run.folder, seed=2, settings={"local.dim": 4}, out=tmp_path / "other")
    assert other.result["seed"] == 2
    compared = veilrec.compare(["ease"], DATA, seeds=2, out=tmp_path / "compared")
    assert [row["method"] for row in compared.table] == ["ease", "popularity", "random"]
    assert {"ndcg@10", "ndcg@10_sd", "guarantee"} <= set(compared.table[0])
    with pytest.raises(BadInput, match="names no method"):
        veilrec.train(data=DATA)
