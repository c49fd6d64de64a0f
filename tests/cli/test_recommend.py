"""`veilrec recommend` with the data gone, `--all`, and `--noise secure`, as a user runs them."""

import pytest

from tests.cli.running import refused, shown, told, veilrec
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.saved import open_model
from veilrec.runs.training import train

FILMS = "synthetic-ratings:users=60,items=50,mean_history=8,seed=3"
NEWS = "synthetic-news:users=60,news=200,days=3,seed=3"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose data is gone."""
    folder = tmp_path_factory.mktemp("gone")
    log = folder / "log.csv"
    log.write_text("\n".join(["user,item", *(f"u{u},i{(3 * u + k) % 30}" for u in range(60) for k in range(5))]))
    options = ("--data", f"csv:{log}", "--protocol", "loo-full", "--rounds", "2", "--set", "cohort.size=30")
    shown("train", "dp-fedmf", *options, "--noise", "secure", "--public-catalogue", "--out", folder / "run")
    log.unlink()
    return folder / "run"


def test_recommends_without_any_data(run, monkeypatch):
    monkeypatch.setattr("veilrec.data.datasets.load", None)
    known = told("recommend", run, "--user", "u1", "-k", "4")
    assert known["user"] == "u1"
    items = [entry["item"] for entry in known["recommendations"]]
    assert len(set(items) - {f"i{(3 + k) % 30}" for k in range(5)}) == 4
    assert told("recommend", run, "--user", " u1 ", "-k", "4") == known | {"user": " u1 "}
    new = told("recommend", run / "model", "--history", "i3,i4", "-k", "4")
    assert (new["user"], len(new["recommendations"])) == (None, 4)


def test_evaluating_needs_the_data_and_a_grown_log_is_to_be_learnt_from(run, tmp_path):
    assert "log.csv" in refused("evaluate", run)
    grown = tmp_path / "grown.csv"
    grown.write_text("\n".join(["user,item", *(f"u{u},i{(3 * u + k) % 40}" for u in range(60) for k in range(6))]))
    words = refused("evaluate", run, "--data", f"csv:{grown}")
    assert f"veilrec train dp-fedmf --data csv:{grown} --protocol loo-full --from {run}" in words


def test_all_users_go_into_a_file(run, tmp_path):
    done = veilrec("recommend", run, "--all", "--out", tmp_path / "best.csv", "-k", "3")
    assert (done.code, done.out) == (0, f"180 rows in {tmp_path / 'best.csv'}\n")
    rows = (tmp_path / "best.csv").read_text().splitlines()
    assert rows[0] == "user,rank,item,score"
    assert len(rows) == 181
    found = told("recommend", run, "--all", "--out", tmp_path / "best.jsonl")
    assert found == {"out": str(tmp_path / "best.jsonl"), "rows": 600}


def test_what_cannot_be_done_is_one_line(run):
    for line, words in (
        ("", "give either --user"),
        ("--user u1 --history i1", "give either --user"),
        ("--user u1 --all --out best.csv", "give either --user"),
        ("--user u1 --user u2", "--user is given 2 times"),
        ("--all", "--all and --out FILE go together"),
        ("--user u1 --out best.csv", "--all and --out FILE go together"),
        ("--all --out best.xlsx", "give a name with .csv, .parquet, .jsonl"),
        ("--all --out /proc/nowhere/best.csv", "cannot be"),
        ("--user u99", "no user 'u99'"),
        ("--user U1", "did you mean u1?"),
        ('--history "i1', "cannot be split"),
        ("--history i1 --history-file x", "give either --user"),
        ("--history-file /nowhere", "cannot be read"),
    ):
        assert words in refused("recommend", run, *line.split())


def test_unknown_items_are_named_and_the_rest_is_used(run, tmp_path):
    known = told("recommend", run, "--history", "i3,i4")
    line = ("recommend", run, "--history", ' i3,"a, b"', "--history", "i4,x")
    warned, said = veilrec(*line).err.splitlines()
    assert "can be read by everybody on this machine, in its list of processes: give a file" in warned
    assert said == "2 items that the model does not know: 'a, b', 'x'; the other 2 are used"
    assert told(*line) == known | {"unknown_items": ["a, b", "x"]}
    (tmp_path / "ids.txt").write_text("i3\na, b\n\ni4\n")
    found = told("recommend", run, "--history-file", tmp_path / "ids.txt")
    assert "list of processes" not in veilrec("recommend", run, "--history-file", tmp_path / "ids.txt").err
    assert found == known | {"unknown_items": ["a, b"]}
    nobody, strange = (("recommend", run, "--history", history, "-k", "3") for history in ("", "x"))
    assert "without a history the list is what the method gives to somebody new" in veilrec(*nobody).err
    words = "1 item that the model does not know: 'x'; none is left, as in an empty history"
    assert words in veilrec(*strange).err
    first, second = told(*nobody)["recommendations"], told(*strange)["recommendations"]
    assert first == second and len(first) == 3


def test_a_run_says_whether_it_may_be_published(run, tmp_path):
    assert "The folder model/ of the run, and nothing else of it" in shown("privacy", "show", run)
    assert told("privacy", "show", run)["publishable"] is True
    data = ("--data", "synthetic-ratings:users=60,items=150,seed=3", "--set", "cohort.size=30")
    options = ("train", "dp-fedmf", *data, "--rounds", "1", "--out", tmp_path / "run")
    said = shown(*options)
    assert "Not to be published: whoever knows the seed can draw the noise again" in said
    assert "May be published" not in said
    shown_again = shown("privacy", "show", tmp_path / "run")
    assert "Nothing of this run: whoever knows the seed can draw the noise again" in shown_again
    assert "its noise is 'seeded'" in refused(*options, "--noise", "secure", "--resume")
    secure = ("train", "dp-fedmf", *data, "--rounds", "3", "--noise", "secure", "--out", tmp_path / "secure")
    first = told(*secure)
    (tmp_path / "secure" / "result.json").unlink()
    again = told(*secure, "--resume")
    assert (again["weights_sha256"], again["publishable"]) == (first["weights_sha256"], True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of veil, which says what its lists were made of, and one that does not."""
    folder = tmp_path_factory.mktemp("runs")
    train(prepare(RunRequest("veil", FILMS, seed=1, protocol="loo-full", rounds=6)), folder / "films")
    train(prepare(RunRequest("veil", NEWS, seed=1, rounds=2, settings=("history=3",))), folder / "news")
    train(prepare(RunRequest("popularity", FILMS, seed=1, protocol="loo-full")), folder / "popularity")
    return {kind: folder / kind for kind in ("films", "news", "popularity")}


