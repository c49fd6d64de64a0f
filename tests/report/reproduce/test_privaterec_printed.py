"""PrivateRec's numbers: all of its two tables, none of its figures."""

from __future__ import annotations

from itertools import product

from veilrec.report.reproduce.privaterec_printed import METRICS, MODELS, SERVING, TRAINING, numbers


def test_both_tables_are_whole():
    assert set(TRAINING) == set(product(MODELS, ("Centralized", "FedRec", "DP-FedRec", "PrivateRec")))
    assert set(SERVING) == set(product(MODELS, ("FedRec", "DP-FedRec", "PrivateRec")))
    lines = [line for table in (TRAINING, SERVING) for both in table.values() for line in both]
    assert len(lines) == 42
    assert all(set(numbers(line)) == set(METRICS) for line in lines)
    assert sum(len(numbers(line)) for line in lines) == 168


def test_some_numbers_of_the_paper():
    newsfeeds, mind = (numbers(line) for line in TRAINING["NRMS", "PrivateRec"])
    assert {name: str(number) for name, number in newsfeeds.items()} == {
        "auc": "0.6169 ± 0.0016",
        "mrr": "0.2904 ± 0.0015",
        "ndcg@5": "0.3070 ± 0.0023",
        "ndcg@10": "0.3877 ± 0.0020",
    }
    assert str(mind["auc"]) == "0.5832 ± 0.0020"
    assert str(numbers(SERVING["PLM-NR", "FedRec"][1])["auc"]) == "0.5059 ± 0.0001"


def test_what_the_paper_says_of_its_tables_is_in_them():
    """PrivateRec beats DP-FedRec in every column, and is beaten by FedRec and by centralised training."""
    for model, column in product(MODELS, (0, 1)):
        for metric in METRICS:
            of = {
                name: numbers(TRAINING[model, name][column])[metric].value
                for name in ("Centralized", "FedRec", "DP-FedRec", "PrivateRec")
            }
            assert of["DP-FedRec"] < of["PrivateRec"] < of["FedRec"] < of["Centralized"]
            served = {
                name: numbers(SERVING[model, name][column])[metric].value
                for name in ("FedRec", "DP-FedRec", "PrivateRec")
            }
            assert max(served["FedRec"], served["DP-FedRec"]) < served["PrivateRec"]
