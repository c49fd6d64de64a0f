"""A run that starts from an earlier one: what it has of it, on data that has grown, and what it says of the cost."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import veilrec
from tests.methods.tiny_news import SMALL
from veilrec.cli import privacy
from veilrec.core.errors import BadInput
from veilrec.privacy.guarantee import Guarantee
from veilrec.runs.checkpoint import checkpoint_path, read_config
from veilrec.runs.evaluation import evaluate_run
from veilrec.runs.model_files import load_clients, load_model
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.saved import open_model
from veilrec.runs.training import train

OLD = [f"u{user},i{(user + 2 * k) % 40:02}" for user in range(40) for k in range(6)]
NEW = [f"new{user},{item}" for user in range(5) for item in ("fresh", "a first", "i03", "i05", "i07")]
GROWN = [*OLD, *(f"u{user},fresh" for user in range(8)), *NEW]  # "a first" moves all other items by one
FEW = ("cohort.size=20",)


def write(path, rows):
    path.write_text("\n".join(["user,item", *rows]))
    return f"csv:{path}"


def ask(method, data, **more):
    asked = {"protocol": "loo-full", "settings": FEW, "rounds": 2, **more}
    return RunRequest(method, data, **asked)


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    return write(folder / "old.csv", OLD), write(folder / "grown.csv", GROWN)


@pytest.fixture(scope="module")
def first(logs, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "first"
    train(prepare(ask("fedmf", logs[0])), out)
    return out


def test_a_run_recommends_although_its_log_has_grown_and_evaluating_says_what_to_do(tmp_path):
    data, out = write(tmp_path / "log.csv", OLD), tmp_path / "run"
    train(prepare(ask("fedmf", data)), out)
    before = open_model(out).recommend_user("u3"), open_model(out).recommend(["i03", "i05"])
    measured = evaluate_run(out)["metrics"]
    write(tmp_path / "log.csv", GROWN)
    assert (open_model(out).recommend_user("u3"), open_model(out).recommend(["i03", "i05", "fresh"])) == before
    with pytest.raises(BadInput, match="has 45 users and had 40 .*bring the old files back, or train again.*--from"):
        evaluate_run(out)
    again = train(prepare(ask("fedmf", data, start_from=out)), tmp_path / "next")
    assert again["start_from"]["carried_over"]["new_users"] == 5
    assert open_model(tmp_path / "next").recommend_user("new2", 3)
    write(tmp_path / "log.csv", OLD)
    assert evaluate_run(out)["metrics"] == measured


@pytest.mark.parametrize("method", ["fedmf", "mf", "dp-fedmf", "priv-fedmf-sub", "fedmf-lean"])
def test_vectors_go_by_the_ids_of_items_and_users(method, first, logs):
    old, clients = load_model(first / "model"), load_clients(first)
    settings = () if method == "mf" else (*FEW, "local.dim=32")
    prepared = prepare(ask(method, logs[1], start_from=first, settings=settings))
    fresh = prepare(ask(method, logs[1], settings=settings, seed=1_000_003)).trainer.parts()
    parts, population = prepared.trainer.parts(), prepared.population
    for index, item in enumerate(population.items):
        place = old.items.find(item)
        expected = fresh.weights["items"][index] if place is None else old.weights["items"][place]
        assert np.array_equal(parts.weights["items"][index], expected), item
    for index, user in enumerate(population.users):
        place = clients.users.find(user)
        expected = fresh.private["user"][index] if place is None else clients.states["user"][place]
        assert np.array_equal(parts.private["user"][index], expected), user
    assert vars(prepared.carried_over) == {"items": 40, "new_items": 2, "users": 40, "new_users": 5, "test_seen": 0}
    assert "40 items and 40 users of the earlier run; 2 items and 5 users start afresh" in prepared.notes[-1]


@pytest.mark.parametrize("method", ["fedncf", "fcf", "dp-fedncf-dgc"])
def test_other_models_are_carried_over_as_well(method, logs, tmp_path):
    train(prepare(ask(method, logs[0], rounds=1)), tmp_path / "first")
    prepared = prepare(ask(method, logs[1], rounds=1, start_from=tmp_path / "first"))
    old, parts = load_model(tmp_path / "first" / "model"), prepared.trainer.parts()
    for name, learnt in old.weights.items():
        if name != "items":
            assert np.array_equal(parts.weights[name], learnt), name
    place = prepared.population.items.find("i17")
    assert place != old.items.find("i17")
    assert np.array_equal(parts.weights["items"][place], old.weights["items"][old.items.find("i17")])
    train(prepared, tmp_path / "next")


def test_a_news_model_keeps_the_vectors_of_the_words_it_knew(tmp_path):
    def news(seed):
        return f"synthetic-news:users=60,news=200,days=3,seed={seed}"

    train(prepare(RunRequest("nrms", news(3), settings=SMALL, rounds=1)), tmp_path / "first")
    prepared = prepare(RunRequest("nrms", news(4), settings=SMALL, rounds=1, start_from=tmp_path / "first"))
    old, parts = load_model(tmp_path / "first" / "model"), prepared.trainer.parts()
    then, now = old.ranker.reader.names.words, parts.ranker.reader.names.words
    assert then.words != now.words
    name = next(name for name in parts.weights if name.endswith("words.weight"))
    reserved = len(now) - len(now.words)
    common = [word for word in now.words if word in then.words][:50]
    assert len(common) == 50
    for word in common:
        ours = parts.weights[name][now.words.index(word) + reserved]
        assert np.array_equal(ours, old.weights[name][then.words.index(word) + reserved]), word
    with pytest.raises(BadInput, match="holds the network nrms and this is naml"):
        prepare(RunRequest("naml", news(4), settings=SMALL, rounds=1, start_from=tmp_path / "first"))


@pytest.mark.parametrize(("before", "after"), [(True, True), (False, True), (True, False)])
def test_the_word_that_fills_short_titles_goes_on_behind_all_others(tmp_path, before, after):
    def asked(seed, pads, **more):
        data = f"synthetic-news:users=60,news=200,days=3,seed={seed}"
        settings = (*SMALL, f"text.pad_words={str(pads).lower()}")
        return RunRequest("nrms", data, settings=settings, rounds=1, **more)

    train(prepare(asked(3, before)), tmp_path / "first")
    parts = prepare(asked(4, after, start_from=tmp_path / "first")).trainer.parts()
    old, name = load_model(tmp_path / "first" / "model"), next(name for name in parts.weights if "words" in name)
    now, then = (found.ranker.reader for found in (parts, old))
    assert len(parts.weights[name]) == len(now.names.words) + after
    shared = next(word for word in now.names.words.words if word in then.names.words.words)
    reserved = len(now.names.words) - len(now.names.words.words)
    places = [reader.names.words.words.index(shared) + reserved for reader in (now, then)]
    assert np.array_equal(parts.weights[name][places[0]], old.weights[name][places[1]])
    if after:  # e0 starts at zero, unless it has learnt before
        assert np.array_equal(parts.weights[name][-1], old.weights[name][-1] if before else 0.0 * old.weights[name][-1])


def test_it_learns_on_and_says_where_it_came_from(first, logs, tmp_path):
    request = ask("fedmf", logs[1], start_from=first)
    result = train(prepare(request), tmp_path / "second")
    assert (result["start_from"]["run"], result["start_from"]["guarantee"]["basis"]) == (str(first), "none")
    config = read_config(tmp_path / "second")
    assert config["start_from"]["generation"] == 1
    assert config["start_from"].items() <= result["start_from"].items()
    how = {"protocol": "loo-full", "settings": FEW, "rounds": 1, "out": tmp_path / "third"}
    third = veilrec.train("fedmf", logs[1], start_from=veilrec.open(tmp_path / "second"), **how)
    assert third.result["start_from"]["generation"] == 2
    assert third.guarantee.caveats[0] == "It started from the run second: no privacy guarantee."
    with pytest.raises(BadInput, match="its start_from is .* now asked for None"):
        train(prepare(ask("fedmf", logs[1])), tmp_path / "second", resume=True)


def test_a_run_that_started_from_another_can_be_resumed(first, logs, tmp_path):
    how = {"start_from": first, "checkpoint_every": 2}
    whole = train(prepare(ask("fedmf", logs[1], rounds=4, **how)), tmp_path / "whole")
    train(prepare(ask("fedmf", logs[1], rounds=2, **how)), tmp_path / "half")
    assert checkpoint_path(tmp_path / "half", 2).exists()
    again = train(prepare(ask("fedmf", logs[1], rounds=4, evaluate_every=1, **how)), tmp_path / "half", resume=True)
    assert again["weights_sha256"] == whole["weights_sha256"]


def test_what_does_not_fit_is_refused(first, logs, tmp_path):
    for method, settings, said in (
        ("ease", (), "ease is computed from the data at once"),
        ("popularity", (), "popularity is computed from the data at once"),
        ("fedncf", FEW, "holds one of the kind matrix-factorisation: start from a run of fedncf"),
        ("fedmf", (*FEW, "local.dim=8"), r"does not fit the model of .*first \(items has rows of \(32,\) there"),
    ):
        with pytest.raises(BadInput, match=said):
            prepare(ask(method, logs[1], settings=settings, start_from=first))
        with pytest.raises(BadInput, match="is no run of veilrec"):
            prepare(ask(method, logs[1], settings=settings, start_from=tmp_path))


def test_the_cost_of_both_runs_is_stated(logs, tmp_path):
    secure = {"noise": "secure", "settings": (*FEW, "privacy.epsilon=3"), "public_catalogue": True}
    train(prepare(ask("dp-fedmf", logs[0], **secure)), tmp_path / "first")
    result = train(prepare(ask("dp-fedmf", logs[1], **secure, start_from=tmp_path / "first")), tmp_path / "second")
    stated = Guarantee.from_json(result["guarantee"])
    assert stated.line() == "(6, 2e-06)-DP per user (add-remove), whole run, trusting: server, proven"
    alone = "(3, 1e-06)-DP per user (add-remove), whole run, trusting: server, proven"
    assert stated.caveats[0].count(alone) == 2
    kept = Guarantee.from_json(json.loads((tmp_path / "second" / "model" / "guarantee.json").read_text()))
    assert (result["publishable"], kept.line()) == (True, stated.line())
    assert str(tmp_path) not in json.dumps(kept.to_json())
    handed = prepare(ask("dp-fedmf", logs[1], **secure, start_from=tmp_path / "second" / "model"))
    assert handed.guarantee().epsilon == 9.0
    assert (handed.carried_over.users, handed.carried_over.test_seen) == (0, None)


@pytest.mark.parametrize(
    ("method", "reason"), [("dp-fedmf", "whoever knows the seed of that run"), ("fedmf", "nothing is promised")]
)
def test_what_a_first_run_did_not_cover_no_second_one_covers(method, reason, logs, tmp_path):
    train(prepare(ask(method, logs[0], settings=(*FEW, "local.dim=8"))), tmp_path / "first")
    prepared = prepare(ask("dp-fedmf", logs[1], noise="secure", start_from=tmp_path / "first"))
    result = train(prepared, tmp_path / "second")
    assert result["publishable"] is False
    why = result["guarantee"]["obstacle"]
    assert reason in why
    assert "train with --noise secure" not in why
    shown = CliRunner().invoke(privacy.app, ["show", str(tmp_path / "second"), "--json"])
    statement = json.loads(shown.stdout)
    assert statement["publishable"] is False
    assert reason in statement["publication"][0]
    assert "The earlier run first" in " ".join(statement["noise"])
    if method == "fedmf":
        assert "this run adds noise" in statement["summary"]


def test_the_noise_of_the_first_run_does_not_come_again(logs, tmp_path):
    train(prepare(ask("dp-fedmf", logs[0], rounds=1)), tmp_path / "first")
    start = prepare(ask("dp-fedmf", logs[0], rounds=1)).trainer.parts().weights["items"]
    learnt = load_model(tmp_path / "first" / "model").weights["items"]
    train(prepare(ask("dp-fedmf", logs[0], rounds=1, start_from=tmp_path / "first")), tmp_path / "second")
    then = load_model(tmp_path / "second" / "model").weights["items"]
    # nearly all of a change is noise: 1,280 numbers, whose correlation is below 0.15 but for one seed in ten million
    assert abs(np.corrcoef((learnt - start).ravel(), (then - learnt).ravel())[0, 1]) < 0.15


def test_test_items_that_the_earlier_run_has_seen_are_counted(logs, tmp_path):
    train(prepare(ask("fedmf", logs[0], protocol="ratio-8-2", seed=1)), tmp_path / "first")
    prepared = prepare(ask("fedmf", logs[0], protocol="loo-full", start_from=tmp_path / "first"))
    clients = load_clients(tmp_path / "first")
    learnt = {(user, item) for row, user in enumerate(clients.users) for item in clients.trained_on.row(row)}
    test = prepared.split.test
    asked = [(prepared.population.users[u], int(i)) for u, i in zip(test.users, test.positives.items, strict=True)]
    assert prepared.carried_over.test_seen == sum(pair in learnt for pair in asked) > 0
    assert "the metrics flatter" in prepared.notes[-1]
