"""`veilrec privacy`: the statement of a run, and the two calculators."""

import json

import pytest

from tests.cli.running import says, typed, veilrec
from veilrec.privacy.guarantee import Guarantee
from veilrec.runs.noise import obstacle

CAVEAT = "The server sees every clipped update."
GUARANTEE = Guarantee("proven", "user", "replace-one", 8.0, 1e-6, "whole run", "server", (CAVEAT,))
TRAINING = (
    "account --mechanism gaussian --noise-multiplier 1 --sampling fixed --population 4800 --cohort 30 --rounds 1000"
    " --delta 1e-6"
)
NOISE = "account --noise-multiplier 1"
TERMS = ("unit", "adjacency", "scope", "trust", "basis", "epsilon", "delta")
run_json, run, refused = typed("privacy")


@pytest.fixture
def finished(tmp_path):
    """The folder of a run."""
    (tmp_path / "config.yaml").write_text(
        "method: dp-fedmf\nrounds: 20\nconfig:\n  calibration: proven\n"
        "  privacy: {epsilon: 8.0, delta: 1.0e-06, clip_norm: 0.5}\n  cohort: {size: 300, sampling: fixed}\n"
    )
    result = {"method": "dp-fedmf", "dataset": "ml-1m", "guarantee": GUARANTEE.to_json()}
    (tmp_path / "result.json").write_text(json.dumps(result))
    return tmp_path


def test_show_prints_the_statement_as_text_json_and_page(finished):
    text, written = run("show", finished), finished / "privacy.html"
    says(text, "dp-fedmf on ml-1m", CAVEAT, "No guarantee as it is", "clip norm 0.5", GUARANTEE.line())
    assert "What is not protected" in text
    shown = run_json("show", finished)
    assert shown["guarantee"] == GUARANTEE.to_json() | {"obstacle": obstacle(GUARANTEE, "seeded")}
    assert shown["publishable"] is False
    (settings,) = shown["noise"]
    assert "20 rounds" in settings
    assert "epsilon" not in settings  # it stands in the guarantee, with its unit and the rest
    assert str(written) in run("show", finished, "--html", written)
    says(written.read_text(), '<ol class="flow"', "A person&#39;s device", GUARANTEE.line())
    assert run_json("show", finished, "--html", written)["html"] == str(written)


def test_noise_that_clients_add_is_at_least_what_is_counted_on(finished):
    result = json.loads((finished / "result.json").read_text())
    facts = {"sigma": 0.5, "noise_multiplier": 2.0, "population": 20, "cohort": 20}
    clients = {"least": 16, "honest": 12, "share_sigma": 0.15}
    for more, words in ((clients, "at least 0.5 on every sum of a round, which is at least 2 times"), ({}, "n 0.5 on")):
        (finished / "result.json").write_text(json.dumps(result | {"noise": facts | more}))
        says(run("show", finished), words)


def test_the_picture_shows_where_data_is_used(finished):
    for method, words in (
        ("popularity", "Nothing stays with the person"),
        ("random", "nobody&#39;s data"),
        ("of-tomorrow", "s device"),
    ):
        result = {"method": method, "dataset": "ml-1m", "guarantee": Guarantee("none").to_json()}
        (finished / "result.json").write_text(json.dumps(result))
        run("show", finished, "--html", finished / "page.html")
        assert words in (finished / "page.html").read_text()


def test_show_refuses_what_is_no_finished_run(finished, tmp_path):
    assert "is no report of veilrec" in refused("show", finished, "--html", finished / "config.yaml")
    (finished / "config.yaml").write_text("method: popularity\n")
    assert run_json("show", finished)["noise"] == []
    assert "is no run of veilrec" in refused("show", tmp_path / "nowhere")
    for result, words in (
        ("{}", "has no guarantee"),
        ('{"guarantee": {"basis": "proven", "epsilon": 1}}', "not a privacy guarantee"),
        ("", "finish the run first"),
    ):
        (finished / "result.json").write_text(result)
        assert words in refused("show", finished)


