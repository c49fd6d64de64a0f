"""`veilrec evaluate` as a user runs it: metrics, groups of users, a file with every case, serving modes."""

import itertools

import polars as pl
import pytest

import veilrec as product
from tests.cli.running import SMALL, says, shown, told, typed, veilrec
from veilrec.client.queries import Serving
from veilrec.privacy.guarantee import Guarantee

RATINGS = "synthetic-ratings:users=80,items=150,mean_history=8,seed=3"
NEWS = "synthetic-news:users=60,news=240,days=3,seed=1"
served, _, refused = typed("evaluate")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    place = tmp_path_factory.mktemp("served")
    private = [*SMALL, "--set", "calibration=none", "--set", "cohort.size=10"]
    for method, options in {"nrms": SMALL, "npa": SMALL, "privaterec": private, "popularity": []}.items():
        shown("train", method, "--data", NEWS, "--rounds", "1", "--out", place / method, *options)
    padded = [*SMALL, "--set", "cohort.size=10", "--set", "privacy.pad_probability=0.2"]
    published = [*padded, "--set", "calibration=as-published"]
    shown("train", "privaterec", "--data", NEWS, "--rounds", "1", "--out", place / "padded", *published)
    return place


@pytest.fixture(scope="module")
def idle(tmp_path_factory):
    """A run that learns nothing, and what its training says."""
    out = tmp_path_factory.mktemp("runs") / "idle"
    options = ("--rounds", "1", "--set", "cohort.size=20", "--set", "local.item_rate=0.0000001", "--out", out)
    return out, shown("train", "fedmf", "--data", RATINGS, *options)


@pytest.fixture(scope="module")
def newcomers(tmp_path_factory):
    """A run that meets new people."""
    out = tmp_path_factory.mktemp("runs") / "newcomers"
    data = RATINGS.replace("=8,", "=20,")
    shown("train", "ease", "--data", data, "--protocol", "holdout-users-liked", "--out", out)
    return out


def test_the_usual_table_is_short_and_a_run_that_loses_to_popularity_says_so(idle):
    out, trained = idle
    said = shown("evaluate", out)
    for words in (said, trained):
        assert "This run ranks no better than popularity (ndcg@10" in words
        assert "recall@10" not in words
    says(said, "ndcg@10", "fedmf by how much is known of a user", "│ 1-5 ")


def test_all_metrics_and_every_case(idle, tmp_path):
    file = tmp_path / "users.parquet"
    code, said, wrong = veilrec("evaluate", idle[0], "--metrics", "all", "--per-user", file)
    assert (code, wrong) == (0, "")
    names = ("hr@5", "precision@20", "map@10", "mrr@30", "coverage@10", "gini@10", "novelty@10", "diversity@10")
    says(said, *(f"│ {name} " for name in names))
    families = [line.split()[1].partition("@")[0] for line in said.splitlines() if "@" in line and line[0] == "│"]
    assert [name for name, _ in itertools.groupby(families)] == list(dict.fromkeys(families))  # every k together
    frame = pl.read_parquet(file)
    assert f"{len(frame)} cases in" in " ".join(said.split())
    assert {"user", "known_items", "ndcg@10", "novelty@10"} <= set(frame.columns)


def test_impressions_in_json_and_in_groups(runs, tmp_path):
    file, news = tmp_path / "cases.csv", runs / "popularity"
    result = told("evaluate", news, "--metrics", "all", "--per-user", file)
    assert result["per_user"] == str(file)
    assert {"auc", "mrr", "ndcg@5", "recall@5", "mrr@5", "coverage@5", "diversity@10"} <= set(result["metrics"])
    assert "recall@20" not in result["metrics"]
    assert sum(group["cases"] for group in result["groups"]) == result["metrics"]["cases"]
    worse = result["metrics"]["auc"] <= result["baselines"]["random"]["auc"]
    assert bool(result["warnings"]) == worse
    assert len(file.read_text().splitlines()) == 1 + result["metrics"]["cases"]
    says(shown("evaluate", news), "popularity by how much is known of a user", "auc")


