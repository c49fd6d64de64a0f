"""What somebody else can find out of a private query: nothing from metrics, log lines or the length of an answer."""

import re

import numpy as np

from tests.serving.toys import DIM, INTERESTS, POOLED, TOKEN, letters
from veilrec.serving.middleware import coarse
from veilrec.wire.queries import QueryShape, encode, read_pool

BYTES = {"content-type": "application/octet-stream"}
BODIES = [{"interest": number} for number in range(INTERESTS)]
BODIES += [{"vector": list(np.eye(DIM)[0] * scale)} for scale in (1e-6, 1, -3e5)]
BODIES += [{}, {"alpha": [0.2, 0.5, 0.3]}, {"told": [0.1] * POOLED}, {"interest": 0, "categories": ["sport"]}]


def _metrics(ask):
    """Without what is of time alone."""
    text = ask("GET", "/metrics", token=TOKEN).body.decode()
    return re.sub(r"veilrec_request_seconds_(bucket|sum).*\n", "", text)


def _totals(ask):
    return {
        name: float(value) for name, value in re.findall(r"^(\S*POST /v1/recommend\S*) (\S+)$", _metrics(ask), re.M)
    }


def test_nobody_names_the_interest_that_somebody_else_asked_for(service):
    ask = service(items=300)
    assert [ask("GET", "/metrics", token=token).status for token in (None, "", TOKEN + "x", TOKEN)] == [
        401,
        401,
        401,
        200,
    ]

    def seen(interest):
        """Everything that changes when somebody asks: for an operator, and on the way."""
        before = _totals(ask)
        length = len(ask("POST", "/v1/recommend", {"interest": interest}).body)
        line = ask.log()[-1]
        after = _totals(ask)
        return length, line["bytes"], tuple(sorted((n, v - before.get(n, 0.0)) for n, v in after.items()))

    known = {seen(interest): interest for interest in range(INTERESTS)}
    draws = np.random.default_rng(26).integers(0, INTERESTS, 40)
    named = sum(known[seen(int(interest))] == interest for interest in draws)
    assert len(known) == 1  # all look the same,
    assert named < 30  # so that the guess is always the same: a third


def test_metrics_are_for_nobody_without_a_token_file(service):
    from veilrec.serving.app import Settings

    ask = service(settings=Settings(rate=0, admin_token=TOKEN.encode()))
    answer = ask("GET", "/metrics", token=TOKEN)
    assert (answer.status, "--metrics-token-file" in answer.json["error"]) == (403, True)


def test_all_answers_of_a_k_have_one_length_also_after_items_come_and_go(service):
    ask = service(items=300, embedder=letters)
    odd = ("plain", 'quotes " and \\ and \x01\x02\n', "é" * 700, "x" * 2000)
    for number, title in enumerate(odd):
        assert ask("PUT", f"/v1/items/odd{number}", {"title": title, "category": title[:9]}, token=TOKEN).status == 201
    for k in (1, 10, 250, 1000):
        for path, headers in ((f"/v1/recommend?k={k}", BYTES), (f"/v1/recommend?form=pool&k={k}", BYTES)):
            answers = [ask("POST", path, query, headers).body for query in _queries()]
            assert len({len(answer) for answer in answers}) == 1, path
            if "pool" in path:
                assert len({tuple(read_pool(answer).ids) for answer in answers}) > (k == 1000) - 1
        answers = [ask("POST", "/v1/recommend", {**body, "k": k}) for body in BODIES]
        assert len({len(answer.body) for answer in answers}) == 1, k
        assert len(answers[0].json["items"]) == min(k, 304)
    for number in (0, 2):
        ask("DELETE", f"/v1/items/odd{number}", token=TOKEN)
    assert len({len(ask("POST", "/v1/recommend", body).body) for body in BODIES}) == 1


def _queries():
    for interest in range(INTERESTS):
        yield encode(np.array([interest], np.float32), QueryShape("interest", INTERESTS))
    yield encode(np.ones(DIM, np.float32), QueryShape("vector", DIM))
    yield b""


def test_no_length_is_written_down_as_it_is():
    assert [coarse(number) for number in (0, 1, 2, 3, 4, 5, 1000, 1024, 1025)] == [0, 1, 2, 4, 4, 8, 1024, 1024, 2048]
