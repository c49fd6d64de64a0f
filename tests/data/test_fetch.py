"""Downloads against a server of our own: whole, resumed, refused, and never half-unpacked."""

import gzip
import hashlib
import io
import tarfile
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from veilrec.core.errors import BadInput
from veilrec.data.datasets import DATASETS, Archive
from veilrec.data.fetch import fetch

U_DATA = b"1\t1\t5\t1\n1\t2\t4\t2\n2\t1\t3\t3\n" * 200


class Handler(BaseHTTPRequestHandler):
    """Serves `server.files` with ranges; notes what was asked; may drop a connection early."""

    def do_GET(self):
        content = self.server.files.get(self.path)
        asked = self.headers.get("Range")
        self.server.asked.append((self.path, asked))
        if content is None:
            self.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.server.ranges else 0
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        rest = content[start:]
        self.wfile.write(rest[: self.server.cut_after] if self.server.cut_after else rest)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.files, running.asked, running.ranges, running.cut_after = {}, [], True, 0
    running.base = f"http://127.0.0.1:{running.server_port}/films"
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


def zipped(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    return buffer.getvalue()


@pytest.fixture
def archive(server, monkeypatch):
    """ml-100k as our server has it, with matching checksums."""
    content = zipped({"ml-100k/": b"", "ml-100k/u.data": U_DATA, "ml-100k/README": b"terms"})
    publish(server, monkeypatch, content)
    return content


def publish(server, monkeypatch, content, file="ml-100k.zip", **changes):
    server.files[f"/films/{file}"] = content
    checks = {
        "md5": hashlib.md5(content, usedforsecurity=False).hexdigest(),
        "sha256_inside": {"u.data": hashlib.sha256(U_DATA).hexdigest()},
    } | changes
    offer(monkeypatch, Archive(file, (server.base,), **checks))


def offer(monkeypatch, archive):
    monkeypatch.setitem(DATASETS, "ml-100k", replace(DATASETS["ml-100k"], archive=archive))


def yes(_licence):
    return True


def leftovers(cache):
    return sorted(path.name for path in (cache / "datasets").iterdir())


def test_files_arrive_unpacked_and_checked(archive, server, cache):
    shown, steps = [], []
    folder = fetch("ml-100k", accept=lambda text: not shown.append(text), progress=lambda *step: steps.append(step))
    assert (folder, (folder / "u.data").read_bytes()) == (cache / "datasets" / "ml-100k", U_DATA)
    assert "GroupLens" in shown[0]
    assert (steps[-1], leftovers(cache)) == ((len(archive), len(archive)), ["ml-100k"])
    assert fetch("ml-100k", accept=yes) == folder  # there already: nothing is asked or downloaded
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("part", "ranges", "asked"),
    [
        (lambda whole: whole[:100], True, 100),
        (lambda whole: whole, True, None),  # all there: nothing is sent again
        (lambda whole: b"x" * (len(whole) + 5), True, None),  # no beginning of this file: from the start
        (lambda whole: b"x" * (len(whole) - 5), False, None),  # a server without ranges
    ],
)
def test_a_download_goes_on_where_it_broke_off_or_starts_again(archive, server, cache, part, ranges, asked):
    server.ranges = ranges
    (cache / "datasets").mkdir()
    (cache / "datasets" / "ml-100k.zip.part").write_bytes(part(archive))
    fetch("ml-100k", accept=yes)
    assert (cache / "datasets" / "ml-100k" / "u.data").read_bytes() == U_DATA
    assert server.asked[0] == ("/films/ml-100k.zip", f"bytes={asked or len(part(archive))}-")
    assert len(server.asked) == (2 if len(part(archive)) > len(archive) else 1)


