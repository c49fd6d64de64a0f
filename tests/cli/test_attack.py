"""`veilrec attack`: what its commands print, draw, and refuse."""

import shutil
from dataclasses import replace

import pytest

from tests.cli import running
from tests.cli.running import SMALL, says, typed
from veilrec.attacks.running import attack_messages, attack_rows
from veilrec.attacks.subjects import Populations, subject_of_method
from veilrec.cli.attack import ATTACKS

NEWS = "synthetic-news:users=60,news=200,days=3,seed=3"
OPEN = ["--set", "cohort.size=20", "--calibration", "none"]
FEW = ["--data", NEWS, *SMALL, "--updates", "10"]
RATINGS = "synthetic-ratings:users=150,items=200,seed=3"
VOTES = ["--method", "private-popularity", "--data", RATINGS, "--set", "cohort.size=0"]
told, shown, refused = typed("attack")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with basis vectors."""
    out = tmp_path_factory.mktemp("runs") / "mine"
    running.told("train", "privaterec", "--data", NEWS, *SMALL, *OPEN, "--rounds", "2", "--out", out)
    return out


@pytest.fixture(scope="module")
def votes(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "votes"
    running.told("train", "private-popularity", "--data", RATINGS, "--out", out)
    return out


def test_without_a_name_it_says_which_attacks_there_are():
    for asked in ((), ("--list",)):
        says(shown(*asked), *(f"veilrec attack {name}" for name in ATTACKS))
        assert [entry["attack"] for entry in told(*asked)["attacks"]] == list(ATTACKS)


def test_uploads_as_json_and_side_by_side_with_a_picture(trained, tmp_path):
    report = told("gradient-rows", "--method", "fednewsrec", *OPEN, *FEW)
    assert (report["attack"], report["method"], report["calibration"]) == ("gradient-rows", "fednewsrec", "none")
    assert (report["by"], report["view"], report["updates"], report["seed"]) == ("word-rows", "message", 10, 0)
    assert (report["claimed"]["basis"], report["data"], report["padding"]) == ("none", NEWS, None)
    low, high = report["interval"]
    assert max(0.95, low) <= report["recall"] <= high
    assert 0.0 < report["chance"] < 1.0 and 0.0 < report["false_positive_rate"] < 1.0
    assert len(report["findings"]) == 3
    picture = tmp_path / "leak.svg"
    asked = ["gradient-rows", trained, "--method", "fednewsrec", "--calibration", "none"]
    text = shown(*asked, "--calibration", "proven", "--set", "cohort.size=20", *FEW, "--plot", picture)
    says(text, "privaterec, none", "fednewsrec, none", "fednewsrec, proven", "trusting: server, proven", "padding 0")
    says(picture.read_text(), "privaterec, none", "fednewsrec, proven", "chance", "trusting: server, proven")


def test_queries_of_a_run(trained, tmp_path):
    picture = tmp_path / "queries.png"
    asked = ["repeated-queries", trained, "--queries", "1", "--queries", "50"]
    report = told(*asked, "--epsilon", "4", "--plot", picture)
    assert (report["attack"], report["method"], report["interests"]) == ("repeated-queries", "privaterec", 5)
    assert len(report["curves"]) == 4
    assert 1 / report["interests"] < report["chance"] <= 1.0  # most users share an interest
    for curve in report["curves"]:
        assert curve["claimed"]["epsilon"] == 4.0
        first, last = curve["points"]
        assert (first["queries"], last["queries"]) == (1, 50)
        assert curve["memoised"] == (first["epsilon_together"] == last["epsilon_together"])
        assert (last["error"] == pytest.approx(first["error"])) == curve["memoised"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    promise = "per history (replace-one), per message, trusting: nobody, proven"
    says(shown(*asked), "found is how often the strongest interest is named", promise)


def test_membership_of_a_run_and_a_method(votes, tmp_path):
    picture = tmp_path / "who.svg"
    asked = ["membership", votes, *VOTES, "--quick", "--canaries", "20"]
    report = told(*asked, "--plot", picture)
    assert report["attack"] == "membership"
    views = {(view, kind) for view in ("every round", "final model") for kind in ("crafted", "random")}
    for one in report["results"]:
        claimed = one["claimed"]
        assert (one["method"], claimed["basis"], claimed["unit"]) == ("private-popularity", "proven", "user")
        assert 0.5 < one["ceiling"]["auc"] < 1.0
        assert {(f["view"], f["kind"]) for f in one["findings"]} == views
        assert all(f["interval"][0] <= f["auc"] <= f["interval"][1] for f in one["findings"])
    assert "trusting: server, proven" in picture.read_text()
    promise = "per user (add-remove), whole run, trusting: server, proven"
    says(shown(*asked), "The best attack on all that is released can reach", promise)


def test_rows_and_numbers_as_json_and_tables(tmp_path):
    for attack, views, words in (
        ("row-support", {"sum", "update"}, "before any noise"),
        ("inversion", {"message", "secure sum", "released"}, "secure aggregation"),
    ):
        asked = [attack, *VOTES, "--quick", "--updates", "20"]
        picture = tmp_path / f"{attack}.png"
        by_view = {f["view"]: f for f in told(*asked, "--plot", picture)["findings"]}
        assert by_view.keys() == views
        assert by_view["update" if attack == "row-support" else "message"]["recall"] > 0.99
        assert picture.read_bytes().startswith(b"\x89PNG")
        says(shown(*asked), "private-popularity", words)


def test_poisoning_as_json_and_table(tmp_path):
    picture = tmp_path / "lies.svg"
    asked = ["poisoning", *VOTES, "--quick", "--poison", "promote"]
    findings = told(*asked, "--plot", picture)["findings"]
    pairs = [(f["poison"], f["defence"]) for f in findings]
    assert pairs == [(poison, defence) for defence in ("none", "bound") for poison in (None, "promote")]
    _, unchecked, _, checked = findings
    assert unchecked["exposure"] > 0.9  # a thousand votes of one client
    assert checked["exposure"] < unchecked["exposure"]
    assert (checked["metric"], checked["liars"]) == ("hr@10", 8)
    assert "promote" in picture.read_text()
    assert "longer messages are refused" in shown(*asked)


def test_a_federation_is_attacked_by_its_run(votes, tmp_path):
    made = tmp_path / "made"
    made.mkdir()
    (made / "federation.yaml").write_text("format: 1\n")
    for attack in ("row-support", "gradient-rows"):
        assert "a federation without a run: finish it with `veilrec federate up" in refused(attack, made)
    shutil.copytree(votes, made / "run")
    report = told("row-support", made, "--quick", "--updates", "10")
    assert report["model"] == f"{made / 'run'} after 1 rounds"


@pytest.mark.parametrize(
    ("trust", "sums"),
    [("server sees only sums", ["secure sum", "released"]), ("server sees only noisy sums", ["released"])],
)
def test_nobody_sees_messages_that_are_masked(trust, sums):
    subject = subject_of_method("private-popularity", RATINGS, Populations(), settings=["cohort.size=0"])
    masked = replace(subject, claimed=replace(subject.claimed, trust=trust))
    for attack, views in ((attack_rows, ["sum"]), (attack_messages, sums)):
        found = attack(masked, updates=10).findings
        assert [one.view for one in found] == views


def test_bad_input_is_one_line():
    for line, words in (
        ("gradient-rows --method nrms", "sends no messages"),
        (f"gradient-rows --method fcf --data {NEWS}", "reads no titles"),
        ("gradient-rows --method dp-fedmf --data synthetic-ratings:users=50,items=300", "no titles"),
        ("gradient-rows --method fednewsrec --updates 0", "--updates is 0"),
        ("gradient-rows --method fednewsrec --rounds 0", "--rounds is 0"),
        ("gradient-rows --method fednewsrec --calibration strong", "strong"),
        ("gradient-rows --method fednewsrec --plot leak.pdf", ".svg or .png"),
        ("gradient-rows --method nosuch", "nosuch"),
        ("gradient-rows nosuch", "there is no run"),
        ("gradient-rows", "nothing to attack"),
        ("membership", "nothing to attack"),
        ("membership --method nosuch", "nosuch"),
        ("membership --method ease", "sends no messages"),
        ("membership VOTES --kind odd", "odd"),
        ("membership VOTES --canaries 1000", "1000 canaries"),
        ("membership VOTES --trainings 0", "--trainings is 0"),
        ("row-support VOTES --updates 0", "updates is 0"),
        ("row-support VOTES --plot x.pdf", ".svg or .png"),
        ("inversion nosuch", "there is no run"),
        ("poisoning VOTES --share 0.7", "--share is 0.7"),
        ("poisoning VOTES --poison arsenic", "arsenic"),
        ("poisoning VOTES --defence prayer", "prayer"),
        ("poisoning VOTES --rounds 0", "--rounds is 0"),
    ):
        assert words in refused(*line.replace("VOTES", " ".join(VOTES)).split()), line


def test_a_run_is_attacked_as_it_was_trained_on_data_that_is_there(trained, votes, tmp_path):
    for attack, run in (("gradient-rows", trained), ("membership", votes)):
        assert "as it was trained" in refused(attack, run, "--calibration", "proven")
    config = shutil.copytree(trained, tmp_path / "run") / "config.yaml"
    config.write_text(config.read_text().replace(NEWS, "mind:/nosuch"))
    for attack in ATTACKS.keys() - {"malicious-coordinator"}:  # which makes a federation of its own
        assert "/nosuch is not there" in refused(attack, tmp_path / "run")
    running.told("train", "popularity", "--data", NEWS, "--out", tmp_path / "plain")
    assert "privaterec" in refused("repeated-queries", tmp_path / "plain")
    assert "privaterec" in refused("repeated-queries")
    assert "sends no messages" in refused("gradient-rows", tmp_path / "plain")


def test_a_malicious_coordinator_as_json_table_and_picture(tmp_path):
    asked = ["malicious-coordinator", "--method", "dp-fedmf", "--data", RATINGS, "--quick", "--secagg", "helpers"]
    report = told(*asked, "--play", "two-models", "--play", "sybils", "--set", "local.dim=4")
    masks, noisy = report["results"]
    assert (masks["noise"], noisy["noise"], report["seed"]) == ("masks only", "distributed", 0)
    two, sybils = masks["findings"]
    assert two["refusals"][0]["by"] == "client" and two["found"] < 0.2 * two["clicks"]
    assert sybils["recall"] == 1.0 and "more clients work with the server" in sybils["remains"]
    assert [finding["bound"] is None for finding in noisy["findings"]] == [False, True]
    picture = tmp_path / "found.svg"
    text = shown(*asked, "--play", "replay", "--plot", picture)
    says(text, "dp-fedmf, helpers, masks only", "dp-fedmf, helpers, distributed", "a round has one answer", "bound")
    says(
        picture.read_text(),
        "Malicious coordinator: dp-fedmf, helpers",
        "replay",
        "refused",
        "most that the noise allows",
    )


def test_a_malicious_coordinator_needs_a_method_and_known_attacks():
    says(refused("malicious-coordinator"), "give --method")
    says(refused("malicious-coordinator", "--method", "dp-fedmf", "--play", "overflw"), "overflow")
    says(refused("malicious-coordinator", "--method", "dp-fedmf", "--secagg", "pear"), "pairs")
