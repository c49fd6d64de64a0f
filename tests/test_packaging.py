"""What lies around the package: the Dockerfile, the citation, the site of the docs."""

import os
import re
import subprocess
import sys
import tomllib

import pytest
import yaml

from tests.docker_steps import ROOT, copied, is_sent, read_steps
from veilrec._version import __version__

DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
STEPS = read_steps()


def test_what_the_dockerfile_copies_is_there_and_is_sent():
    sources = [name for names, _ in copied(STEPS) for name in names]
    assert {"src", "pyproject.toml", "constraints.txt"} <= set(sources)
    for name in sources:
        assert (ROOT / name).exists(), name
        assert is_sent(name), name
    assert {DECLARED["readme"], *DECLARED["license-files"]} <= set(sources)
    assert is_sent("src/veilrec/api.py")
    assert not any(is_sent(name) for name in (".git", "tests", "runs", "docs", "src/veilrec/__pycache__", "x.nbi"))


def test_the_image_has_the_extras_that_exist_and_no_rights():
    (install,) = [step.text for step in STEPS if "pip install" in step.text]
    assert "-c constraints.txt" in install
    (extras,) = re.findall(r"\.\[([\w,]+)\]", install)
    assert set(extras.split(",")) == {"train", "report", "release", "serve"} <= set(DECLARED["optional-dependencies"])
    (user,) = [step.text for step in STEPS if step.name == "USER"]
    assert user not in ("root", "0")
    assert [step.name for step in STEPS].index("USER") > max(n for n, step in enumerate(STEPS) if step.name == "RUN")
    bases = [step.words[0] for step in STEPS if step.name == "FROM"]
    assert all("/" not in base for base in bases)  # no registry of anybody's


def test_the_entry_point_and_the_health_check_work():
    (entry,) = [step.words for step in STEPS if step.name == "ENTRYPOINT"]
    assert entry[0] in DECLARED["scripts"]
    (health,) = [step.text.partition(" CMD ")[2] for step in STEPS if step.name == "HEALTHCHECK"]
    command = f"{sys.executable} -c 'from veilrec.cli.main import run; run()'"
    shell = health.replace("veilrec doctor", f"{command} doctor").replace("| python", f"| {sys.executable}")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    assert subprocess.run(["/bin/sh", "-c", shell], env=environment, check=False, timeout=120).returncode == 0
    sick = 'echo \'{"problems": ["x"]}\' |' + health.partition("|")[2].replace(" python", f" {sys.executable}")
    assert subprocess.run(["/bin/sh", "-c", sick], check=False, timeout=60).returncode == 1


def test_the_citation_is_whole_and_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "version", "license", "references"} <= set(cited)
    assert (cited["version"], cited["license"]) == (__version__, DECLARED["license"])
    assert len(cited["references"]) == 5
    assert all({"type", "title", "authors", "year"} <= set(paper) for paper in cited["references"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages as `make site` builds them; a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_in_the_site_and_nothing_is_loaded_from_elsewhere(site):
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")}
    assert pages <= {page.stem for page in site.glob("*.html")}
    assert (site / "notebooks" / "first-steps.ipynb").exists()
    for page in ("index.md", "python.md"):
        assert "(notebooks/first-steps.ipynb)" in (ROOT / "docs" / page).read_text(encoding="utf-8")
    elements = "script|link|img|iframe|source|video|audio|object|embed"
    loaded = rf"""<(?:{elements})\b[^>]*?(?:src|href|data)=["']?((?:https?:)?//[^"'> ]+)"""
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert re.findall(loaded, text) == [], page.name
        assert "@import" not in text
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert re.findall(r"""(?:url\(|@import)\s*["']?(?:https?:)?//""", text) == [], sheet


def test_every_link_within_the_site_leads_somewhere(site):
    followed = 0
    for page in site.glob("*.html"):
        if page.name == "404.html":
            continue
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"""(?:href|src)=["']([^"']+)["']""", text):
            path, _, anchor = target.partition("#")
            if path.startswith(("http", "mailto:", "data:")):
                continue
            linked = (page.parent / path.partition("?")[0]).resolve() if path else page
            linked = linked / "index.html" if linked.is_dir() else linked
            assert linked.exists(), f"{page.name}: {target}"
            if anchor and linked.suffix == ".html":
                assert f'id="{anchor}"' in linked.read_text(encoding="utf-8"), f"{page.name}: {target}"
            followed += 1
    assert followed > 100
