"""`veilrec evaluate --serving` as a user runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import veilrec as product
from tests.cli import running
from tests.cli.running import shown, told
from veilrec.client.queries import Serving
from veilrec.privacy.guarantee import Guarantee

NEWS = "synthetic-news:users=60,news=240,days=3,seed=1"
SMALL = [part for size in ("word_dim=8", "heads=2", "head_dim=4", "attention=4") for part in ("--set", f"size.{size}")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("served")
    for method, data, options in (
        ("nrms", NEWS, SMALL),
        ("npa", NEWS, SMALL),
        ("privaterec", NEWS, [*SMALL, "--set", "calibration=none", "--set", "cohort.size=10"]),
        ("popularity", NEWS, []),
    ):
        shown("train", method, "--data", data, "--rounds", "1", "--out", place / method, *options)
    return place


def served(run: Path, *options: str) -> dict[str, Any]:
    result: dict[str, Any] = told("evaluate", run, *options)
    return result


def refused(run: Path, *options: str) -> str:
    return running.refused("evaluate", run, *options)


def test_nothing_sent_is_the_model_to_the_last_digit(runs: Path) -> None:
    usual = served(runs / "nrms")
    plain = served(runs / "nrms", "--serving", "plain")
    nothing = served(runs / "nrms", "--serving", "none-sent")
    assert usual["metrics"] == plain["metrics"] == nothing["metrics"] == nothing["plain"]
    assert nothing["guarantee"]["epsilon"] == 0.0
    assert (nothing["bytes_up"], nothing["recall@100"], nothing["skew"]) == (0, 1.0, 0.0)
    assert plain["guarantee"]["basis"] == "none"
    assert set(usual) - {"guarantee"} < set(nothing)


@pytest.mark.parametrize(
    "line",
    [
        "nrms pooled --epsilon 5 --delta 1e-6",
        "nrms interest --epsilon 2 --pool 50",
        "nrms vector --epsilon 5 --calibration as-published",
        "privaterec attention --epsilon 5 --delta 1e-6",
        "privaterec attention --epsilon 5 --calibration as-published --padding 0.2",
        "privaterec interest --epsilon 2",
    ],
)
def test_every_mode_states_everything(runs: Path, line: str) -> None:
    run, *options = line.split()
    result = served(runs / run, "--serving", *options, "--queries", "30")
    one, together = (Guarantee.from_json(result[name]) for name in ("guarantee", "composed"))
    assert one.epsilon == float(options[2])
    assert one.basis == ("as published" if "as-published" in options else "proven")
    assert (one.honest_epsilon is not None) == ("as-published" in options)
    assert (together.scope, together.basis) == ("lifetime", "proven")
    assert together.epsilon is not None
    assert together.epsilon > (one.honest_epsilon or one.epsilon)
    assert 0.0 <= result["skew"] <= 1.0
    assert 0.0 <= result["recall@100"] <= 1.0
    assert result["bytes_up"] < 100 < result["bytes_down"]
    assert result["metrics"]["cases"] == result["plain"]["cases"]


def test_the_table_names_mode_model_promise_and_bytes(runs: Path) -> None:
    options = ("--serving", "pooled", "--epsilon", "5", "--delta", "1e-6", "--queries", "4")
    said = shown("evaluate", runs / "nrms", *options)
    for words in ("served by pooled", "the model itself", "popularity", "(5, 1e-06)-DP per click (replace-one), per"):
        assert words in said
    assert "4 queries, each with noise of its own" in said
    assert "The model: no privacy guarantee" in said
    assert "protects nobody" in said


def test_seeds_decide_the_noise_and_python_serves_alike(runs: Path) -> None:
    options = ("--serving", "vector", "--epsilon", "5")
    first = served(runs / "nrms", *options)
    assert served(runs / "nrms", *options) == first
    assert served(runs / "nrms", *options, "--seed", "1")["metrics"] != first["metrics"]
    assert product.open(runs / "nrms").serve(Serving(mode="vector", epsilon=5.0)) == first


def test_a_mode_that_is_worth_nothing_says_so(runs: Path) -> None:
    result = served(runs / "nrms", "--serving", "vector", "--epsilon", "0.001")
    worse = result["metrics"]["auc"] <= max(row["auc"] for row in result["baselines"].values())
    assert worse == bool(result["warnings"])
    assert not worse or "Served by vector, this run ranks no better than" in result["warnings"][0]
    everything = served(runs / "nrms", "--serving", "interest", "--epsilon", "1")
    assert everything["metrics"] == everything["plain"]
    assert "told for nothing" in everything["warnings"][0]
    some = served(runs / "nrms", "--serving", "interest", "--epsilon", "1", "--pool", "50")
    assert not any("told for nothing" in warning for warning in some["warnings"])


def test_a_model_without_user_vectors_can_only_rank_on_the_device(runs: Path) -> None:
    nothing = served(runs / "npa", "--serving", "none-sent")
    assert nothing["metrics"] == served(runs / "npa")["metrics"]
    assert "none-sent" in refused(runs / "npa", "--serving", "pooled", "--epsilon", "1", "--delta", "1e-6")
    assert "none-sent" in refused(runs / "npa", "--serving", "plain")


def test_bad_input_gets_one_clear_line(runs: Path) -> None:
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


def test_all_ways_at_several_epsilons_are_what_each_is_alone(runs: Path, tmp_path: Path) -> None:
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


def test_a_table_says_which_ways_a_model_cannot_be_served_by(runs: Path) -> None:
    table = served(runs / "nrms", "--serving", "all", "--epsilon", "2")
    assert [left["serving"] for left in table["left_out"]] == ["pooled", "attention"]
    assert "--delta" in table["left_out"][0]["why"]
    assert "no basis vectors" in table["left_out"][1]["why"]
    said = shown("evaluate", runs / "npa", "--serving", "all", "--epsilon", "2,3")
    assert "Left out: vector" in said
    assert "(0, 0)-DP per history" in said
