"""A client with a release: what leaves it, what it costs, and what it does when something is missing."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from tests.harm import harmed, refused
from veilrec.client.recommender import NotConnected, QueryBudget, ServerAway, ServerLink
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.privacy.ledger import LedgerError
from veilrec.runs.release import ReleaseOptions, make_release
from veilrec.runs.release_model import DEFAULT_OFFERS, beyond_budget, open_client, texts_of
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.training import train
from veilrec.wire.queries import Pool, PoolInfo, QueryShape, decode
from veilrec.wire.signing import Rotation, new_key

NEWS = "synthetic-news:users=60,news=200,days=3,seed=3"


class Server(ServerLink):
    """Remembers what it was sent, and answers with the first items."""

    def __init__(self, release, *, away=None):
        self.release, self.away = release, away
        self.sent = []

    def best(self, query, k):
        self._take(query, k)
        texts = texts_of(self.release)
        return [{"id": texts.ids[row], "title": texts.titles[row], "score": -float(row)} for row in range(k)]

    def pool_for(self, query, k):
        self._take(query, k)
        texts, vectors = texts_of(self.release), self.release.arrays("vectors.safetensors")["items"]
        spec = PoolInfo("x 1", k, whole=True, exact=True)
        return Pool(spec, list(texts.ids), list(texts.titles), [""] * len(vectors), None, vectors)

    def _take(self, query, k):
        if isinstance(self.away, NotConnected):
            raise self.away
        self.sent.append((query, k))  # it has arrived, whatever comes back
        if self.away is not None:
            raise self.away


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(prepare(RunRequest("privaterec", NEWS, seed=1, noise="secure", rounds=2)), folder)
    return folder


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    return new_key(tmp_path_factory.mktemp("keys") / "a.key")


@pytest.fixture(scope="module")
def release(run, key, tmp_path_factory):
    return make_release(
        run, tmp_path_factory.mktemp("releases") / "release", key, ReleaseOptions(offers=(*DEFAULT_OFFERS, "plain"))
    )


def opened(release, state, server=None, **more):
    return open_client(state, release, server=server, **more)


def ids_of(release, *rows):
    return [texts_of(release).ids[row] for row in rows]


def test_sending_nothing_sends_nothing(release, tmp_path):
    server = Server(release)
    client = opened(release, tmp_path, server)
    client.read(*ids_of(release, 1, 2, 3))
    for mode in ("none-sent", "nobody"):
        answer = client.recommend(5, mode)
        assert answer.sent is None and len(answer.items) == 5
    assert server.sent == [] and all(report.messages == 0 for report in client.spent())


@pytest.mark.parametrize("mode", ["interest", "attention", "pooled"])
def test_a_query_is_charged_once_and_then_repeated(release, tmp_path, mode):
    server = Server(release)
    client = opened(release, tmp_path, server, allowance=QueryBudget(history=6.0, click=12.0))
    first = client.recommend(5, mode)
    client.read(*ids_of(release, 1, 2))  # a query that changed now would announce the clicks
    client.close()
    again = opened(release, tmp_path, server)
    second = again.recommend(5, mode)
    assert first.sent == second.sent is not None and [sent for sent, _ in server.sent] == [first.sent] * 2
    assert {k for _, k in server.sent} == {server.sent[0][1]}
    assert {report.messages for report in again.spent()} <= {0, 1}
    assert sum(report.messages for report in again.spent()) >= 1


def test_the_answer_has_nothing_that_was_read_and_the_question_does_not_tell_how_much_was(release, tmp_path):
    asked = {}
    for name, rows in (("little", ()), ("much", tuple(range(60)))):
        server = Server(release)
        client = opened(release, tmp_path / name, server)
        client.read(*ids_of(release, *rows))
        answer = client.recommend(8, "pooled")
        assert not {item.id for item in answer.items} & set(ids_of(release, *rows)) and len(answer.items) == 8
        ((query, k),) = server.sent
        asked[name] = (len(query), k)
    assert asked["little"] == asked["much"]


def test_a_pool_is_ranked_here_by_the_exact_history(release, tmp_path):
    client = opened(release, tmp_path, Server(release))
    client.read(*ids_of(release, 4, 9, 11))
    by_itself = client.recommend(6, "none-sent")
    asked = client.recommend(6, "interest")
    assert [item.id for item in asked.items] == [item.id for item in by_itself.items] and asked.ranked_by == "client"


def test_without_budget_the_list_is_the_same_for_everybody(release, tmp_path):
    server = Server(release)
    client = opened(release, tmp_path, server, allowance=QueryBudget(history=0.5, click=0.5))
    client.read(*ids_of(release, 4, 9))
    answer = client.recommend(5, "interest")
    assert (answer.mode, answer.sent, server.sent) == ("nobody", None, []) and "more than the whole" in answer.notes[0]
    assert [item.id for item in answer.items] == [item.id for item in client.recommend(5, "nobody").items]


def test_a_query_that_never_fits_into_the_budget_is_told_apart_from_a_spent_one(run, key, tmp_path):
    wishes = ReleaseOptions(offers=("attention:10", "interest:1", "pooled:12:1e-6", "plain"))
    release = make_release(run, tmp_path / "release", key, wishes)
    assert [line.partition(":")[0] for line in beyond_budget(release)] == ["attention", "pooled"]
    assert "(10, 0)" in beyond_budget(release)[0] and "(5, 1e-06)" in beyond_budget(release)[0]
    client = opened(release, tmp_path / "state", Server(release))
    answer = client.recommend(5, "attention")
    assert answer.mode == "nobody" and client.server.sent == []
    assert "spent" not in answer.notes[0] and "more than the whole history budget" in answer.notes[0]
    roomy = opened(release, tmp_path / "roomy", Server(release), allowance=QueryBudget(history=10.0, click=40.0))
    assert {roomy.recommend(5, mode).mode for mode in ("attention", "pooled")} == {"attention", "pooled"}


def test_a_server_that_cannot_be_reached_is_sent_nothing_and_not_needed(release, tmp_path):
    server = Server(release, away=NotConnected("it is away"))
    client = opened(release, tmp_path, server)
    answer = client.recommend(5, "interest")
    assert (answer.mode, answer.ranked_by, answer.sent, server.sent) == ("none-sent", "client", None, [])
    assert answer.guarantee is not None and answer.guarantee.line() in answer.notes[0]
    assert "it is away: nothing was sent" in answer.notes[0] and len(answer.items) == 5


@pytest.mark.parametrize("mode", ["interest", "attention", "pooled", "plain"])
def test_a_query_without_a_usable_answer_is_told_with_its_cost(release, tmp_path, mode):
    server = Server(release, away=ServerAway("it refuses (503)"))
    client = opened(release, tmp_path, server, allowance=QueryBudget(history=6.0, click=12.0))
    answer = client.recommend(5, mode)
    ((arrived, _),) = server.sent
    assert (answer.sent, answer.mode, answer.ranked_by) == (arrived, mode, "client")
    assert answer.guarantee is not None and answer.guarantee.line() in answer.notes[0]
    assert f"it refuses (503): a query of {len(arrived)} bytes was sent" in answer.notes[0]
    for report in client.spent():
        assert f"{100 * report.remaining:.0f} % of the {report.budget.unit} budget" in answer.notes[0]
    assert [item.id for item in answer.items] == [item.id for item in client.recommend(5, "none-sent").items]


def test_the_exact_vector_ends_every_promise(release, tmp_path):
    server = Server(release)
    client = opened(release, tmp_path, server)
    client.read(*ids_of(release, 4))
    answer = client.recommend(5, "plain")
    dim = release.manifest["sizes"]["dim"]
    assert answer.guarantee is not None and answer.guarantee.basis == "none"
    assert decode(server.sent[0][0], QueryShape("vector", dim)).shape == (dim,)
    assert all(report.spent.basis == "none" for report in client.spent())


def test_an_unprotected_query_is_sent_only_if_the_operator_offers_it(run, key, tmp_path):
    release = make_release(run, tmp_path / "shy", key, ReleaseOptions(offers=DEFAULT_OFFERS))
    assert [offer["mode"] for offer in release.manifest["offers"]] == ["interest", "attention", "pooled"]
    server = Server(release)
    client = opened(release, tmp_path / "client", server)
    with pytest.raises(BadInput, match="does not offer plain: it offers interest, attention, pooled, none-sent"):
        client.recommend(5, "plain")
    assert not server.sent and all(report.spent.basis == "proven" for report in client.spent())


def test_what_is_asked_for_in_a_way_that_there_is_not_is_refused(release, tmp_path):
    client = opened(release, tmp_path)
    for mode, line in (("interest", "--server"), ("unheard", "unheard")):
        with pytest.raises(BadInput, match=line):
            client.recommend(5, mode)
    with pytest.raises(BadInput, match="at least one"):
        client.recommend(0)


def test_forgetting_leaves_the_ledger(release, tmp_path):
    client = opened(release, tmp_path, Server(release))
    client.read(*ids_of(release, 4))
    client.recommend(5, "interest")
    client.forget()
    assert (client.history.items(), client.spent()[0].messages) == ([], 1)


def test_a_client_never_goes_back_takes_no_strangers_and_follows_a_rotation(run, key, tmp_path):
    old = make_release(run, tmp_path / "old", key, ReleaseOptions())
    newer = make_release(run, tmp_path / "newer", key, ReleaseOptions(version=2))
    other = new_key(tmp_path / "b.key")
    stranger = make_release(run, tmp_path / "stranger", other, ReleaseOptions(version=3))
    follower = make_release(
        run, tmp_path / "follower", other, ReleaseOptions(version=4), [Rotation.made(key, other.public)]
    )
    state = tmp_path / "state"
    opened(old, state).close()
    opened(newer, state).close()
    with pytest.raises(BadInput, match="never goes back"):
        opened(old, state)
    with pytest.raises(BadInput, match="not handed over"):
        opened(stranger, state)
    opened(follower, state).close()
    with pytest.raises(BadInput, match="not handed over"):
        opened(make_release(run, tmp_path / "late", key, ReleaseOptions(version=5)), state)


def test_a_client_lies_in_a_folder_of_its_own_is_not_half_made_and_gets_its_budget_once(release, tmp_path):
    (tmp_path / "runs" / "first").mkdir(parents=True)
    with pytest.raises(BadInput, match="holds other things and no client"):
        opened(release, tmp_path / "runs")
    with pytest.raises(BadInput):
        opened(release, tmp_path / "new", allowance=QueryBudget(history=float("nan")))
    assert [path.name for path in tmp_path.rglob("*")] == ["runs", "first"]
    opened(release, tmp_path / "new", allowance=QueryBudget(history=1.0)).close()
    with pytest.raises(BadInput, match="never raises"):
        opened(release, tmp_path / "new", allowance=QueryBudget(history=100.0))


def test_a_ledger_or_key_that_is_missing_releases_nothing(release, tmp_path):
    opened(release, tmp_path).close()
    (tmp_path / "client.key").write_bytes(bytes(32))
    with pytest.raises(VeilrecError):
        opened(release, tmp_path, Server(release)).recommend(5, "interest")
    opened(release, tmp_path / "second").close()
    (tmp_path / "second" / "ledger.sqlite.seq").unlink()
    with pytest.raises(LedgerError):
        opened(release, tmp_path / "second", Server(release)).recommend(5, "interest")


def test_no_file_of_the_client_shows_what_was_read(release, tmp_path):
    """A name of four letters stands in sealed bytes by chance once in some hundred tries, two of them in 10,000."""
    client = opened(release, tmp_path, Server(release))
    read = ids_of(release, *range(100))
    client.read(*read)
    for mode in ("interest", "attention", "pooled"):
        client.recommend(5, mode)
    client.close()
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert len([item for item in read if item.encode() in content]) <= 1


def test_an_unsound_offer_of_a_release_is_refused(release, tmp_path):
    """The noise follows from the promise; whatever scale stands beside it is not looked at."""
    quiet = [offer | {"scale": 1e-9, "sigma": 1e-9} for offer in release.manifest["offers"]]
    forged = replace(release, manifest=dict(release.manifest) | {"offers": quiet})
    server = Server(release)
    client = opened(forged, tmp_path, server, allowance=QueryBudget(history=6.0))
    told = [np.frombuffer(client.recommend(5, "attention").sent or b"", "<f4", offset=7)]
    assert np.abs(told[0]).max() > 0.01 and abs(float(told[0].sum()) - 1.0) > 1e-6


def test_a_harmed_file_of_a_client_gives_one_line_and_never_a_second_draw_or_a_fresh_budget(release, tmp_path):
    state, older = tmp_path / "me", tmp_path / "older"
    with opened(release, state) as client:
        client.read(*ids_of(release, 1))
    shutil.copytree(state, older)
    with opened(release, state, Server(release)) as client:
        client.read(*ids_of(release, 2, 3))
        sent, left = client.recommend(5, "interest").sent, remaining(client)
    assert all(path.stat().st_mode & 0o077 == 0 for path in (state, *state.rglob("*")))
    went_on = set()
    for name, harm, work in harmed(state, older, tmp_path / "work"):
        server = Server(release)

        def ask(work=work, server=server):
            with opened(release, work, server) as client:
                return client.recommend(5, "interest").sent, remaining(client)

        line, again = refused(ask)
        assert len(server.sent) == (line is None), (name, harm)
        if again is not None:
            went_on.add((name, harm))
            assert again == (sent, left) or all(np.less(again[1], left)), (name, harm)  # another draw is paid for
    # a torn slot leaves the other one; a mirror may be one change behind; of an older database it knows what was spent
    assert went_on == {("ledger.sqlite.seq", "torn"), ("ledger.sqlite.seq", "put back"), ("ledger.sqlite", "put back")}


def remaining(client):
    return [report.remaining for report in client.spent()]
