"""`veilrec release` and `veilrec query` as they are typed."""

import shutil

import pytest

from tests.cli.running import refused, shown, told, veilrec
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.training import train

RATINGS = "synthetic-ratings:users=80,items=60,mean_history=8,seed=3"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(prepare(RunRequest("private-popularity", RATINGS, seed=1, protocol="loo-full", noise="secure")), folder)
    return folder


@pytest.fixture
def films(run, tmp_path):
    """A release, and its key beside it."""
    assert told("release", run, "--out", tmp_path / "films")["protected"] is True
    return tmp_path / "films"


def ids(*words):
    return [item["id"] for item in told("query", *words)["items"]]


def test_a_release_is_checked_stated_and_asked(run, films, tmp_path):
    assert (tmp_path / "films.key").stat().st_mode & 0o777 == 0o600
    assert told("release", "verify", films, "--key", tmp_path / "films.key.pub")["protected"] is True
    assert "yes" in shown("release", "verify", films)
    answer = told("query", films, "-k", "3")
    assert (answer["mode"], answer["sent_bytes"], len(answer["items"])) == ("none-sent", 0, 3)
    read = [item["id"] for item in answer["items"]]
    assert not set(ids(films, "-k", "3", "--history", ",".join(read))) & set(read)
    (tmp_path / "read.txt").write_text(f"{read[0]}\n\n{read[1]}\nnobody-knows\n")
    assert not {*read[:2]} & {*ids(films, "--history", tmp_path / "read.txt")}
    from_file = veilrec("query", films, "--history", tmp_path / "read.txt").err
    assert "nobody-knows" in from_file and "list of processes" not in from_file
    assert "list of processes" in veilrec("query", films, "--history", read[0]).err
    ours, theirs = (told("privacy", "show", place) for place in (films, run))
    assert ours["publishable"] is True
    assert (ours["summary"], ours["guarantee"]["epsilon"]) == (theirs["summary"], theirs["guarantee"]["epsilon"])
    shown("privacy", "show", films, "--html", tmp_path / "privacy.html")
    assert "private-popularity" in (tmp_path / "privacy.html").read_text()


def test_the_second_release_is_version_2_and_follows_the_first(run, films, tmp_path):
    shutil.copytree(films, tmp_path / "first")
    assert told("release", "make", run, "--out", films)["version"] == 2
    assert told("release", "verify", films, "--after", tmp_path / "first")["version"] == 2
    assert "never goes back" in refused("release", "verify", tmp_path / "first", "--after", films)


def test_keys_are_made_and_hand_over(run, tmp_path):
    old, new, out = tmp_path / "old.key", tmp_path / "new.key", tmp_path / "films"
    shown("release", "keygen", old)
    made = told("release", "keygen", new, "--rotates", old)
    shown("release", run, "--out", out, "--key", old)
    shown("release", run, "--out", out, "--key", new, "--rotation", made["rotation"])
    assert told("release", "verify", out, "--key", f"{old}.pub")["key"] == made["key"]
    (tmp_path / "odd").write_text("[]")
    assert "rotation" in refused("release", run, "--out", out, "--key", new, "--rotation", tmp_path / "odd")


def test_a_release_whose_noise_is_seeded_promises_nothing_and_says_so_first(tmp_path):
    train(prepare(RunRequest("private-popularity", RATINGS, seed=1, protocol="loo-full")), tmp_path / "run")
    made = told("release", tmp_path / "run", "--out", tmp_path / "out", "--unprotected")
    assert made["guarantee"].startswith("nothing as it lies here (whoever knows the seed can draw the noise again")
    assert "without that it would be (" in made["guarantee"]
    assert "nothing as it lies here" in (tmp_path / "out" / "model-card.md").read_text()
    for folder in ("run", "out"):
        statement = told("privacy", "show", tmp_path / folder)
        assert statement["plain"].startswith("No guarantee as it is: whoever knows the seed can draw")
        assert "there would be: (" in statement["summary"]


def test_what_is_not_publishable_is_refused_before_a_key_is_made(tmp_path):
    train(prepare(RunRequest("popularity", RATINGS, seed=1, protocol="loo-full")), tmp_path / "run")
    release = ("release", tmp_path / "run", "--out", tmp_path / "out")
    assert "--unprotected" in refused(*release)
    assert not (tmp_path / "out.key").exists()
    assert "NO" in shown(*release, "--unprotected")
    assert "UNPROTECTED" in veilrec("query", tmp_path / "out").err
    assert "no release" in refused("query", tmp_path)
    assert "no run" in refused("release", tmp_path / "none", "--out", tmp_path / "none-out")


def test_a_client_keeps_its_history_and_can_forget_it(films, tmp_path):
    first, me = ids(films), tmp_path / "me"
    shown("query", films, "--state", me, "--history", first[0], "--budget", "2")
    assert first[0] not in ids(films, "--state", me)
    assert ids(films, "--state", me, "--forget") == first


def test_an_offer_that_clients_cannot_pay_for_is_warned_of(tmp_path):
    train(prepare(RunRequest("fedmf", RATINGS, seed=1, protocol="loo-full", rounds=1)), tmp_path / "run")
    words = ("release", tmp_path / "run", "--out", tmp_path / "films", "--unprotected", "--offer")
    told_of = " ".join(veilrec(*words, "interest:20").err.split())
    terms = "per history (replace-one)"
    assert f"Offer interest: one query is charged (20, 0)-DP {terms}, per message, trusting: nobody, proven" in told_of
    assert f"clients allow (5, 1e-06)-DP {terms} for one release, (20, 1e-06) in its lifetime" in told_of
    assert "Offer interest: one" not in veilrec(*words, "interest:1").err
