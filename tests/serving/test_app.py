"""The routes: what they answer, whom they believe, and what they say on the way."""

import asyncio
import gzip
import hashlib
import json
import re
import time
from pathlib import Path

import numpy as np

from tests.serving.toys import DIM, INTERESTS, TOKEN, served, toy, write_release
from veilrec.serving.app import Routes, Settings, digests_of
from veilrec.serving.edition import Edition, StoreFull
from veilrec.serving.middleware import Metrics
from veilrec.serving.requests import MAX_K
from veilrec.wire.queries import read_pool
from veilrec.wire.releases import parse_manifest

ITEM = {"title": "Zebra crossing", "category": "sport"}


def _ids(ask, **body):
    return [item["id"] for item in ask("POST", "/v1/recommend", {"k": 100, **body}).json["items"]]


def _pool_ids(ask):
    ask.service.make_pool(ask.service.edition)
    return read_pool(ask("GET", "/v1/pool").body).ids


def test_an_item_is_visible_when_it_is_acknowledged(ask):
    answer = ask("PUT", "/v1/items/new", ITEM, token=TOKEN)
    assert (answer.status, answer.json) == (201, {"id": "new", "visible": True})
    found = next(item for item in ask("POST", "/v1/recommend", {"k": 100}).json["items"] if item["id"] == "new")
    assert (found["title"], found["category"]) == ("Zebra crossing", "sport")
    assert "new" in _pool_ids(ask)
    assert ask("PUT", "/v1/items/new", ITEM | {"title": "Other"}, token=TOKEN).status == 200
    assert _ids(ask).count("new") == 1
    answer = ask("DELETE", "/v1/items/new", token=TOKEN)
    assert (answer.status, answer.json) == (200, {"id": "new", "visible": False})
    assert "new" not in _ids(ask)
    assert "new" not in _pool_ids(ask)
    assert ask("DELETE", "/v1/items/new", token=TOKEN).status == 404


def test_items_of_the_release_can_be_changed_and_removed_and_new_ones_have_a_prior_and_a_region(ask):
    assert ask("PUT", "/v1/items/n3", ITEM, token=TOKEN).status == 200
    assert _ids(ask).count("n3") == 1
    assert ask("DELETE", "/v1/items/n4", token=TOKEN).status == 200
    assert len(_ids(ask)) == 39
    body = ITEM | {"prior": 1e5, "region": "north", "category": "chess"}
    assert ask("PUT", "/v1/items/new", body, token=TOKEN).status == 201
    assert _ids(ask, interest=0)[0] == "new"
    assert _ids(ask, region="north") == _ids(ask, categories=["chess"]) == ["new"]


def test_odd_ids_and_items_are_refused(ask):
    for raw in (b"", b"%00", b"%ff", b"%0A", b"x" * 201, b"%20x"):
        path = "/v1/items/" + raw.decode()
        assert ask("PUT", path, ITEM, token=TOKEN, raw_path=path.encode()).status in (400, 404), raw
    times = ("tomorrow", "2026-11-17", "2026-11-17T06:40:00", "9999-99-99T00:00:00Z", "0001-01-01T00:00:00+14:00", 12)
    odd = {"title": ("", 3, "x" * 2001), "prior": (1e7,), "expires": times, "user": ("x",)}
    for field, value in ((field, value) for field, values in odd.items() for value in values):
        assert ask("PUT", "/v1/items/new", ITEM | {field: value}, token=TOKEN).status == 400, (field, value)
    assert len(_ids(ask)) == 40
    assert ask("PUT", "/v1/items/a/b", ITEM, token=TOKEN).json["id"] == "a/b"
    assert ask("PUT", "/v1/items/é", ITEM, token=TOKEN, raw_path=b"/v1/items/%C3%A9").json["id"] == "é"