def test_a_dropped_connection_keeps_what_has_come(archive, server, cache):
    server.cut_after = 150
    with pytest.raises(BadInput, match=r"ended after 150 of .* bytes.*run the command again"):
        fetch("ml-100k", accept=yes)
    assert (cache / "datasets" / "ml-100k.zip.part").read_bytes() == archive[:150]
    server.cut_after = 0
    fetch("ml-100k", accept=yes)
    assert server.asked[-1] == ("/films/ml-100k.zip", "bytes=150-")
    assert leftovers(cache) == ["ml-100k"]


def linking_outside():
    buffer = io.BytesIO()
    link = tarfile.TarInfo("week/link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with tarfile.open(fileobj=buffer, mode="w:gz") as packed:
        packed.addfile(link)
    return buffer.getvalue()


def test_a_wrong_or_broken_archive_is_removed(server, cache, monkeypatch):
    for file, content, checks, fault in (
        ("a.zip", zipped({"u.data": U_DATA}), {"md5": "0" * 32}, r"md5 checksum .* published is 0000"),
        ("a.zip", zipped({"u.data": U_DATA}), {"sha256_inside": {"u.data": "0" * 64}}, r"u\.data in a\.zip has the sh"),
        ("a.zip", zipped({"u.data": U_DATA}), {"sha256_inside": {"u.nothing": "0" * 64}}, r"holds no u\.nothing"),
        ("a.zip", b"no zip", {}, "cannot be unpacked"),
        ("a.tar.gz", gzip.compress(U_DATA, mtime=0)[:50], {}, "cannot be unpacked"),
        ("week.tar.gz", linking_outside(), {}, r"week\.tar\.gz cannot be unpacked"),
    ):
        publish(server, monkeypatch, content, file, **checks)
        with pytest.raises(BadInput, match=fault):
            fetch("ml-100k", accept=yes)
        assert leftovers(cache) == []


def test_an_archive_cannot_write_outside_its_folder(server, cache, monkeypatch):
    names = ("../evil", "/evil", "ok/../../evil", "..\\evil", "C:/evil")
    publish(server, monkeypatch, zipped({"u.data": U_DATA} | dict.fromkeys(names, b"evil")))
    folder = fetch("ml-100k", accept=yes)
    assert all(folder in path.parents for path in cache.rglob("*evil*"))


def test_mirrors_are_tried_first_and_the_official_address_last(archive, server, cache):
    fetch("ml-100k", accept=yes, mirror=server.base.replace("films", "empty"))
    assert [path for path, _ in server.asked] == ["/empty/ml-100k.zip", "/films/ml-100k.zip"]


def test_what_is_not_fetched_is_explained_before_anything_is_asked(archive, server):
    with pytest.raises(BadInput, match="'file:///etc' is no web address"):
        fetch("ml-100k", accept=yes, mirror="file:///etc")
    with pytest.raises(BadInput, match="licence must be accepted"):
        fetch("ml-100k", accept=lambda _text: False)
    by_form = "{} cannot be fetched by a program: get .*https://.*unpack it into"
    for name, fault in (
        *((name, by_form.format(name)) for name in ("mind", "ebnerd", "frappe")),
        ("csv", "csv is not downloaded"),
        ("netflix", "unknown data set"),
    ):
        with pytest.raises(BadInput, match=fault):
            fetch(name, accept=yes)
    assert server.asked == []


def test_without_network_or_room_it_says_what_to_do(tmp_path, monkeypatch, archive):
    (tmp_path / "file").write_text("")
    with monkeypatch.context() as patched, pytest.raises(BadInput, match=r"cannot be written .*set VEILREC_CACHE"):
        patched.setenv("VEILREC_CACHE", str(tmp_path / "file"))
        fetch("ml-100k", accept=yes)
    offer(monkeypatch, Archive("x.zip", ("http://127.0.0.1:1/",)))
    by_hand = r"could not be downloaded .*download http://127\.0\.0\.1:1/x\.zip by hand and unpack it into"
    with pytest.raises(BadInput, match=by_hand):
        fetch("ml-100k", accept=yes)
