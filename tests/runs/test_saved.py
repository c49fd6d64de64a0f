"""A saved model: what is in its folder, and that it ranks without the data that it was trained on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from tests.methods.tiny_news import SMALL
from veilrec.core.errors import BadInput
from veilrec.runs import saved
from veilrec.runs.evaluation import evaluate_run
from veilrec.runs.model_files import RANKERS, load_devices, load_model
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.saved import open_model
from veilrec.runs.training import train

RATINGS = "synthetic-ratings:users=80,items=60,mean_history=8,seed=3"
NEWS = "synthetic-news:users=60,news=200,days=3,seed=3"
FEW = ("cohort.size=20",)
WITH_PEOPLE = (*FEW, "features.users=[group]", "model.embedding=4", "model.hidden=[6]", "local.steps=3")
REQUESTS = {
    "matrix-factorisation": RunRequest("fedmf", RATINGS, seed=1, protocol="loo-full", settings=FEW, rounds=2),
    "neumf": RunRequest("fedncf", RATINGS, seed=1, protocol="loo-full", settings=FEW, rounds=2),
    "least-squares": RunRequest("fcf", RATINGS, seed=1, protocol="loo-full", settings=FEW, rounds=2),
    "item-item": RunRequest("ease", RATINGS, seed=1, protocol="loo-full"),
    "popularity": RunRequest("popularity", RATINGS, seed=1, protocol="loo-full"),
    "neighbours": RunRequest("markov", RATINGS, seed=1, protocol="loo-full"),
    "self-attention": RunRequest("sasrec", RATINGS, seed=1, protocol="loo-full", settings=("dim=8",), rounds=1),
    "private-least-squares": RunRequest("dpals", RATINGS, seed=1, protocol="loo-full"),
    "gram": RunRequest("private-gram", RATINGS, seed=1, protocol="loo-full"),
    "veil": RunRequest("veil", RATINGS, seed=1, protocol="loo-full", settings=("people=20000",), rounds=6),
    "veil-news": RunRequest("veil", NEWS, seed=1, rounds=2),
    "random": RunRequest("random", RATINGS, seed=1, protocol="loo-full"),
    "features": RunRequest("privrec", RATINGS, seed=1, protocol="loo-full", settings=WITH_PEOPLE, rounds=2),
    "news": RunRequest("nrms", NEWS, seed=1, settings=SMALL, rounds=1),
}


@pytest.fixture(scope="module", params=REQUESTS)
def trained(request, tmp_path_factory):
    prepared = prepare(REQUESTS[request.param])
    out = tmp_path_factory.mktemp("runs") / request.param
    train(prepared, out)
    return request.param, prepared, out


def test_every_kind_is_tested_and_says_its_name(trained):
    kind, _, out = trained
    assert set(REQUESTS) == set(RANKERS)
    assert load_model(out / "model").ranker.kind == kind


def test_a_saved_model_scores_as_the_trainer_that_saved_it(trained):
    _, prepared, out = trained
    users = np.arange(10)
    ours, theirs = open_model(out).for_users, prepared.trainer.model()
    assert np.array_equal(ours.score_all(users), theirs.score_all(users))
    some = prepared.split.train.take(users)
    assert np.array_equal(ours.fold_in(some).score_all(users), theirs.fold_in(some).score_all(users))


def test_evaluating_gives_what_the_result_says(trained):
    _, _, out = trained
    result = json.loads((out / "result.json").read_text())
    again = evaluate_run(out)
    assert {name: result[name] for name in again if name != "data"} == {n: v for n, v in again.items() if n != "data"}


def test_nothing_that_was_used_is_recommended_and_all_users_get_what_each_gets(trained):
    _, prepared, out = trained
    model, pairs = open_model(out), prepared.population.interactions.pairs()
    everybody = list(model.recommend_everybody(5))
    assert [best.user for best in everybody] == list(range(prepared.population.n_users))
    for best in everybody[::9]:
        assert not set(best.items) & set(pairs.row(best.user))
        alone = model.recommend_user(prepared.population.users[best.user], 5)
        assert [entry.item for entry in alone] == [entry.item for entry in model.named(best)]


def test_the_folder_alone_is_enough_for_anybody(trained, tmp_path):
    _, _, out = trained
    shutil.copytree(out / "model", tmp_path / "handed")
    handed = open_model(tmp_path / "handed")
    history = [handed.items[4], handed.items[2]]
    best = handed.recommend(history, 6)
    assert best == open_model(out).recommend(history, 6)
    assert len({entry.item for entry in best} - set(history)) == 6
    assert handed.guarantee == open_model(out).guarantee
    with pytest.raises(BadInput, match=r"knows no users.* give --history"):
        handed.recommend_user("u01")


def test_somebody_new_gets_a_list_and_unknown_items_are_passed_over(trained):
    _, _, out = trained
    model = open_model(out)
    new = model.recommend([], 6)
    assert len({entry.item for entry in new}) == 6
    assert model.recommend(["never seen"], 6) == new
    some = [model.items[4], model.items[2]]
    assert model.recommend([some[0], "never seen", f" {some[1]} ", some[0]], 6) == model.recommend(some, 6)
    assert model.split_history([some[0], "x", "x", f" {some[0]}"]) == ([some[0]], ["x"])


def log_of(extra: int) -> str:
    """Forty people with all items between them, and one who has so many."""
    rows = [f"u{user},i{(user + 2 * k) % 40}" for user in range(40) for k in range(6)]
    return "\n".join(["user,item", *rows, *(f"somebody,i{k}" for k in range(extra))])


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
    header = told[0]["model.safetensors"]
    assert header[0] == {"format": "1", "method": method, "kind": header[0]["kind"]}
    assert all(name.startswith("weight.") or name == "sent" for name in header[1])


def outside(path: Path) -> tuple[dict[str, str], dict[str, object]]:
    """All of a file but the numbers in its arrays."""
    if path.suffix == ".json":
        return {"text": path.read_text()}, {}
    with safe_open(path, framework="numpy") as stored:
        shapes = {n: (stored.get_slice(n).get_dtype(), stored.get_slice(n).get_shape()) for n in stored.keys()}  # noqa: SIM118
        return stored.metadata() or {}, shapes


def test_items_that_no_round_was_about_come_last_in_a_saved_model_too(tmp_path):
    settings = ("cohort.size=20", "selection.threshold=0.3")
    prepared = prepare(RunRequest("fedmf-sub-rr", RATINGS, seed=1, protocol="loo-full", settings=settings, rounds=1))
    train(prepared, tmp_path / "run")
    files = load_model(tmp_path / "run" / "model")
    best = open_model(tmp_path / "run").recommend([files.items[0]], 60)
    unsent = {files.items[int(i)] for i in np.flatnonzero(~files.sent)}
    assert {entry.item for entry in best[-len(unsent) + 1 :]} <= unsent


def test_a_model_of_no_torch_opens_without_it(trained):
    kind, _, out = trained
    if kind == "news":
        pytest.skip("this one is torch's")
    code = (
        "import sys; from pathlib import Path; from veilrec.runs.saved import open_model\n"
        f"model = open_model(Path({str(out)!r})); model.recommend([model.items[0]])\n"
        "model.recommend_user(model.devices.users[0])\n"
        "print([name for name in ('torch', 'polars', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    reads_texts = ["polars"] if kind == "veil-news" else []  # words of news that come later
    assert done.stdout.strip() == str(reads_texts)


@pytest.fixture
def copy(tmp_path, tmp_path_factory):
    out = tmp_path / "run"
    train(prepare(REQUESTS["popularity"]), out)
    return out


@pytest.mark.parametrize("name", ["ranker.json", "model.safetensors", "items.safetensors", "guarantee.json"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"not this"])
def test_a_damaged_model_is_one_line(copy, name, content):
    path = copy / "model" / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(BadInput) as refused:
        open_model(copy)
    assert "\n" not in str(refused.value)


def test_models_of_another_kind_format_or_size_are_refused(copy):
    path = copy / "model" / "ranker.json"
    about = json.loads(path.read_text())
    for change, words in (({"kind": "oracle"}, "'oracle'"), ({"format": 2}, "format 2")):
        path.write_text(json.dumps(about | change))
        with pytest.raises(BadInput, match=words):
            open_model(copy)
    path.write_text(json.dumps(about))
    train(
        prepare(RunRequest("popularity", "synthetic-ratings:users=30,items=50,seed=4", protocol="loo-full")),
        copy.with_name("other"),
    )
    shutil.copy(copy.with_name("other") / "model" / "items.safetensors", copy / "model")
    with pytest.raises(BadInput, match="60 items, and 50 ids"):
        open_model(copy)


def test_a_damaged_file_of_devices_is_one_line(copy):
    (copy / "private" / "devices.safetensors").write_bytes(b"nothing")
    with pytest.raises(BadInput, match=r"devices.safetensors is damaged"):
        load_devices(copy)


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
    log.write_text(log_of(3).replace("somebody", "nobody"))
    with pytest.raises(BadInput, match="the users of .* are not those"):
        evaluate_run(tmp_path / "run")
    log.write_text(log_of(3).replace("i39", "i99"))
    with pytest.raises(BadInput, match="the items of .* are not those"):
        evaluate_run(tmp_path / "run")
    log.write_text(log_of(4))
    with pytest.raises(BadInput, match="has 244 rows and had 243"):
        evaluate_run(tmp_path / "run")


@pytest.mark.parametrize("count", [1, 3, 7, 40])
def test_the_best_are_those_of_a_stable_sort(count):
    generator = np.random.default_rng(count)
    for _ in range(20):
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
    devices, user = model.devices, int(prepared.split.test.users[0])
    liked, used = (set(rows.row(user).tolist()) for rows in (likes, devices.used))
    assert liked < used
    got = model.recommend_user(devices.users[user], 10)
    wanted = model.recommend([model.items[item] for item in likes.row(user).tolist()], 60)
    names = {model.items[item] for item in used}
    assert got == [best for best in wanted if best.item not in names][:10]