def test_without_the_token_nothing_is_changed(ask):
    wrong = [None, "", TOKEN[:-1], TOKEN[:4], TOKEN + "x", TOKEN.upper()]
    for token in wrong:
        answer = ask("PUT", "/v1/items/new", ITEM, token=token)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer"), token
        assert ask("DELETE", "/v1/items/n3", token=token).status == 401
    assert ask("PUT", "/v1/items/new", ITEM, {"authorization": f"Basic {TOKEN}"}).status == 401
    assert len(_ids(ask)) == 40


def test_without_a_token_file_or_an_encoder_it_is_said(service):
    ask = service(settings=Settings(rate=0))
    answer = ask("PUT", "/v1/items/new", ITEM, token=TOKEN)
    assert (answer.status, "--admin-token-file" in answer.json["error"]) == (403, True)
    ask.close()
    ask = service(embedder=None)
    answer = ask("PUT", "/v1/items/new", ITEM, token=TOKEN)
    assert (answer.status, "no encoder" in answer.json["error"]) == (501, True)
    assert ask("DELETE", "/v1/items/n3", token=TOKEN).status == 200


def test_an_encoder_that_fails_changes_nothing(service):
    bad = [np.full(DIM, np.nan, np.float32), np.zeros(DIM + 1, np.float32), np.full(DIM, 3e38, np.float32)]
    ask = service(embedder=lambda *_: bad.pop(0))
    for _ in range(3):
        assert ask("PUT", "/v1/items/new", ITEM, token=TOKEN).status == 400
    assert len(_ids(ask)) == 40
    assert list(ask.service.store.items()) == []


def test_nothing_is_visible_or_acknowledged_that_is_not_on_disk(ask, monkeypatch):
    def full(item):
        raise StoreFull("the disk of the items is full: make room")

    with monkeypatch.context() as patch:
        patch.setattr(ask.service.store, "put", full)
        patch.setattr(ask.service.store, "remove", full)
        answer = ask("PUT", "/v1/items/new", ITEM, token=TOKEN)
        assert (answer.status, "full" in answer.json["error"]) == (507, True)
        assert ask("DELETE", "/v1/items/n3", token=TOKEN).status == 507
        assert len(_ids(ask)) == 40
    assert ask("PUT", "/v1/items/new", ITEM, token=TOKEN).status == 201


def test_removed_files_are_said_and_the_rest_goes_on(ask, tmp_path):
    (tmp_path / "items.sqlite").unlink()
    answer = ask("PUT", "/v1/items/new", ITEM, token=TOKEN)
    assert (answer.status, "removed" in answer.json["error"]) == (503, True)
    assert any("removed" in line.get("event", "") for line in ask.log())
    (ask.service.release.folder / "vectors.safetensors").unlink()
    assert ask("GET", "/v1/release/files/vectors.safetensors").status == 503
    assert ask("GET", "/v1/release/files/items.safetensors").status == 200
    assert len(_ids(ask)) == 40


def test_items_are_there_after_starting_again(tmp_path):
    release = toy(tmp_path / "release")
    ask = served(release, tmp_path)
    ask("PUT", "/v1/items/new", ITEM, token=TOKEN)
    ask("PUT", "/v1/items/n1", ITEM, token=TOKEN)
    ask("DELETE", "/v1/items/n2", token=TOKEN)
    before = ask("POST", "/v1/recommend", {"k": 100}).json
    ask.close()
    again = served(release, tmp_path, embedder=None)
    assert again("POST", "/v1/recommend", {"k": 100}).json == before
    again.close()


