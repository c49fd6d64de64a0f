"""What stands in the registry: the papers' numbers, and no invented ones."""

from __future__ import annotations

import pytest

from veilrec.errors import BadInput
from veilrec.methods.base import configure
from veilrec.methods.registry import METHODS, get
from veilrec.report.reproduce.experiment import Printed, percent
from veilrec.report.reproduce.registry import EXPERIMENTS, experiment

POPULAR = "private-popularity"
ROWS = {  # each once: panels of one data set may have the same rows
    f"{name}-{panel.data}-{row.label}": (panel, row)
    for name, one in EXPERIMENTS.items()
    for panel in one.panels
    for row in panel.rows
}


def test_every_experiment_stands_under_its_name():
    assert all(name == one.name for name, one in EXPERIMENTS.items())
    assert len(EXPERIMENTS) == 28
    with pytest.raises(BadInput, match="did you mean fedmf-table2"):
        experiment("fedmf-table3")


def test_the_communication_papers_table_2():
    rows = {row.label: row.printed for row in experiment("fedmf-table2").panels[0].rows}
    printed = {
        label: tuple(numbers[m].text for m in ("hr@10", "ndcg@10", "paper_params")) for label, numbers in rows.items()
    }
    assert printed == {
        "FedMF": ("0.650", "0.367", "9487.36"),
        "DP-FedMF": ("0.515", "0.293", "9487.36"),
        "DP-FedMF-SVD": ("0.452", "0.248", "4785.93"),
        "DP-FedMF-TopK": ("0.453", "0.250", "4943.68"),
        "Priv-FedMF-Sub": ("0.435", "0.274", "2907.85"),
    }


def test_fednewsrecs_table_2():
    left, right = experiment("fednewsrec-table2").panels
    assert [row.label for row in left.rows] == [
        "FM",
        "DFM",
        "EBNR",
        "DKN",
        "DAN",
        "NAML",
        "NPA",
        "NRMS",
        "FCF",
        "FedNewsRec",
        "CenNewsRec",
        "on frozen sentence vectors (ours)",
    ]
    ours = {row.label: row.printed for row in left.rows}["FedNewsRec"]
    assert {m: str(p) for m, p in ours.items()} == {
        "auc": "0.6465 ± 0.0015",
        "mrr": "0.3060 ± 0.0009",
        "ndcg@5": "0.3303 ± 0.0011",
        "ndcg@10": "0.3877 ± 0.0010",
    }
    assert {row.label: row.printed for row in right.rows}["CenNewsRec"]["auc"].value == 0.7102


def test_curves_without_printed_numbers_have_none():
    for name in (
        "fedncf-accuracy",
        "fedncf-ablation",
        "fednewsrec-fig4",
        "fednewsrec-fig5",
        "fednewsrec-fig6",
        "fednewsrec-fig7",
    ):
        assert all(not row.printed for panel in experiment(name).panels for row in panel.rows), name


@pytest.mark.parametrize(("panel", "row"), ROWS.values(), ids=ROWS)
def test_rows_fit_their_methods(panel, row):
    if row.method not in METHODS:
        pytest.skip(f"no method {row.method} yet")
    configure(get(row.method), preset="tuned", dataset=panel.dataset, settings=row.settings)


@pytest.mark.parametrize(("panel", "row"), ROWS.values(), ids=ROWS)
def test_the_methods_own_copy_of_the_numbers_agrees(panel, row):
    numbers = get(row.method).published.get(
        {"MSN-News": "msn-news", "Adressa": "adressa"}.get(panel.published_on, panel.data), {}
    )
    if not isinstance(numbers, dict):  # AUC, MRR, nDCG@5, nDCG@10 in per cent
        numbers = dict(zip(("auc", "mrr", "ndcg@5", "ndcg@10"), (n / 100 for n in numbers), strict=True))
    for metric in numbers.keys() & row.printed.keys():
        scale = 1e6 if metric == "paper_params" else 1.0
        assert numbers[metric] == pytest.approx(row.printed[metric].value * scale, rel=1e-5)


def test_per_cent_keeps_every_digit():
    assert percent("64.50", "0.10") == Printed("0.6450", "0.0010")
    assert str(Printed("0.650")) == "0.650"


def test_private_popularity_stands_beside_every_curve_over_epsilon() -> None:
    """What a private method has to beat at the same price, in the same terms, is drawn in the same picture."""
    over_epsilon = [found for found in EXPERIMENTS.values() if found.x_label.startswith("epsilon")]
    assert {found.name for found in over_epsilon} == {"dp-fedmf-curve", "frontier", "news-frontier"}
    for found in over_epsilon:
        for panel in found.panels:
            popular = {row.at for row in panel.rows if row.method == POPULAR}
            assert len(popular) >= 5
            assert {row.at for row in panel.rows if row.at is not None} <= popular
            for row in panel.rows:
                if row.method == POPULAR:
                    assert row.settings == (f"privacy.epsilon={row.at:g}",)


def test_notes_are_of_the_presets_and_columns_that_are_shown():
    table, sent = EXPERIMENTS["fedmf-table2"], EXPERIMENTS["fedmf-communication"]
    assert any(note.startswith("Preset paper") for note in table.notes_on(["paper", "tuned"]))
    assert not any("Preset paper" in note or "Bytes" in note for note in table.notes_on(["tuned"]))
    assert any(note.startswith("Millions of parameters") for note in table.notes_on(["tuned"]))
    assert any(note.startswith("Bytes") for note in sent.notes_on(["paper"]))
