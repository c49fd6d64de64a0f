"""The hot route: the same items as by hand, for every way of telling."""

import asyncio
import json
import threading

import numpy as np
import pytest

from tests.serving.toys import DIM, INTERESTS, OFFERED, POOLED, TOKEN
from veilrec.privacy.mechanisms.attention import normalise
from veilrec.serving.requests import MAX_K, RequestRefused
from veilrec.serving.service import RecommendRoute
from veilrec.wire.queries import QueryShape, encode, read_pool

ALPHA = [0.2, 0.5, 0.3]
BYTES = {"content-type": "application/octet-stream"}


def _by_hand(ask, user, k=10):
    release = ask.service.release
    scores = release.arrays("vectors.safetensors")["items"] @ np.asarray(user, np.float32)
    return [f"n{number}" for number in np.argsort(-scores, kind="stable")[:k]]


def _ids(answer):
    assert answer.status == 200, answer.body
    return [item["id"] for item in answer.json["items"]]


def test_every_serving_mode_in_json_and_in_bytes(ask):
    serving = ask.service.release.arrays("serving.safetensors")
    interests, chances = serving["interests"], serving["chances"]
    vector, told = np.linspace(-1, 1, DIM).astype(np.float32), np.array([0.4, -0.2], np.float32)
    noisy = np.array([0.9, -0.4, 0.3], np.float32)
    expected = (told - serving["pooled.told_mean"]) @ serving["pooled.slope"] + serving["pooled.mean"]
    for body, user in (
        ({"alpha": ALPHA}, np.array(ALPHA) @ interests),
        ({"interest": 2}, chances[2] @ interests),
        ({"vector": vector.tolist()}, vector),
        ({"told": told.tolist()}, expected),
        ({}, serving["nobody"]),
    ):
        assert _ids(ask("POST", "/v1/recommend", body)) == _by_hand(ask, user), body
    for kind, size, numbers, user in (
        ("attention", INTERESTS, noisy, normalise(noisy.astype(np.float64), "simplex") @ interests),
        ("interest", INTERESTS, np.array([1.0], np.float32), chances[1] @ interests),
        ("vector", DIM, vector, vector),
        ("pooled", POOLED, told, expected),
    ):
        query = encode(numbers, QueryShape(kind, size))
        assert _ids(ask("POST", "/v1/recommend?k=4", query, BYTES)) == _by_hand(ask, user, 4), kind


def test_the_answer_says_what_it_is(ask):
    answer = ask("POST", "/v1/recommend", {"alpha": ALPHA, "k": 3}, {"content-type": "application/json; charset=utf-8"})
    assert answer.json["release"] == {"name": "toy", "version": 1}
    assert [set(item) for item in answer.json["items"]] == [{"id", "title", "category", "score"}] * 3
    scores = [item["score"] for item in answer.json["items"]]
    assert scores == sorted(scores, reverse=True)
    assert answer.headers["cache-control"] == "no-store"
    assert "set-cookie" not in answer.headers


def test_categories_and_more_than_there_is(ask):
    for told in ({"alpha": ALPHA}, {"vector": [1.0] * DIM}, {}):
        assert len(_ids(ask("POST", "/v1/recommend", {**told, "k": 1000}))) == 40
        answer = ask("POST", "/v1/recommend", {**told, "categories": ["sport"], "k": 100})
        assert [item["category"] for item in answer.json["items"]] == ["sport"] * 10
        assert ask("POST", "/v1/recommend", {**told, "categories": ["nothing"]}).status == 400
        assert ask("POST", "/v1/recommend", {**told, "region": "nowhere"}).status == 400


def test_a_pool_of_the_best(ask):
    query = encode(np.array([1.0], np.float32), QueryShape("interest", INTERESTS))
    pool = read_pool(ask("POST", "/v1/recommend?k=7&form=pool", query, BYTES).body)
    assert pool.ids == _ids(ask("POST", "/v1/recommend", {"interest": 1, "k": 7}))
    assert (pool.about.k, pool.about.whole, pool.about.exact) == (7, False, False)
    assert pool.scores.shape == (7, INTERESTS)
    same = ask("POST", "/v1/recommend?form=pool", {"interest": 1, "k": 7})
    assert read_pool(same.body).ids == pool.ids


