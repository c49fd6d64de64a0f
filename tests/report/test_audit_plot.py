from __future__ import annotations

from veilrec.privacy.audit.auditor import judge
from veilrec.privacy.audit.cases import select
from veilrec.report.audit_plot import draw, save


def verdicts():
    cases = (*select("k-ary-response"), *select("top-k-update"), *select("reused-noise"))
    return [judge(case, effort=1, seed=0) for case in cases]


def test_every_claim_has_a_row_with_its_unit_adjacency_and_delta():
    (axes,) = draw(verdicts()).axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == [
        "k-ary-response categories 5 (history, replace-one, 0)",
        "top-k-update dimension 8 (user, replace-one, 0)",
        "reused-noise (user, replace-one, 1e-06)",
    ]


def test_a_row_that_trusts_somebody_says_so():
    figure = draw([judge(case, effort=1, seed=0) for case in select("adaptive-sum")])
    (axes,) = figure.axes
    assert "trusting nobody unless a row says otherwise" in figure.get_suptitle()
    (label,) = axes.get_yticklabels()
    assert "(user, replace-one, per round, trusting: server, " in label.get_text()


def test_the_same_verdicts_give_the_same_file(tmp_path):
    rows = verdicts()
    for name in ("a.svg", "b.svg"):
        save(rows, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_bound_of_nothing_is_drawn_at_the_edge(tmp_path):
    (row, *_) = verdicts()
    nothing = type(row)(**{**vars(row), "lower_bound": 0.0})
    save([nothing], tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000