def test_the_pool(ask):
    answer = ask("GET", "/v1/pool", headers={"accept-encoding": "br, gzip"})
    assert (answer.headers["content-encoding"], answer.headers["cache-control"]) == ("gzip", "no-cache")
    plain = ask("GET", "/v1/pool")
    assert gzip.decompress(answer.body) == plain.body
    pool = read_pool(plain.body)
    assert (pool.about.release, pool.about.whole, pool.about.exact) == ("toy 1", True, True)
    assert len(pool) == 40
    for tagged, headers in ((answer, {"accept-encoding": "gzip"}), (plain, {"accept-encoding": "gzip;q=0"})):
        known = ask("GET", "/v1/pool", headers=headers | {"if-none-match": tagged.headers["etag"]})
        assert (known.status, known.body, known.headers["etag"]) == (304, b"", tagged.headers["etag"])
    assert answer.headers["etag"] != plain.headers["etag"]
    ask("PUT", "/v1/items/new", ITEM, token=TOKEN)
    assert "new" in _pool_ids(ask)
    assert ask("GET", "/v1/pool", headers={"if-none-match": plain.headers["etag"]}).status == 200


def test_a_pool_without_room_has_what_can_be_reached_and_then_every_category(ask, monkeypatch):
    everything = read_pool(ask("GET", "/v1/pool").body)
    monkeypatch.setattr("veilrec.serving.edition.LARGEST_WHOLE", 0)
    monkeypatch.setattr("veilrec.serving.edition.LARGEST_FILLED", 0)
    reached = set(_pool_ids(ask))
    about = read_pool(ask("GET", "/v1/pool").body).about
    assert (about.whole, about.exact, about.k) == (False, True, 10)
    for alpha in np.random.default_rng(0).dirichlet(np.ones(INTERESTS), 50):
        assert set(_ids(ask, alpha=alpha.tolist(), k=10)) <= reached
    monkeypatch.setattr("veilrec.serving.edition.LARGEST_FILLED", 4 * 39 * (DIM + 4 * INTERESTS))
    filled = set(_pool_ids(ask))
    pool = read_pool(ask("GET", "/v1/pool").body)
    assert (pool.about.whole, pool.about.exact) == (False, True)
    assert reached <= filled and len(filled) < 40
    assert {*pool.categories} == {*everything.categories}


