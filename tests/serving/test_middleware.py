"""The middleware: limits, ids, logs that name nobody, and failures that tell nothing."""

import asyncio
import io
import json
import logging

from tests.serving.toys import TOKEN
from veilrec.serving.app import Settings
from veilrec.serving.middleware import FromLibrary, Log, RateLimit

FIELDS = {"time", "request", "route", "status", "microseconds", "bytes"}
EVENT = {"time", "event", "level", "request"}


def test_the_log_has_these_fields_and_no_others(ask):
    ask("POST", "/v1/recommend?form=secret-query", {"region": "secret-region"})
    ask("PUT", "/v1/items/secret-id?secret-option=1", {"title": "secret-title"}, token=TOKEN)
    ask("GET", "/secret-path?secret=1", headers={"cookie": "secret-cookie", "user-agent": "secret-agent"})
    ask("GET", "/v1/release/files/secret-file")
    ask("SECRET", "/")
    text = ask.logged.getvalue().decode()
    assert "secret" not in text.lower()
    assert ask.address not in text
    for line in ask.log():
        assert set(line) == FIELDS or set(line) <= EVENT, line
    routes = [line["route"] for line in ask.log() if "route" in line]
    known = ["POST /v1/recommend", "PUT /v1/items/{id}", "GET (none)", "GET /v1/release/files/{path}"]
    assert routes == [*known, "OTHER /"]


def test_every_answer_has_an_id_of_our_own(ask):
    answers = [ask("GET", "/healthz", headers={"x-request-id": "theirs"}) for _ in range(3)]
    answers += [ask("GET", "/nothing"), ask("POST", "/v1/recommend", {}), ask("POST", "/v1/recommend", b"{")]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert len(set(ids)) == 6
    assert "theirs" not in ids
    assert [line["request"] for line in ask.log() if "route" in line] == ids


def test_too_many_requests_of_one_address(service):
    ask = service(settings=Settings(rate=5))
    statuses = [ask("POST", "/v1/recommend", {}).status for _ in range(30)]
    assert statuses[:10] == [200] * 10
    assert 429 in statuses[10:]
    answer = next(each for each in (ask("GET", "/v1/pool") for _ in range(30)) if each.status == 429)
    assert int(answer.headers["retry-after"]) >= 1
    assert "too many" in answer.json["error"]
    assert ask("GET", "/healthz").status == 200
    ask.address = "192.0.2.8"
    assert ask("POST", "/v1/recommend", {}).status == 200


def test_whoever_asks_too_often_or_speaks_no_http_fills_no_log(service, monkeypatch):
    ask = service(settings=Settings(5, metrics_token=TOKEN.encode()))
    for path in ("/v1/pool", "/healthz"):  # health has a share of its own, and not more
        assert sum(ask("GET", path).status == 429 for _ in range(300)) > 250
    assert len(ask.log()) < 50
    assert [line["event"] for line in ask.log() if "often" in line.get("event", "")] == [
        "an address asked too often and got 429"
    ]
    ask.address = "192.0.2.8"
    assert 'route="(limited)",status="429"' in ask("GET", "/metrics", token=TOKEN).body.decode()
    logged, now = io.BytesIO(), 1000.0
    library = FromLibrary(Log(logged))
    monkeypatch.setattr("veilrec.serving.middleware.time.monotonic", lambda: now)
    record = logging.LogRecord("x", logging.WARNING, "f", 1, "Invalid", (), None)
    for _ in range(500):
        library.emit(record)
    now += 61.0
    library.emit(record)
    said = [json.loads(line)["event"] for line in logged.getvalue().splitlines()]
    assert said == ["Invalid", "Invalid (500 times since this was said last)"]


def test_a_burst_then_the_rate_of_each_address():
    limit = RateLimit(10.0)
    assert [limit.wait("a", 100.0) for _ in range(20)] == [0] * 20
    later = [("a", 100.0), ("b", 100.0), ("a", 100.11), ("a", 100.11)]
    assert [limit.wait(who, when) for who, when in later] == [1, 0, 0, 1]
    slow = RateLimit(0.1)
    assert [slow.wait("a", when) for when in (5.0, 5.0, 15.1)] == [0, 10, 0]  # it says how long
    none = RateLimit(0.0)
    assert not any(none.wait("a", 1.0) for _ in range(1000))
    assert len(none) == 0
    bounded = RateLimit(1.0, most=50)
    for number in range(500):
        bounded.wait(f"10.0.0.{number}", 10.0)
        assert len(bounded) <= 50
    bounded.wait("new", 20.0)
    assert len(bounded) == 1  # it forgets
    household = RateLimit(1.0)  # of IPv6 is one address
    assert [household.wait(f"2001:db8::{number:x}", 1.0) for number in range(4)] == [0, 0, 1, 1]
    for other in ("2001:db8:0:1::1", "::ffff:192.0.2.1", "::ffff:192.0.2.2"):
        assert household.wait(other, 1.0) == 0


def test_a_failure_tells_nothing_of_what_was_sent(ask, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("secret-vector [0.2, 0.5]")

    monkeypatch.setattr(type(ask.service.edition.catalogue), "best", fail)
    answer = ask("POST", "/v1/recommend", {"alpha": [0.2, 0.5, 0.3]})
    assert answer.status == 500
    assert "secret" not in answer.body.decode() + ask.logged.getvalue().decode()
    event = next(line for line in ask.log() if line.get("level") == "error")
    assert event["event"].startswith("failed: RuntimeError at test_middleware.py:")
    assert event["request"] == answer.headers["x-request-id"]
    assert ask.log()[-1]["status"] == 500


def test_web_sockets_are_closed_and_the_service_starts_and_stops_with_the_application(ask):
    sent, calls = [], []
    ask.app.on_start, ask.app.on_stop = lambda: calls.append("start"), lambda: calls.append("stop")

    async def talk():
        messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

        async def receive():
            return messages.pop(0)

        async def send(message):
            sent.append(message["type"])

        await ask.app({"type": "websocket"}, receive, send)
        await ask.app({"type": "lifespan"}, receive, send)

    asyncio.run(talk())
    assert sent == ["websocket.close", "lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert calls == ["start", "stop"]


def test_lines_wait_for_a_moment_and_a_broken_stream_stops_nothing():
    stream = io.BytesIO()
    log, later = Log(stream), []
    log.later = later.append
    for number in range(3):
        log.request(str(number), "GET /", 200, 0.001, 5)
    assert stream.getvalue() == b""
    assert len(later) == 1
    later[0]()
    assert [json.loads(line)["request"] for line in stream.getvalue().splitlines()] == ["0", "1", "2"]
    log.event("now")
    assert json.loads(stream.getvalue().splitlines()[-1])["event"] == "now"
    stream.close()
    log.event("nobody reads this")
    logged = io.BytesIO()
    record = logging.LogRecord("x", logging.WARNING, "f", 1, "Odd request %s\nmore", ("secret",), None)
    FromLibrary(Log(logged)).emit(record)  # the library's words come without values
    (line,) = logged.getvalue().splitlines()
    assert json.loads(line)["event"] == "Odd request %s"