def test_the_calculators_give_noise_epsilon_and_terms():
    for line, name, value in (
        ("calibrate --mechanism attention --epsilon 1 --delta 1e-6 --padding 0.5 --clip 1", "sigma", 3.998930),
        ("calibrate --mechanism attention --epsilon 1 --clip 0.4 --basis 5", "scale", 1.258506),
        ("calibrate --mechanism laplace --epsilon 2 --sensitivity 4", "scale", 2.0),
        ("calibrate --mechanism label --epsilon 1 --candidates 37", "keep_probability", 0.070207),
        (TRAINING, "epsilon", 1.524438),
        ("account --noise-multiplier 4.224679 --rounds 1 --delta 1e-6", "epsilon", 1.0),
    ):
        told = run_json(*line.split())
        assert told[name] == pytest.approx(value, abs=1e-6), line
        assert all(told[term] is not None for term in TERMS), line
    assert "per user (replace-one), whole run, trusting: server, proven" in run(*TRAINING.split())


def test_how_many_a_test_finds():
    for arguments, found, guess in (
        ("account --noise-multiplier 2.06512 --rounds 10 --delta 1e-6", 0.213, 0.778),
        ("account --noise-multiplier 4 --rounds 20 --delta 1e-6", 0.113, 0.712),
        ("calibrate --mechanism randomised-response --epsilon 1", 0.027, 0.731),
        ("calibrate --mechanism laplace --epsilon 1", 0.027, 0.697),
        # two of five answers tell: (1 + keep - other) / 2 with keep 0.8339 and other 0.0415
        ("calibrate --mechanism k-ary --epsilon 3 --candidates 5", 0.201, 0.896),
        ("calibrate --mechanism laplace --epsilon 1 --padding 0.5", 0.027, 0.731),  # only its epsilon is known
        ("calibrate --mechanism gaussian --epsilon 1 --delta 1e-6", 0.018, 0.547),
        # half of the time a pad: (0.01 + Phi(Phi^-1(0.01) + 0.35364)) / 2
        ("calibrate --mechanism gaussian --epsilon 1 --delta 1e-6 --padding 0.5", 0.017, 0.535),
    ):
        told = run_json(*arguments.split())
        finds = round(told["detected_at_1_percent_false_alarms"], 3), round(told["best_guess"], 3)
        assert finds == (found, guess), arguments
        assert ("alone" in told["detection"]) == ("laplace --epsilon 1 --padding" in arguments)


def test_what_a_number_means_fits_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    text = veilrec("privacy", "account", "--noise-multiplier", "4", "--rounds", "20", "--delta", "1e-6").out
    meaning = text[text.index("- Epsilon") :].splitlines()
    assert max(map(len, meaning)) <= 60
    assert all(line.startswith(("- ", "  ")) for line in meaning)
    tiny = run("account", "--noise-multiplier", "9", "--rounds", "2", "--delta", "1e-300")
    assert "if it were otherwise, plus 1e-300." in tiny
    assert "1,000,000,000,000" not in tiny


def test_bad_input_is_one_clear_line():
    for arguments, message in (
        ("calibrate --mechanism gaussian --epsilon 1 --delta 1e-6 --clip 1", "gaussian takes no --clip"),
        ("calibrate --mechanism laplace --epsilon 1 --candidates 3", "laplace takes no --candidates"),
        ("calibrate --mechanism attention --epsilon 1 --sensitivity 3", "attention takes no --sensitivity"),
        ("calibrate --mechanism attention --epsilon 1 --delta 1e-6 --basis 5", "--basis counts with Laplace"),
        ("calibrate --mechanism randomised-response --epsilon 1 --candidates 3", "response takes no --candidates"),
        ("calibrate --mechanism label --epsilon 1 --candidates 3 --padding 0", "label takes no --padding"),
        ("calibrate --mechanism gaussian --epsilon 0 --delta 1e-6", "epsilon is 0"),
        ("calibrate --mechanism gaussian --epsilon 1 --delta 1.5", "delta is 1.5"),
        ("calibrate --mechanism gaussian --epsilon nan --delta 1e-6", "epsilon is nan"),
        ("calibrate --mechanism attention --epsilon 1 --clip 0", "clip_norm is 0"),
        ("account --noise-multiplier 0 --rounds 5 --delta 1e-6", "noise_multiplier is 0"),
        ("account --noise-multiplier 1 --rounds 0 --delta 1e-6", "rounds is 0"),
        ("account --noise-multiplier 1 --rounds 5 --delta 0", "delta is 0"),
        ("account --noise-multiplier 1 --rounds 5 --delta 1e-6 --sampling fixed", "needs --population and --cohort"),
        ("account --noise-multiplier 1 --rounds 5 --delta 1e-6 --population 100", "count only where a cohort is drawn"),
        (f"{NOISE} --rounds 5 --delta .1 --sampling poisson --population 3 --cohort 4", "a cohort of 4"),
    ):
        assert message in refused(*arguments.split())
