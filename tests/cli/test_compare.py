"""`veilrec compare` and `veilrec train --config`, as a user types them."""

from __future__ import annotations

import csv
import io
import json

import pytest

from tests.cli.test_train import veilrec

DATA = "synthetic-ratings:users=150,items=200,seed=3"


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("compare") / "out")


def compare(out: str, *more: str):
    options = ("--data", DATA, "--seeds", "2", "--rounds", "2", "--out", out)
    return veilrec("compare", "mf:dim=8", "dp-fedmf:privacy.epsilon=4", "ease", *options, *more)


def test_the_table_has_methods_baselines_pairs_and_the_test(out):
    done = compare(out)
    assert done.returncode == 0, done.stderr
    for words in ("mf:dim=8", "popularity", "random", "-DP per user (add-remove), whole run", "p (Holm)"):
        assert words in done.stdout
    assert "Paired sign-flip permutation test" in done.stdout
    assert "n = 2 seeds" in done.stdout
    assert f"Saved in {out}" in done.stderr


def test_json_is_all_of_standard_output_and_runs_are_read_again(out):
    for option in (["--json"], ["--format", "json"]):
        done = compare(out, *option)
        found = json.loads(done.stdout)
        assert [entry["label"] for entry in found["methods"]][-2:] == ["popularity", "random"]
        assert "6 runs of 6 finished before" in done.stderr
    assert found["command"] == (
        f"veilrec compare mf:dim=8 dp-fedmf:privacy.epsilon=4 ease --data {DATA} --seeds 2 --protocol loo-99"
        " --metric ndcg@10 --rounds 2"
    )


def test_where_a_run_failed_the_code_is_1(tmp_path):
    options = ("--data", DATA, "--seeds", "1", "--rounds", "2", "--out", str(tmp_path / "out"))
    done = veilrec("compare", "mf:rate=1e30", "ease", *options)
    assert done.returncode == 1
    assert "mf:rate=1e30 failed: " in done.stdout


def test_other_forms_are_printed(out):
    rows = list(csv.DictReader(io.StringIO(compare(out, "--format", "csv").stdout)))
    assert [row["method"] for row in rows] == ["mf:dim=8", "dp-fedmf:privacy.epsilon=4", "ease", "popularity", "random"]
    assert r"\begin{tabular}" in compare(out, "--format", "latex").stdout
    assert compare(out, "--format", "html").stdout.startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compare", "fedmv"), "did you mean fedmf"),
        (("compare", "mf", "--set", "dims=3", "--data", DATA), "fits none of mf"),
        (("compare", "mf", "--seeds", "0"), "--seeds is 0"),
        (("compare", "mf", "--data", "ml-2m"), "unknown data set"),
        (("train",), "names no method"),
        (("train", "--config", "no-such.yaml"), "cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = veilrec(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert words in done.stderr and len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_trained_again_from_its_config(tmp_path):
    first = veilrec(
        "train", "mf", "--data", DATA, "--rounds", "2", "--seed", "3", "--out", str(tmp_path / "a"), "--json"
    )
    config = str(tmp_path / "a" / "config.yaml")
    again = veilrec("train", "--config", config, "--out", str(tmp_path / "b"), "--json")
    named = veilrec("train", "mf", "--config", config, "--seed", "4", "--out", str(tmp_path / "c"), "--json")
    results = [json.loads(done.stdout) for done in (first, again, named)]
    assert results[0]["weights_sha256"] == results[1]["weights_sha256"] != results[2]["weights_sha256"]
    assert [result["seed"] for result in results] == [3, 3, 4]
    other = veilrec("train", "ease", "--config", config, "--out", str(tmp_path / "d"))
    assert other.returncode == 2 and "is for mf, and ease was asked for" in other.stderr
