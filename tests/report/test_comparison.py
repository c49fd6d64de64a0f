"""A comparison in every form: the same numbers, no epsilon alone, nothing that breaks a file."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.running import says
from veilrec.privacy.guarantee import Guarantee
from veilrec.report import comparison as report
from veilrec.report.plots import draw_comparison
from veilrec.runs.comparison import ComparisonEntry, MethodComparison, PairedDifference, Spread

PRIVATE = Guarantee("proven", "user", "add-remove", 4.0, 1e-6, "whole run", "server", ("A caveat.",))
BEST, SECOND = "mf:dim=8,start=0.1", "dp-fedmf:privacy.epsilon=4"
LINE = "(4, 1e-06)-DP per user (add-remove), whole run, trusting: server, proven"


def spreads(value):
    return {"hr@10": Spread((value, value + 0.2)), "ndcg@10": Spread((value / 2, value / 2 + 0.1))}


@pytest.fixture
def compared(tmp_path):
    best = ComparisonEntry(BEST, "mf", "centralised", spreads(0.5), settings=("dim=8",), preset="tuned", rounds=7)
    entries = (
        replace(best, runs=(Path("a"),)),
        ComparisonEntry(SECOND, "dp-fedmf", "federated", spreads(0.4), PRIVATE, seconds=3.0, up_bytes=2e6),
        ComparisonEntry("slow_mf", "mf", "centralised", spreads(0.1), preset="paper", rounds=9),
        ComparisonEntry("nr_ms", "nrms", "centralised", problem="needs 100% <news> & titles"),
        ComparisonEntry("popularity", "popularity", "baseline", spreads(0.2)),
    )
    pairs = (
        PairedDifference(BEST, SECOND, 0.05, 0.03, 0.06),
        PairedDifference(BEST, "popularity", 0.15, 0.0001, 0.0003),
        PairedDifference(SECOND, "popularity", 0.1, 0.0002, 0.0004),
    )
    return MethodComparison("ml-100k", "ml-100k", "loo-99", (0, 1), "ndcg@10", entries, pairs, 943, 943, tmp_path)


def test_the_table_marks_the_best_and_what_is_not_told_apart_from_it(compared):
    scores, pairs = report.grids(compared)
    assert [row[0] for row in scores.rows] == [f"{BEST} *", f"{SECOND} =", "slow_mf", "nr_ms", "popularity"]
    assert scores.rows[0][1] == "0.3000 ± 0.0707"  # mean of 0.25 and 0.35, standard deviation of a sample
    assert scores.rows[1][-1] == LINE
    assert [row[-1] for row in pairs.rows] == ["neither", BEST, SECOND]
    words = " ".join(report.notes(compared))
    says(words, "Paired sign-flip permutation test of ndcg@10 over 943 users", "Holm for 3 pairs")
    assert "standard deviation over n = 2 seeds" in words
    assert "there is no spread" in replace(compared, seeds=(0,)).how_spread()


def test_an_epsilon_never_stands_alone(compared):
    for text in (report.to_latex(compared), " ".join(report.notes(compared))):
        assert LINE in re.sub(r"\s+", " ", text)
    row = list(csv.DictReader(io.StringIO(report.to_csv(compared))))[1]
    terms = ("basis", "unit", "adjacency", "epsilon", "delta", "scope", "trust")
    promised = [row[f"guarantee_{key}"] for key in terms]
    assert promised == ["proven", "user", "add-remove", "4.0", "1e-06", "whole run", "server"]
    labels = [text.get_text().replace("\n", " ") for text in draw_comparison(compared).axes[0].get_yticklabels()]
    assert f"{SECOND} {LINE}" in labels
    assert "A caveat." in " ".join(report.notes(compared))


def test_rounds_and_presets_stand_in_every_form(compared):
    told = "rounds (epochs): mf:dim=8,start=0.1 7, slow_mf 9; preset: mf:dim=8,start=0.1 tuned, slow_mf paper"
    assert report.grids(compared)[0].title.endswith(told)
    assert told.replace("_", r"\_") in report.to_latex(compared)
    assert told in draw_comparison(compared).axes[0].get_title(loc="left").replace("\n", " ")
    alike = replace(compared, entries=tuple(replace(e, rounds=2, preset="small") for e in compared.entries))
    assert alike.how_long() == "rounds (epochs): 2; preset: small"


def test_what_failed_and_what_is_no_better_than_popularity_is_said_below(compared):
    told = [
        "nr_ms failed: needs 100% <news> & titles.",
        "slow_mf ranks no better than popularity (nDCG@10 0.1000, popularity 0.1500).",
    ]
    assert report.notes(compared)[:2] == told
    assert report.to_json(compared, "")["warnings"] == told
    assert report.grids(compared)[0].rows[3] == ["nr_ms", "failed", "failed", "", ""]
    assert "ranks no better than popularity" in report.to_latex(compared)


def test_csv_and_json_have_every_metric_and_read_back(compared):
    rows = list(csv.DictReader(io.StringIO(report.to_csv(compared))))
    assert [row["method"] for row in rows] == [entry.label for entry in compared.entries]
    assert float(rows[0]["ndcg@10"]) == pytest.approx(0.3)
    assert float(rows[0]["ndcg@10_sd"]) == pytest.approx(0.1 / 2**0.5)
    assert (rows[3]["ndcg@10"], rows[3]["problem"]) == ("", "needs 100% <news> & titles")
    pairs = list(csv.DictReader(io.StringIO(report.pairs_to_csv(compared))))
    assert [float(row["p_holm"]) for row in pairs] == [0.06, 0.0003, 0.0004]
    found = json.loads(json.dumps(report.to_json(compared, "veilrec compare mf")))
    hits = found["methods"][0]["metrics"]["hr@10"]
    assert (hits["values"], hits["n"]) == ([0.5, 0.7], 2)
    assert found["methods"][1]["guarantee"]["epsilon"] == 4.0
    assert found["methods"][3]["problem"] and found["methods"][3]["metrics"] == {}
    assert found["pairs"][0]["p_holm"] == 0.06


def test_latex_is_escaped_and_in_balance(compared):
    text = report.to_latex(compared)
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert r"nr\_ms" in body and r"100\% $<$news$>$ \& titles" in body
    assert not re.search(r"(?<!\\)[_#%]", body)
    assert body.count("{") - body.count(r"\{") == body.count("}") - body.count(r"\}")
    assert body.count(r"\begin{tabular}") == body.count(r"\end{tabular}") == 2
    for line in body.splitlines():
        if line.endswith(r"\\"):
            assert len(re.findall(r"(?<!\\)&", line)) in (4, 5)  # columns of the scores, of the pairs
    assert r"\textbf{mf:dim=8,start=0.1 *} & \textbf{0.3000 $\pm$ 0.0707}" in body


def test_every_form_is_written_and_the_picture_has_a_bar_a_method_with_its_interval(compared):
    names = report.save(compared, "veilrec compare mf")
    assert sorted(names) == sorted(path.name for path in compared.folder.iterdir())
    assert (compared.folder / "comparison.png").read_bytes().startswith(b"\x89PNG")
    axes = draw_comparison(compared).axes[0]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([0.3, 0.25, 0.15, 0.1])  # best first
    assert len(axes.collections) == 4  # an interval each
    low, high = axes.collections[0].get_segments()[0][:, 0]
    assert (low, high) == pytest.approx((0.3 - 0.0707107, 0.3 + 0.0707107), abs=1e-6)
    one = [replace(e, metrics={k: Spread(s.values[:1]) for k, s in e.metrics.items()}) for e in compared.entries]
    assert len(draw_comparison(replace(compared, seeds=(0,), entries=tuple(one))).axes[0].collections) == 0