def test_personalisation_is_a_table_a_curve_and_a_list(newcomers, tmp_path):
    curve = tmp_path / "curve.svg"
    code, said, wrong = veilrec("evaluate", newcomers, "--personalisation", "--plot", curve)
    assert (code, wrong) == (0, "")
    table = said[said.index("ease by how many items of a new user it is given") :]
    rows = [line.split("│")[1:-1] for line in table.splitlines() if line.startswith("│")]
    assert [row[0].strip() for row in rows] == ["0", "1", "2", "5", "10", "20", "half"]
    assert len({tuple(row[4:]) for row in rows}) == 1  # popularity and chance, which look at nobody
    assert "…" not in table
    assert "ease" in curve.read_text()
    found = told("evaluate", newcomers, "--personalisation")
    points = found["personalisation"]
    assert [point["given"] for point in points] == ["0", "1", "2", "5", "10", "20", "half"]
    assert all(found["metrics"][name] == value for name, value in points[-1]["metrics"].items())
    for name, baseline in points[0]["baselines"].items():
        assert all(found["baselines"][name][metric] == value for metric, value in baseline.items())
    assert f"{points[2]['metrics']['hr@10']:.4f}" == rows[2][2].strip()
    assert "personalisation" not in told("evaluate", newcomers)


def test_what_cannot_be_done_is_said_and_nothing_is_written(idle, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for options, complaint in (
        ("--personalisation", "loo-99 has none: train with --protocol holdout-users"),
        ("--personalisation --protocol holdout-users", "train again with --protocol holdout-users"),
        ("--personalisation --plot curve.pdf", "cannot draw to curve.pdf: give a name that ends in .svg or .png"),
        ("--plot curve.svg", "--plot belongs to --personalisation or to --serving: give it as well"),
        ("--personalisation --serving plain", "--personalisation is not for --serving"),
        ("--per-user users.xlsx", "give a name with .csv, .parquet"),
        ("--per-user .", "give a name with .csv, .parquet"),
        ("--per-user /proc/nowhere/users.csv", "there is no folder /proc/nowhere"),
        ("--metrics every", "'every' is not one of"),
    ):
        code, said, wrong = veilrec("evaluate", idle[0], *options.split())
        assert (code, said) == (2, ""), options
        assert complaint in " ".join(wrong.split())
        assert "Traceback" not in wrong and list(tmp_path.iterdir()) == [], options


def test_nothing_sent_is_the_model_to_the_last_digit(runs):
    usual = served(runs / "nrms")
    plain = served(runs / "nrms", "--serving", "plain")
    nothing = served(runs / "nrms", "--serving", "none-sent")
    assert usual["metrics"] == plain["metrics"] == nothing["metrics"] == nothing["plain"]
    assert nothing["guarantee"]["epsilon"] == 0.0
    assert (nothing["bytes_up"], nothing["recall@100"], nothing["skew"]) == (0, 1.0, 0.0)
    assert plain["guarantee"]["basis"] == "none"
    assert set(usual) - {"guarantee"} < set(nothing)


def test_every_mode_states_everything(runs):
    for line in (
        "nrms pooled --epsilon 5 --delta 1e-6",
        "nrms interest --epsilon 2 --pool 50",
        "nrms vector --epsilon 5 --calibration as-published",
        "privaterec attention --epsilon 5 --delta 1e-6",
        "padded attention --epsilon 5 --calibration as-published --padding 0.2",
        "privaterec interest --epsilon 2",
    ):
        run, *options = line.split()
        result = served(runs / run, "--serving", *options, "--queries", "30")
        one, together = (Guarantee.from_json(result[name]) for name in ("guarantee", "composed"))
        basis = "as published" if "as-published" in options else "proven"
        assert (one.epsilon, one.basis) == (float(options[2]), basis), line
        assert (one.honest_epsilon is not None) == ("as-published" in options), line
        assert (together.scope, together.basis) == ("lifetime", "proven"), line
        assert together.epsilon > (one.honest_epsilon or one.epsilon), line
        assert 0.0 <= result["skew"] <= 1.0 >= result["recall@100"] >= 0.0, line
        assert result["bytes_up"] < 100 < result["bytes_down"], line
        assert result["metrics"]["cases"] == result["plain"]["cases"], line


def test_the_table_names_mode_model_promise_and_bytes(runs):
    options = ("--serving", "pooled", "--epsilon", "5", "--delta", "1e-6", "--queries", "4")
    said = shown("evaluate", runs / "nrms", *options)
    says(said, "served by pooled", "the model itself", "popularity", "(5, 1e-06)-DP per click (replace-one), per")
    says(said, "4 queries, each with noise of its own", "The model: no privacy guarantee", "protects nobody")


def test_seeds_decide_the_noise_and_python_serves_alike(runs):
    options = ("--serving", "vector", "--epsilon", "5")
    first = served(runs / "nrms", *options)
    assert served(runs / "nrms", *options) == first
    assert served(runs / "nrms", *options, "--seed", "1")["metrics"] != first["metrics"]
    assert product.open(runs / "nrms").serve(Serving(mode="vector", epsilon=5.0)) == first


def test_a_mode_that_is_worth_nothing_says_so(runs):
    result = served(runs / "nrms", "--serving", "vector", "--epsilon", "0.001")
    worse = result["metrics"]["auc"] <= max(row["auc"] for row in result["baselines"].values())
    assert worse == bool(result["warnings"])
    assert not worse or "Served by vector, this run ranks no better than" in result["warnings"][0]
    everything = served(runs / "nrms", "--serving", "interest", "--epsilon", "1")
    assert everything["metrics"] == everything["plain"]
    assert "told for nothing" in everything["warnings"][0]
    some = served(runs / "nrms", "--serving", "interest", "--epsilon", "1", "--pool", "50")
    assert not any("told for nothing" in warning for warning in some["warnings"])


def test_a_model_without_user_vectors_can_only_rank_on_the_client(runs):
    nothing = served(runs / "npa", "--serving", "none-sent")
    assert nothing["metrics"] == served(runs / "npa")["metrics"]
    assert "none-sent" in refused(runs / "npa", "--serving", "pooled", "--epsilon", "1", "--delta", "1e-6")
    assert "none-sent" in refused(runs / "npa", "--serving", "plain")


def test_bad_input_gets_one_clear_line(runs):
    for line, words in (
        ("popularity --serving none-sent", "news models"),
        ("nrms --serving attention --epsilon 1", "no basis vectors"),
        ("nrms --serving pooled", "needs an epsilon"),
        ("nrms --serving pooled --epsilon 1", "needs a delta"),
        ("nrms --serving pooled --epsilon nan --delta 1e-6", "epsilon is nan"),
        ("nrms --serving interest --epsilon 1 --pool 100000", "there are 240 news"),
        ("nrms --serving none-sent --epsilon 1", "means nothing"),
        ("nrms --epsilon 1", "belongs to --serving"),
        ("nrms --serving pooled --epsilon 1 --delta 1e-6 --sensitive nonsense", "known are "),
        ("nrms --serving none-sent --metrics all", "not for --serving"),
        ("privaterec --serving attention --epsilon 1 --padding 1", "padding is 1"),
        ("privaterec --serving attention --epsilon 1 --padding 0.5", "trained with padding of 0"),
        ("nrms --serving all", "needs an epsilon"),
        ("nrms --serving all --epsilon 1,two", "'1,two'"),
        ("nrms --serving all --epsilon 1,,5", "'1,,5'"),
        ("nrms --serving all --epsilon 1,-5", "epsilon"),
        ("nrms --serving all --epsilon 1 --plot ways.gif", ".svg or .png"),
        ("nrms --serving pooled --epsilon 1,5", "delta"),
        ("nrms --serving plain --epsilon 1,5", "means nothing for plain"),
        ("nrms --serving attention --epsilon nan", "epsilon"),
    ):
        run, *options = line.split()
        assert words in refused(runs / run, *options), line


def test_all_ways_at_several_epsilons_are_what_each_is_alone(runs, tmp_path):
    picture = tmp_path / "ways.svg"
    options = ("--serving", "all", "--epsilon", "2,8", "--delta", "1e-6", "--plot", str(picture))
    table = served(runs / "privaterec", *options)
    ways = {(way["serving"], way["epsilon"]): way for way in table["ways"]}
    private = [(mode, epsilon) for mode in ("attention", "pooled", "interest", "vector") for epsilon in (2.0, 8.0)]
    assert list(ways) == [("plain", None), ("none-sent", None), *private]
    assert table["left_out"] == []
    assert ways["none-sent", None]["metrics"] == ways["plain", None]["metrics"] == table["plain"]
    alone = served(runs / "privaterec", "--serving", "pooled", "--epsilon", "8", "--delta", "1e-6")
    assert ways["pooled", 8.0].items() <= (alone | {"epsilon": 8.0}).items()
    assert table["baselines"] == alone["baselines"]
    assert "per click" in picture.read_text()


def test_a_table_says_which_ways_a_model_cannot_be_served_by(runs):
    table = served(runs / "nrms", "--serving", "all", "--epsilon", "2")
    assert [left["serving"] for left in table["left_out"]] == ["pooled", "attention"]
    assert "--delta" in table["left_out"][0]["why"]
    assert "no basis vectors" in table["left_out"][1]["why"]
    said = shown("evaluate", runs / "npa", "--serving", "all", "--epsilon", "2,3")
    says(said, "Left out: vector", "(0, 0)-DP per history")
