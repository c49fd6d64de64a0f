"""What is shipped was built from the sources that lie beside it; nobody needs node to know that."""

import hashlib
import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"
STATIC = ROOT / "src" / "veilrec" / "serving" / "static"
BUILD = json.loads((STATIC / "BUILD").read_text())


def test_the_page_is_built_from_these_sources():
    listed = [path.relative_to(WEB).as_posix() for folder in ("src", "page") for path in (WEB / folder).iterdir()]
    digest = hashlib.sha256()
    for name in sorted([*listed, "build.mjs", "package.json", "tsconfig.json"]):
        digest.update(name.encode() + b"\0" + (WEB / name).read_bytes() + b"\0")
    assert digest.hexdigest() == BUILD["sources"], "the sources have changed: npm run build, in web/"


def test_nobody_has_changed_the_built_files():
    found = {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file()}
    assert found == {*BUILD["files"], "BUILD"}
    for name, digest in BUILD["files"].items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest, f"{name} is not as it was built"


def test_the_page_keeps_to_its_own_rules():
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page), "the server's CSP forbids these"
    for name in ("index.html", "app.js", "style.css", "veilrec.js"):
        content = (STATIC / name).read_text()
        assert not re.search(r"(?<!xmlns=.)https?://(?!www\.w3\.org/2000/svg)", content), f"{name} names another server"
        assert "eval(" not in content and "innerHTML" not in content


def test_tools_are_pinned_and_no_lock_file_records_where_they_came_from():
    package = json.loads((WEB / "package.json").read_text())
    assert "dependencies" not in package
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in package["devDependencies"].values())
    assert not (WEB / "package-lock.json").exists()