ODD_BODIES = (
    (b'{"alpha": [0.2, 0.5, NaN]}', "no JSON"),
    (b'{"alpha": [0.2, 0.5, Infinity]}', "no JSON"),
    (b'{"alpha": [0.2, 0.5, 1e999]}', "out of range"),
    (b'{"alpha": [0.2, 0.9, -0.1]}', ">= 0"),
    (b'{"alpha": [0.2, 0.5, 0.4]}', "add up to"),
    (b'{"alpha": [0.5, 0.5]}', "give 3"),
    (b'{"alpha": []}', "length >= 1"),
    (b'{"alpha": ["0.2", 0.5, 0.3]}', "Expected `float`"),
    (b'{"interest": 3}', "no interest 3"),
    (b'{"interest": -1}', ">= 0"),
    (b'{"interest": 1.5}', "Expected `int"),
    (b'{"vector": [1, 2]}', "give 6"),
    (b'{"vector": [1e300, 0, 0, 0, 0, 0]}', "<= 1000000.0"),
    (b'{"told": [1]}', "give 2"),
    (b'{"alpha": [0.2, 0.5, 0.3], "interest": 1}', "several"),
    (b'{"k": 0}', ">= 1"),
    (b'{"k": 1001}', "<= 1000"),
    (b'{"user": "me"}', "unknown field"),
    (b'{"region": "\xff"}', "no JSON"),
    (b'{"region": "\xed\xa0\x80"}', "no JSON"),
    (b"[1, 2]", "Expected `object`"),
    (b'{"alpha": ' + b"[" * 30000, "Expected `float`"),
    (b"[" * 60000, "Expected `object`"),
    (b'{"x":' * 10000, "unknown field"),
    (b"null", "Expected `object`"),
    (b"{", "no JSON"),
    (b"{}{}", "no JSON"),
    (b"\xff\xfe{}", "no JSON"),
)
ODD_QUERIES = (
    (b"VRQ1", "no query"),
    (b"VRQ1\x09\x01\x00\x00\x00", "no query"),
    (b"XXXX\x04\x01\x00\x00\x00", "does not start"),
    (b"VRQ1\x04\x01\x00\x09\x00", "interest 9"),
    (b"VRQ1\x04\x01\x00\x01\x00\x00", "bytes"),
    (b"VRQ1\x00\x06\x00" + b"\x00\x00\x80\x7f" * 6, "finite"),
    (b"VRQ1\x00\x06\x00" + b"\xff\xff\x7f\x7f" * 6, "beyond"),
    (b"VRQ1\x03\x04\x00" + bytes(16), "no query"),
)
ODD_OPTIONS = ("k=0", "k=1001", "k=x", "form=x", "user=1", "k", "k=1&k=%ff", "a=1&" * 200)


def test_odd_requests_are_refused_in_one_line(ask):
    query = encode(np.array([1.0], np.float32), QueryShape("interest", INTERESTS))
    cases = [("", body, {"content-type": "application/json"}, part) for body, part in ODD_BODIES]
    cases += [("", odd, BYTES, part) for odd, part in ODD_QUERIES]
    cases += [(f"?{options}", query, BYTES, "query string") for options in ODD_OPTIONS]
    cases += [("?k=3", b"{}", {"content-type": "application/json"}, "query string")]  # it stands in the body
    for options, body, headers, part in cases:
        answer = ask("POST", f"/v1/recommend{options}", body, headers)
        assert answer.status == 400, (options, body[:80], answer.body)
        assert part in answer.json["error"] and "\n" not in answer.json["error"], (options, body[:80], part)
    assert ask("POST", "/v1/recommend", {}, {"content-type": "text/plain"}).status == 415


def test_the_body_has_a_cap_whatever_it_says_and_may_never_come(ask):
    large = json.dumps({"region": "x" * 70000}).encode()
    assert ask("POST", "/v1/recommend", large).status == 413
    assert ask("POST", "/v1/recommend", b"{}", {"content-length": "65537"}).status == 413
    assert ask("POST", "/v1/recommend", b"{}", {"content-length": "x"}).status == 413
    parts = [b" " * 1000 for _ in range(40_000)]  # 40 MB in pieces
    answer = ask("POST", "/v1/recommend", parts)
    assert (answer.status, answer.headers["connection"]) == (413, "close")
    assert ask.left > 39_900  # of the pieces were never taken
    ask("POST", "/v1/recommend", leaves=True)
    assert ask.log()[-1]["status"] == 499  # a client that leaves is not an error


