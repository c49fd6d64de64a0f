"""A hundred canaries in histories: whatever clients send, none is in the server's log, metrics or files."""

import numpy as np

from tests.serving.processes import running
from tests.serving.toys import DIM, INTERESTS, POOLED, TOKEN, write_release
from veilrec.wire.queries import QueryShape, encode

CANARIES = [f"canary{number:03d}x{number * 7919 % 9973:04d}" for number in range(100)]
SIZES = {"attention": INTERESTS, "interest": INTERESTS, "vector": DIM, "pooled": POOLED}


def _ask_well(server, number):
    """As a client asks: its history is not in it."""
    draws = np.random.default_rng(number)
    for kind, size in SIZES.items():
        numbers = draws.integers(0, size, 1) if kind == "interest" else draws.normal(size=size)
        query = encode(numbers.astype(np.float32), QueryShape(kind, size))
        headers = {"Content-Type": "application/octet-stream"}
        assert server.ask("POST", "/v1/recommend?k=5&form=pool", query, headers)[0] == 200


def _ask_badly(server, canary, number):
    """As a broken client might: its history is everywhere."""
    headers = {"Cookie": canary, "User-Agent": canary, "Referer": canary, "X-Request-Id": canary, "X-History": canary}
    headers |= {"Authorization": f"Bearer {canary}"}
    ways = [
        ("POST", f"/v1/recommend?history={canary}", {}),
        ("POST", "/v1/recommend", {"history": [canary]}),
        ("POST", "/v1/recommend", {canary: 1}),
        ("POST", "/v1/recommend", {"region": canary}),
        ("POST", "/v1/recommend", {"categories": [canary]}),
        ("POST", "/v1/recommend", canary.encode()),
        ("GET", f"/{canary}", None),
        ("GET", f"/v1/pool?read={canary}", None),
        ("GET", f"/v1/release/files/{canary}", None),
        ("GET", f"/web/{canary}", None),
        ("PUT", f"/v1/items/{canary}", {"title": canary}),
        ("DELETE", f"/v1/items/{canary}", None),
    ]
    for method, path, body in (ways[number % len(ways)], ways[(number * 5 + 1) % len(ways)]):
        assert server.ask(method, path, body, headers)[0] < 500
    server.send(f"GET /{canary} HTTP/1.1\r\nbad {canary}\r\n\r\n".encode())


def test_no_canary_stays_on_the_server(tmp_path, token_file):
    own = tmp_path / "own"
    own.mkdir()
    options = (
        "--rate",
        "0",
        "--admin-token-file",
        token_file,
        "--metrics-token-file",
        token_file,
        "--items",
        str(own / "items.sqlite"),
    )
    with running(write_release(tmp_path / "release"), own / "log", *options) as server:
        server.wait_until("/v1/pool")
        for number, canary in enumerate(CANARIES):
            _ask_well(server, number)
            _ask_badly(server, canary, number)
        # What an owner adds is on disk, so that the search below is known to find what is there.
        put = server.ask("PUT", "/v1/items/planted", {"title": "planted-title"}, {"Authorization": f"Bearer {TOKEN}"})
        assert put[0] == 201
        metrics = server.ask("GET", "/metrics", headers={"Authorization": f"Bearer {TOKEN}"})[2]
        assert b"veilrec_request_seconds" in metrics
        assert server.stop() == 0
    kept = {path.name: path.read_bytes() for path in own.rglob("*") if path.is_file()}
    assert b"planted-title" in kept["items.sqlite"]
    assert len([line for line in kept["log"].splitlines() if b'"route"' in line]) > 600
    for canary in CANARIES:
        for name, content in {**kept, "metrics": metrics}.items():
            assert canary.encode() not in content, name
    assert b"127.0.0.1" not in kept["log"].partition(b"\n")[2]