def test_a_list_says_what_it_was_made_of(runs):
    own = ["history", "order", "own weights", "content", "popularity"]
    for kind, count, uses, items, words in (
        ("films", 0, ["popularity", "content"], 0, "by how popular items are and by their content"),
        ("films", 1, ["history", "content", "popularity"], 1, "Ranked here by 1 item, with the weights of everybody."),
        ("films", 9, own, 9, "fitted to the latest 5 of them"),
        ("news", 0, ["appeal"], 0, "by what everybody likes of news (appeal), the same for everybody"),
        ("news", 2, ["history", "content", "appeal"], 2, "to 2 clicks, and by what everybody likes"),
        ("news", 5, ["history", "order", "content", "appeal"], 3, "to the latest 3 of 5 clicks"),
    ):
        line = ("recommend", runs[kind], "--history", ",".join(list(open_model(runs[kind]).items)[:count]))
        found = told(*line)["rests_on"]
        assert (found["uses"], found["items"]) == (uses, items)
        assert words in found["said"]
        assert found["said"] in shown(*line)
    nobody, strange = (told("recommend", runs["films"], "--history", history) for history in ("", "strange"))
    assert strange["rests_on"] == nobody["rests_on"]
    assert strange["unknown_items"] == ["strange"]
    assert "rests_on" not in told("recommend", runs["popularity"], "--history", "")


@pytest.mark.parametrize("kind", ["films", "news"])
def test_only_what_is_named_changes_the_list(runs, kind):
    model = open_model(runs[kind])
    lengths = model.clients.trained_on.lengths()
    user = int(lengths.argmax())
    line = ("recommend", runs[kind], "--user", model.clients.users[user])
    found = told(*line)["rests_on"]
    assert found["items"] == (min(3, lengths[user]) if kind == "news" else lengths[user])
    assert found["said"] in shown(*line)
    first = list(model.items)[:6]
    for history, other in ((first, first[::-1]), (first[:3], first[2::-1]), ([], ["nothing that it knows"])):
        before, after = ({best.item: best.score for best in model.recommend(own, 40)} for own in (history, other))
        made_of = model.rests_on(history)
        assert made_of is not None
        assert (before != pytest.approx(after, abs=1e-5)) == ("order" in made_of.uses)