def test_a_model_without_interests(service):
    ask = service(family="factors")
    vector = [1.0] * DIM
    assert _ids(ask("POST", "/v1/recommend", {"vector": vector})) == _by_hand(ask, vector)
    assert len(_ids(ask("POST", "/v1/recommend", {}))) == 10
    for body in ({"alpha": [1.0]}, {"interest": 0}, {"told": [1.0]}):
        assert ask("POST", "/v1/recommend", body).status == 400
    pool = read_pool(ask("GET", "/v1/pool").body)
    assert pool.scores is None and len(pool) == 40


def test_a_release_that_ranks_on_clients_only(service):
    ask = service(family="ranker")
    for method, path in (("POST", "/v1/recommend"), ("GET", "/v1/pool")):
        answer = ask(method, path, {} if method == "POST" else b"")
        assert answer.status == 409
        assert "ranks on clients only" in answer.json["error"]
    assert [ask("GET", path, token=TOKEN).status for path in ("/readyz", "/v1/release", "/metrics")] == [200] * 3


def test_a_scan_of_many_items_is_done_beside_the_loop(ask, monkeypatch):
    monkeypatch.setattr("veilrec.serving.service._LIGHT", 0)
    vector = [1.0] * DIM
    assert _ids(ask("POST", "/v1/recommend", {"vector": vector})) == _by_hand(ask, vector)
    monkeypatch.setattr("veilrec.serving.service.MAX_WAITING", 0)
    answer = ask("POST", "/v1/recommend", {"vector": vector})
    assert (answer.status, answer.headers["retry-after"]) == (503, "2")


@pytest.mark.parametrize("offered", OFFERED)
def test_the_server_refuses_every_kind_of_query_that_is_not_offered(service, offered):
    """`--offer` decides: a query that nothing protects is not taken because somebody sends it."""
    bodies = {"vector": [1.0] * DIM, "alpha": ALPHA, "interest": 1, "told": [0.1] * POOLED}
    kinds = {"vector": "vector", "alpha": "attention", "interest": "interest", "told": "pooled"}
    ask = service(kinds=(offered,))
    for name, value in bodies.items():
        answer = ask("POST", "/v1/recommend", {name: value})
        assert answer.status == (200 if kinds[name] == offered else 400), (offered, name, answer.body)
        assert answer.status == 200 or f"takes no queries of the kind {kinds[name]}" in answer.json["error"]
    for kind in OFFERED:
        size = {"vector": DIM, "pooled": POOLED}.get(kind, INTERESTS)
        query = encode(np.ones(1 if kind == "interest" else size, np.float32), QueryShape(kind, size))
        answer = ask("POST", "/v1/recommend", query, BYTES)
        assert answer.status == (200 if kind == offered else 400), (offered, kind, answer.body)
    assert ask("POST", "/v1/recommend", {}).status == 200


def test_slow_questions_of_one_address_leave_room_for_those_of_others(ask):
    async def go(route):
        gate = threading.Event()
        crowd = [asyncio.create_task(route._aside("192.0.2.1", gate.wait)) for _ in range(40)]
        await asyncio.sleep(0.01)
        other = asyncio.create_task(route._aside("192.0.2.2", lambda: "answered"))
        gate.set()
        refused = [each for each in await asyncio.gather(*crowd, return_exceptions=True) if each is not True]
        assert all(isinstance(each, RequestRefused) and each.status == 503 for each in refused)
        assert await other == "answered"
        assert not route._waiting
        return len(crowd) - len(refused)

    assert asyncio.run(go(RecommendRoute(ask.service))) == 8
    assert asyncio.run(go(RecommendRoute(ask.service, each=31))) == 31  # a proxy is one address


def test_everybodys_list_is_scored_once_whatever_k_and_never_in_the_way_of_others(service, monkeypatch):
    ask = service(items=300)
    edition, scored = ask.service.edition, []
    catalogue = type(edition.catalogue)
    monkeypatch.setattr("veilrec.serving.service._LIGHT", 0)
    slow = catalogue.best_by_vector

    def noted(self, *given, **named):
        scored.append(threading.current_thread().name)
        return slow(self, *given, **named)

    monkeypatch.setattr(catalogue, "best_by_vector", noted)
    ask("DELETE", "/v1/items/n7", token=TOKEN)
    expected = [f"n{n}" for n in edition.catalogue.best_by_vector(edition.nobody, MAX_K)[0].tolist()]
    scored.clear()
    for k in (1, 250, 3, 299, 1000):
        assert _ids(ask("POST", "/v1/recommend", {"k": k})) == expected[:k]
    assert len(scored) == 1 and scored[0].startswith("whole-scan")
