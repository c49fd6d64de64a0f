"""A saved model: what is in its folder, and that it ranks without the data that it was trained on."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from safetensors import safe_open

from tests.runs.conftest import RATINGS, REQUESTS
from veilrec.core.errors import BadInput
from veilrec.runs import saved
from veilrec.runs.evaluation import evaluate_run
from veilrec.runs.model_files import RANKERS, load_clients, load_model
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.saved import open_model
from veilrec.runs.training import train

KINDS = pytest.mark.parametrize("kind", REQUESTS)


def test_every_kind_is_tested():
    assert set(REQUESTS) == set(RANKERS)


@KINDS
def test_a_saved_model_scores_and_measures_as_the_trainer_that_saved_it(trained, kind):
    prepared, out = trained(kind)
    assert load_model(out / "model").ranker.kind == kind
    users = np.arange(10)
    ours, theirs = open_model(out).for_users, prepared.trainer.model()
    assert np.array_equal(ours.score_all(users), theirs.score_all(users))
    some = prepared.split.train.take(users)
    assert np.array_equal(ours.fold_in(some).score_all(users), theirs.fold_in(some).score_all(users))
    result, again = json.loads((out / "result.json").read_text()), evaluate_run(out)
    again.pop("data")
    assert {name: result[name] for name in again} == again


@KINDS
def test_nothing_that_was_used_is_recommended_and_all_users_get_what_each_gets(trained, kind):
    prepared, out = trained(kind)
    model, pairs = open_model(out), prepared.population.interactions.pairs()
    everybody = list(model.recommend_everybody(5))
    assert [best.user for best in everybody] == list(range(prepared.population.n_users))
    for best in everybody[::9]:
        assert not set(best.items) & set(pairs.row(best.user))
        alone = model.recommend_user(prepared.population.users[best.user], 5)
        assert [entry.item for entry in alone] == [entry.item for entry in model.named(best)]


@KINDS
def test_the_folder_alone_is_enough_for_anybody(trained, kind, tmp_path):
    _, out = trained(kind)
    model = open_model(out)
    shutil.copytree(out / "model", tmp_path / "handed")
    handed = open_model(tmp_path / "handed")
    history = [handed.items[4], handed.items[2]]
    best = handed.recommend(history, 6)
    assert best == model.recommend(history, 6)
    assert len({entry.item for entry in best} - set(history)) == 6
    assert handed.guarantee == model.guarantee
    with pytest.raises(BadInput, match=r"knows no users.* give --history"):
        handed.recommend_user("u01")
    # without any item that it knows, the list is that of somebody new; unknown and repeated ones are passed over
    new = model.recommend([], 6)
    assert len({entry.item for entry in new}) == 6
    assert model.recommend(["never seen"], 6) == new
    assert model.recommend([history[0], "never seen", f" {history[1]} ", history[0]], 6) == best
    assert model.split_history([history[0], "x", "x", f" {history[0]}"]) == ([history[0]], ["x"])


def test_models_of_no_torch_open_without_it(trained):
    code = (
        "import sys; from pathlib import Path; from veilrec.runs.saved import open_model\n"
        "for out in sys.argv[1:]:\n"
        "    model = open_model(Path(out)); model.recommend([model.items[0]])\n"
        "    model.recommend_user(model.clients.users[0])\n"
        "print([name for name in ('torch', 'polars', 'matplotlib') if name in sys.modules])"
    )
    # veil-news reads words of news that come later, by polars
    for kinds, loaded in ((REQUESTS.keys() - {"news", "veil-news"}, []), (["veil-news"], ["polars"])):
        runs = [str(trained(kind)[1]) for kind in kinds]
        done = subprocess.run([sys.executable, "-c", code, *runs], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == str(loaded)


def log_of(extra):
    """One who has so many items, then forty people with all of them between them."""
    rows = [f"u{user},i{(user + 2 * k) % 40}" for user in range(40) for k in range(6)]
    return "\n".join(["user,item", *(f"somebody,i{7 * k % 40}" for k in range(extra)), *rows])


@pytest.mark.parametrize("method", ["dp-fedmf", "priv-fedmf-sub", "dp-fedncf"])
def test_but_for_the_numbers_a_released_model_is_the_same_whatever_a_user_has(method, tmp_path):
    told = []
    for extra in (3, 12):
        log, out = tmp_path / f"{extra}.csv", tmp_path / f"run-{extra}"
        log.write_text(log_of(extra))
        settings = ("cohort.size=20", "cohort.sampling=poisson")
        train(prepare(RunRequest(method, f"csv:{log}", protocol="loo-full", settings=settings, rounds=2)), out)
        told.append({path.name: outside(path) for path in (out / "model").iterdir()})
    assert told[0] == told[1]
    assert set(told[0]) == {"guarantee.json", "items.safetensors", "model.safetensors", "ranker.json"}
    metadata, shapes = told[0]["model.safetensors"]
    assert metadata == {"format": "1", "method": method, "kind": metadata["kind"]}
    assert all(name.startswith("weight.") or name == "sent" for name in shapes)


def outside(path):
    """All of a file but the numbers in its arrays; of the list of items everything."""
    if path.suffix == ".json" or path.name == "items.safetensors":
        return path.read_bytes()
    with safe_open(path, framework="numpy") as stored:
        shapes = {n: (stored.get_slice(n).get_dtype(), stored.get_slice(n).get_shape()) for n in stored.keys()}  # noqa: SIM118
        return stored.metadata() or {}, shapes


def test_items_that_no_round_was_about_come_last_in_a_saved_model_too(tmp_path):
    settings = ("cohort.size=20", "selection.threshold=0.3")
    request = RunRequest("fedmf-sub-rr", RATINGS, seed=1, protocol="loo-full", settings=settings, rounds=1)
    train(prepare(request), tmp_path / "run")
    files = load_model(tmp_path / "run" / "model")
    best = open_model(tmp_path / "run").recommend([files.items[0]], 60)
    unsent = {files.items[int(i)] for i in np.flatnonzero(~files.sent)}
    assert {entry.item for entry in best[-len(unsent) + 1 :]} <= unsent


@pytest.fixture
def copy(trained, tmp_path):
    return shutil.copytree(trained("popularity")[1], tmp_path / "run")


def test_a_damaged_or_odd_file_is_one_line(copy, trained):
    about = json.loads((copy / "model" / "ranker.json").read_text())
    other = (trained("news")[1] / "model" / "items.safetensors").read_bytes()
    names = ("ranker.json", "model.safetensors", "items.safetensors", "guarantee.json")
    for name, content, words in (
        *((name, content, "") for name in names for content in (None, b"", b"{}", b"not this")),
        ("ranker.json", json.dumps(about | {"kind": "oracle"}).encode(), "'oracle'"),
        ("ranker.json", json.dumps(about | {"format": 2}).encode(), "format 2"),
        ("items.safetensors", other, "60 items, and 200 ids"),
    ):
        path = copy / "model" / name
        whole = path.read_bytes()
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(BadInput, match=words or None) as refused:
            open_model(copy)
        assert "\n" not in str(refused.value)
        path.write_bytes(whole)
    (copy / "private" / "clients.safetensors").write_bytes(b"nothing")
    with pytest.raises(BadInput, match=r"clients.safetensors is damaged"):
        load_clients(copy)


def test_a_run_that_is_not_finished_has_no_model(copy, tmp_path):
    shutil.rmtree(copy / "model")
    with pytest.raises(BadInput, match="has no model yet.* --resume"):
        open_model(copy)
    with pytest.raises(BadInput, match="is no run of veilrec"):
        open_model(tmp_path / "nowhere")


def test_data_with_other_users_or_items_is_refused(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text(log_of(3))
    train(prepare(RunRequest("popularity", f"csv:{log}", protocol="loo-full")), tmp_path / "run")
    for changed, words in (
        (log_of(3).replace("somebody", "nobody"), "the users of .* are not those"),
        (log_of(3).replace("i39", "i99"), "the items of .* are not those"),
        (log_of(4), "has 244 rows and had 243"),
    ):
        log.write_text(changed)
        with pytest.raises(BadInput, match=words):
            evaluate_run(tmp_path / "run")


def test_the_best_are_those_of_a_stable_sort():
    generator = np.random.default_rng(1)
    for count in (1, 3, 7, 40) * 20:
        scores = generator.integers(0, 4, 30).astype(np.float32)  # many are equal
        scores[generator.integers(0, 30, 2)] = np.nan
        used = generator.choice(30, 5, replace=False).astype(np.int32)
        rest = [i for i in range(30) if i not in used]
        wanted = sorted(rest, key=lambda i: (np.isnan(scores[i]), -scores[i] if scores[i] >= 0 else 0.0, i))
        assert saved.best_of(scores, used, count, 0).items.tolist() == wanted[:count]


def test_whoever_joins_learns_from_what_was_liked_and_gets_nothing_that_was_used(tmp_path):
    prepared = prepare(RunRequest("ease", RATINGS, seed=1, protocol="holdout-users-liked"))
    train(prepared, tmp_path / "run")
    model, likes = open_model(tmp_path / "run"), prepared.split.liked
    clients, user = model.clients, int(prepared.split.test.users[0])
    liked, used = (set(rows.row(user).tolist()) for rows in (likes, clients.used))
    assert liked < used
    got = model.recommend_user(clients.users[user], 10)
    wanted = model.recommend([model.items[item] for item in likes.row(user).tolist()], 60)
    names = {model.items[item] for item in used}
    assert got == [best for best in wanted if best.item not in names][:10]