def test_what_synthetic_readers_would_get_is_in_the_pool(tmp_path, monkeypatch):
    release = toy(tmp_path / "release", items=400, readers=50)
    vectors = release.arrays("vectors.safetensors")["items"]
    readers = release.arrays("readers.safetensors")["vectors"].astype(np.float32)
    best = np.argsort(-(readers @ vectors.T), axis=1, kind="stable")[:, :30]
    counts = np.bincount(best.ravel(), minlength=400)
    monkeypatch.setattr("veilrec.serving.edition.LARGEST_WHOLE", 0)
    row = vectors.shape[1] + 4 * INTERESTS
    for room in (120, 200):
        monkeypatch.setattr("veilrec.serving.edition.LARGEST_FILLED", room * row)
        pool = read_pool(Edition(release).pool())
        there = {int(item.removeprefix("n")) for item in pool.ids}
        left_out = sorted(set(range(400)) - there)
        listed = sorted(there, key=lambda item: -counts[item])
        assert len(there) <= room + 40  # what is reached is in it, whatever the room
        assert counts[left_out].max() <= counts[listed[room // 2]]  # the more frequent came first


def test_the_pool_is_made_in_the_background(service):
    ask = service(prepare=False)
    for path in ("/readyz", "/v1/pool"):
        answer = ask("GET", path)
        assert (answer.status, answer.headers["retry-after"]) == (503, "2")
    assert ask("POST", "/v1/recommend", {}).status == 503
    assert ask("PUT", "/v1/items/x", ITEM, token=TOKEN).status == 503
    assert ask("GET", "/healthz").status == 200
    ask.service.start()
    end = time.monotonic() + 60
    while ask("GET", "/v1/pool").status == 503 and time.monotonic() < end:
        time.sleep(0.05)
    assert ask("GET", "/v1/pool").status == 200
    ask("PUT", "/v1/items/new", ITEM, token=TOKEN)
    while "new" not in read_pool(ask("GET", "/v1/pool").body).ids and time.monotonic() < end:
        time.sleep(0.05)
    assert "new" in read_pool(ask("GET", "/v1/pool").body).ids


def test_a_head_of_a_file_reads_nothing_of_it(ask, monkeypatch):
    about = ask.service.release.manifest["files"]
    monkeypatch.setattr(Path, "open", None)
    for name in ("vectors.safetensors", "items.safetensors"):
        answer = ask("HEAD", f"/v1/release/files/{name}", headers={"accept-encoding": "gzip"})
        assert (answer.status, answer.body) == (200, b"")
        assert int(answer.headers["content-length"]) == about[name]["bytes"]
        assert answer.headers["etag"] == f'"{about[name]["sha256"]}"'
    assert ask("HEAD", "/v1/release/files/none").status == 404


def test_a_file_is_checked_and_zipped_once_however_many_ask_at_once(ask, monkeypatch):
    calls, compress = [], gzip.compress
    routes, release = Routes(ask.service, Settings(0), Metrics()), ask.service.release
    monkeypatch.setattr("veilrec.serving.app.gzip.compress", lambda *a, **k: calls.append(1) or compress(*a, **k))
    monkeypatch.setattr("veilrec.serving.app.digests_of", lambda *a: calls.append(2) or digests_of(*a))

    async def all_at_once():
        work = [routes._zipped_file(release, "items.safetensors") for _ in range(10)]
        await asyncio.gather(*work, *(routes._digests(release, "vectors.safetensors") for _ in range(10)))

    asyncio.run(all_at_once())
    assert sorted(calls) == [1, 2]


def test_the_release(ask):
    answer = ask("GET", "/v1/release")
    release = ask.service.release
    assert answer.json["manifest"].encode() == release.manifest_bytes
    assert answer.json["signature"] == json.loads((release.folder / "manifest.sig").read_text())
    assert answer.json["keys"] == []
    for name, about in parse_manifest(release.manifest_bytes)["files"].items():
        for path, kept in ((name, "no-cache"), (f"{about['sha256']}/{name}", "immutable")):
            got = ask("GET", f"/v1/release/files/{path}")
            assert hashlib.sha256(got.body).hexdigest() == about["sha256"]
            assert got.headers["cache-control"].endswith(kept)
            assert ask("GET", f"/v1/release/files/{path}", headers={"if-none-match": got.headers["etag"]}).status == 304
        assert ask("GET", f"/v1/release/files/{'0' * 64}/{name}").status == 404  # of another version
    for name in ("manifest.json", "../items.sqlite", "%2e%2e/items.sqlite", "nothing", "", "0" * 64):
        assert ask("GET", f"/v1/release/files/{name}").status == 404


def test_what_a_browser_ranks_with_is_zipped_and_still_what_was_signed(ask):
    path, about = "/v1/release/files/items.safetensors", ask.service.release.manifest["files"]["items.safetensors"]
    zipped = ask("GET", path, headers={"accept-encoding": "gzip"})
    assert zipped.headers["content-encoding"] == "gzip"
    assert hashlib.sha256(gzip.decompress(zipped.body)).hexdigest() == about["sha256"]
    plain = ask("GET", path, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers and plain.headers["etag"] != zipped.headers["etag"]
    assert plain.headers["vary"] == zipped.headers["vary"] == "accept-encoding"
    for etag in (plain.headers["etag"], zipped.headers["etag"]):
        assert ask("GET", path, headers={"if-none-match": etag}).status == 304


def test_a_file_of_the_release_that_was_changed_is_not_zipped(ask):
    path = ask.service.release.folder / "items.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert ask("GET", "/v1/release/files/items.safetensors", headers={"accept-encoding": "gzip"}).status == 503


def test_an_unprotected_release_says_so(service):
    ask = service(protected=False)
    assert json.loads(ask("GET", "/v1/release").json["manifest"])["protected"] is False
    assert "unprotected" in ask("GET", "/openapi.json").json["info"]["description"]
    assert b"unprotected" in ask("GET", "/docs").body
    assert b"veilrec_release_protected 0" in ask("GET", "/metrics", token=TOKEN).body


def test_the_page_comes_from_its_folder_and_no_other(service, tmp_path):
    page = tmp_path / "page"
    (page / "deep").mkdir(parents=True)
    (page / "index.html").write_text("<!doctype html>front" + " " * 500)
    (page / "deep" / "app.js").write_text("let a = 1")
    (tmp_path / "secret").write_text("x")
    ask = service(settings=Settings(rate=0, page=page))
    front = ask("GET", "/", headers={"accept-encoding": "gzip"})
    assert gzip.decompress(front.body).startswith(b"<!doctype html>front")
    assert front.headers["content-type"].startswith("text/html")
    script = ask("GET", "/web/deep/app.js")
    assert (script.body, script.headers["content-type"].split(";")[0]) == (b"let a = 1", "text/javascript")
    for path in ("../secret", "..%2fsecret", "/etc/passwd", "deep", "x.js", "%00"):
        assert ask("GET", f"/web/{path}").status == 404


def test_headers_keep_browsers_careful_and_other_paths_are_refused(ask):
    for path in ("/", "/docs", "/nothing", "/v1/pool"):
        answer = ask("GET", path)
        assert answer.headers["content-security-policy"].startswith("default-src 'self';")
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert not {"set-cookie", "access-control-allow-origin"} & answer.headers.keys()
        if path == "/docs":
            assert not any(odd in answer.body for odd in (b"<script", b"style=", b"://"))
    for method, path in (("GET", "/v1/recommend"), ("POST", "/v1/pool"), ("GET", "/v1/items/x")):
        assert ask(method, path, {}).status == 405
    for path in ("/v1", "/v1/recommend/", "/docs/", "/.git/config", "//"):
        answer = ask("GET", path)
        assert (answer.status, set(answer.json)) == (404, {"error"})


def test_every_route_is_in_the_document_and_its_page_needs_nothing_from_elsewhere(ask):
    got = ask("GET", "/openapi.json")
    api, schemas = got.json, got.json["components"]["schemas"]
    assert api["openapi"] == "3.1.0"
    routes = Routes(ask.service, Settings(), Metrics()).all()
    declared = {(route.path_format, method) for route in routes for method in (route.methods or set()) - {"HEAD"}}
    written = {(path, name.upper()) for path, each in api["paths"].items() for name in each if name != "parameters"}
    assert declared - written == {(path, "GET") for path in ("/", "/web/{path}", "/docs", "/docs.css")}
    assert written <= declared
    assert set(re.findall(r'"#/components/schemas/(\w+)"', got.body.decode())) <= set(schemas)
    assert schemas["RecommendRequest"]["additionalProperties"] is schemas["NewItem"]["additionalProperties"] is False
    assert schemas["NewItem"]["required"] == ["title"]
    assert api["paths"]["/v1/recommend"]["post"]["parameters"][1]["schema"]["maximum"] == MAX_K
    page = ask("GET", "/docs").body.decode()
    assert all(path in page for path in api["paths"])
    assert re.findall(r'(?:src|href)="([^"#]+)"', page) == ["/docs.css", "/openapi.json"]
    assert ask("GET", "/docs.css").headers["content-type"].startswith("text/css")


def test_a_new_version_takes_over_and_an_old_one_does_not(ask):
    folder = ask.service.release.folder
    ask("PUT", "/v1/items/new", ITEM, token=TOKEN)
    ask("DELETE", "/v1/items/n3", token=TOKEN)
    assert not ask.service.reload()
    write_release(folder, version=2, items=50)
    assert ask.service.reload()
    answer = ask("POST", "/v1/recommend", {"k": 100}).json
    assert answer["release"]["version"] == 2
    ids = [item["id"] for item in answer["items"]]
    assert len(ids) == 50 and "new" in ids and "n3" not in ids
    assert json.loads(ask("GET", "/v1/release").json["manifest"])["version"] == 2
    write_release(folder, version=1)
    assert not ask.service.reload()
    write_release(folder, version=3)
    (folder / "vectors.safetensors").write_bytes(b"x")
    assert not ask.service.reload()
    assert ask("POST", "/v1/recommend", {}).json["release"]["version"] == 2
    refused = [line["event"] for line in ask.log() if "refused" in line.get("event", "")]
    assert len(refused) == 2 and "never goes back" in refused[0]


def test_without_an_encoder_old_vectors_are_not_shown_by_a_new_model(tmp_path):
    ask = served(toy(tmp_path / "release"), tmp_path)
    ask("PUT", "/v1/items/new", ITEM, token=TOKEN)
    ask.close()
    again = served(toy(tmp_path / "release", version=2), tmp_path, embedder=None)
    assert "new" not in _ids(again)
    assert any("another release" in line.get("event", "") for line in again.log())
    again.close()
    third = served(toy(tmp_path / "release", version=3), tmp_path)
    assert "new" in _ids(third)
    third.close()


def test_what_has_expired_stays_expired(tmp_path):
    now = [1_800_000_000.0]
    release = toy(tmp_path / "release")
    ask = served(release, tmp_path, clock=lambda: now[0])
    for name, expires in (("early", "2027-01-15T08:01:00Z"), ("late", "2027-01-15T10:00:00+01:00")):
        assert ask("PUT", f"/v1/items/{name}", ITEM | {"expires": expires}, token=TOKEN).status == 201
    assert ask.service.sweep() == 0
    now[0] += 120
    assert ask.service.sweep() == 1
    assert "early" not in _ids(ask) and "late" in _ids(ask)
    now[0] -= 3600  # the clock is set back
    assert ask.service.sweep() == 0
    assert "early" not in _ids(ask)
    assert any("set back by 3600 s" in line.get("event", "") for line in ask.log())
    ask.close()
    again = served(release, tmp_path, clock=lambda: now[0])
    again.service.sweep()
    assert "early" not in _ids(again) and "late" in _ids(again)
    again.close()


def test_a_clock_that_is_wrong_for_a_moment_ends_no_service_and_takes_no_item(tmp_path):
    now = [1_800_000_000.0]
    ask = served(toy(tmp_path / "release"), tmp_path, clock=lambda: now[0])
    assert ask("PUT", "/v1/items/new", ITEM | {"expires": "2027-02-01T08:00:00Z"}, token=TOKEN).status == 201
    answers = {path: ask("GET", path).status for path in ("/readyz", "/v1/pool", "/v1/release")}
    assert set(answers.values()) == {200}
    now[0] += 1_100 * 366 * 86_400  # beyond the last day of the release
    ask.service._swept()
    for path in ("/readyz", "/v1/pool"):
        assert (ask("GET", path).status, "expired" in ask("GET", path).json["error"]) == (503, True)
    assert ask("POST", "/v1/recommend", {}).status == 503
    assert "veilrec_ready 0" in ask("GET", "/metrics", token=TOKEN).body.decode()
    now[0] = 1_800_000_001.0
    ask.service._swept()
    assert {path: ask("GET", path).status for path in answers} == answers
    assert "new" in _ids(ask)
    ask.close()


def test_the_metrics_name_nobody(ask):
    ask("POST", "/v1/recommend", {"alpha": [0.2, 0.5, 0.3]})
    ask("POST", "/v1/recommend", {"alpha": [0.2, 0.5, 0.9]})
    ask("PUT", "/v1/items/secret-id", ITEM, token=TOKEN)
    ask("GET", "/secret-path?secret=1")
    text = ask("GET", "/metrics", token=TOKEN).body.decode()
    for status in (200, 400):
        assert f'veilrec_request_seconds_count{{route="POST /v1/recommend",status="{status}"}} 1' in text
    for line in ('route="PUT /v1/items/{id}",status="201"', "veilrec_items 41", "veilrec_release_version 1"):
        assert line in text
    assert "secret" not in text and ask.address not in text
