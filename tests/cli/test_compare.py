"""`veilrec compare`, `veilrec tune` and `veilrec train --config`, as a user types them."""

import csv
import io
import json

import pytest

from tests.cli.running import refused, says, told, veilrec

DATA = "synthetic-ratings:users=150,items=200,seed=3"


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return str(tmp_path_factory.mktemp("compare") / "out")


def compare(out, *more):
    methods = ("mf:dim=8", "dp-fedmf:privacy.epsilon=4", "ease")
    done = veilrec("compare", *methods, "--data", DATA, "--seeds", "2", "--rounds", "2", "--out", out, *more)
    assert done.code == 0, done.err
    return done


def test_tables_json_and_files_of_a_comparison(out):
    done = compare(out)
    says(done.out, "mf:dim=8", "popularity", "random", "-DP per user (add-remove), whole run", "p (Holm)")
    says(done.out, "Paired sign-flip permutation test", "n = 2 seeds")
    assert f"Saved in {out}" in done.err
    done = compare(out, "--json")
    assert "6 runs of 6 finished before" in done.err
    assert compare(out, "--format", "json").out == done.out
    found = json.loads(done.out)
    assert [entry["label"] for entry in found["methods"]][-2:] == ["popularity", "random"]
    options = f"--data {DATA} --seeds 2 --protocol loo-99 --metric ndcg@10 --rounds 2"
    assert found["command"] == f"veilrec compare mf:dim=8 dp-fedmf:privacy.epsilon=4 ease {options}"
    rows = list(csv.DictReader(io.StringIO(compare(out, "--format", "csv").out)))
    assert [row["method"] for row in rows] == ["mf:dim=8", "dp-fedmf:privacy.epsilon=4", "ease", "popularity", "random"]
    assert "whoever knows the seed can draw the noise again" in rows[1]["guarantee_obstacle"]
    assert rows[0]["guarantee_obstacle"] == "nothing is promised about what the model gives away"
    assert r"\begin{tabular}" in compare(out, "--format", "latex").out
    assert compare(out, "--format", "html").out.startswith("<!doctype html>")


def test_where_a_run_failed_the_code_is_1(tmp_path):
    options = ("--data", DATA, "--seeds", "1", "--rounds", "2", "--out", tmp_path / "out")
    done = veilrec("compare", "mf:rate=1e30", "ease", *options)
    assert done.code == 1
    assert "mf:rate=1e30 failed: " in done.out


def test_a_search_ends_with_the_command_that_uses_it(tmp_path):
    out = str(tmp_path / "search")
    search = ("tune", "mf", "--data", DATA, "--rounds", "2", "--trials", "2", "--out", out)
    done = veilrec(*search)
    assert done.code == 0, done.err
    assert "ndcg@10 on validation items" in done.out
    command = done.out.splitlines()[-1].rpartition(": ")[2]
    assert command == f"veilrec train --config {out}/best.yaml"
    assert [line.partition(":")[0] for line in done.err.splitlines()] == ["trial 1/2", "trial 2/2"]
    found, asked = told(*command.split()[1:], "--out", tmp_path / "run"), told(*search)
    assert (found["method"], found["rounds"]) == ("mf", asked["rounds"])
    assert asked["command"] == command and asked["measured_on"] == "validation items"


def test_a_search_for_a_private_method_names_what_is_not_covered(tmp_path):
    space = tmp_path / "space.yaml"
    space.write_text("privacy.clip_norm: {low: 0.1, high: 1.0, log: true}\n")
    options = ("--space", space, "--rounds", "2", "--trials", "1", "--out", tmp_path / "search")
    done = veilrec("tune", "dp-fedmf", "--data", DATA, *options)
    assert "Not covered by the guarantee: The settings were chosen by 1 trial" in done.out
    assert "no guarantee covers it" in done.err


def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for line, words in (
        ("compare fedmv", "did you mean fedmf"),
        (f"compare mf --set dims=3 --data {DATA}", "fits none of mf"),
        ("compare mf --seeds 0", "--seeds is 0"),
        ("compare mf --data ml-2m", "unknown data set"),
        ("train", "names no method"),
        ("train --config no-such.yaml", "cannot be read"),
        ("tune mf --trials 0", "--trials is 0"),
        ("tune mv", "unknown method"),
        ("tune popularity", "give --space FILE"),
        ("tune mf --space none.yaml", "cannot be read"),
    ):
        assert words in refused(*line.split()), line
        assert list(tmp_path.iterdir()) == [], line


def test_a_run_is_trained_again_from_its_config(tmp_path):
    first = told("train", "mf", "--data", DATA, "--rounds", "2", "--seed", "3", "--out", tmp_path / "a")
    config = tmp_path / "a" / "config.yaml"
    again = told("train", "--config", config, "--out", tmp_path / "b")
    named = told("train", "mf", "--config", config, "--seed", "4", "--out", tmp_path / "c")
    assert first["weights_sha256"] == again["weights_sha256"] != named["weights_sha256"]
    assert [result["seed"] for result in (first, again, named)] == [3, 3, 4]
    told_off = refused("train", "ease", "--config", config, "--out", tmp_path / "d")
    assert "is for mf, and ease was asked for" in told_off
