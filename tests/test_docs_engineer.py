"""docs/engineer.md and docs/data.md: their commands, one after the other in one folder, as they stand on the page."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.cli.running import veilrec
from veilrec.data.datasets import load

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "engineer.md").read_text(encoding="utf-8")
DATA_PAGE = (DOCS / "data.md").read_text(encoding="utf-8")
SECTIONS = ("Bring your own log", "Choose a method by simulation", "Train again when the log has grown")
QUICK = ("--rounds", "2", "--set", "cohort.size=30")  # the page's own numbers take minutes


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    """An empty working folder and an empty cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VEILREC_CACHE", str(tmp_path / "cache"))
    return tmp_path


def commands():
    """Lines of shell in the sections about own logs."""
    found = []
    for section in SECTIONS:
        text = re.search(rf"^## {section}$(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
        for block in re.findall(r"^```sh\n(.*?)^```", text.group(1), re.MULTILINE | re.DOTALL):
            found += block.splitlines()
    return found


def write_files(folder):
    people = ["anna", *(f"u{n}" for n in range(1, 60))]
    rows = [f"{person},film-{(3 * n + k * k) % 30}" for n, person in enumerate(people) for k in range(6)]
    (folder / "clicks.csv").write_text("\n".join(["user,item", *rows]))
    grown = [*rows, "anna,film-99", "zoe,film-99", "zoe,film-1", "zoe,film-4"]
    (folder / "grown.csv").write_text("\n".join(["user,item", *grown]))
    (folder / "no-header.csv").write_text("film-1,anna\nfilm-2,anna\nfilm-1,ben\n")
    (folder / "ids.txt").write_text("film-7\nfilm-2\nTea, milk and sugar\n")
    (folder / "read.txt").write_text("a\nc\n")
    good = ["Jörg;Käse;4,5;01.05.2024 18:30", "Jörg;Brot;2,0;02.05.2024 18:30", "Jörg;Brot;gut;gestern", "Jörg;Brot"]
    (folder / "orders.csv").write_bytes("\r\n".join(["Besteller;Ware;Note;Tag", *good]).encode("cp1252"))
    entry = lambda n: {"user": f"u{n}", "time": 1_769_817_596 + n, "shown": ["a", "b"], "clicked": ["ab"[n % 2]]}  # noqa: E731
    shown = [entry(n) for n in range(9)]
    (folder / "shown.jsonl").write_text("".join(json.dumps(line) + "\n" for line in shown))


def quick(words):
    """Give a command fewer rounds."""
    if words[1] != "train" or words[2] in ("popularity", "ease"):
        return words
    at = words.index("--rounds") if "--rounds" in words else None
    kept = words if at is None else words[:at] + words[at + 2 :]
    return [*kept, *(QUICK if "--from" not in words else (*QUICK, "--set", "cohort.sampling=poisson"))]


def test_the_commands_about_own_logs_work_one_after_the_other(empty):
    write_files(empty)
    lines = commands()
    assert len(lines) >= 20
    for line in lines:
        done = veilrec(*quick(shlex.split(line))[1:])
        assert done.code == 0, (line, done.err)
    runs = {path.name: json.loads((path / "result.json").read_text()) for path in (empty / "runs").iterdir()}
    assert runs["fedmf"]["rounds"] == runs["fedmf-search"]["best_round"]
    assert runs["fedmf"]["rounds_from"] == str(Path("runs") / "fedmf-search")
    assert runs["dp-2"]["guarantee"]["epsilon"] == 2 * runs["dp-1"]["guarantee"]["epsilon"] == 8.0
    assert runs["fedmf-2"]["start_from"]["carried_over"]["new_items"] == 1


def test_the_faults_on_the_page_are_those_that_are_told(empty):
    write_files(empty)
    line = next(line for line in commands() if "orders.csv" in line)
    words = [word for word in shlex.split(line)[1:] if word != "--skip-bad"]
    printed = PAGE[PAGE.index("veilrec: orders.csv") :].partition("```")[0].strip()
    told = veilrec(*words).err.strip()
    assert [row.strip() for row in told.splitlines()] == [row.strip() for row in printed.splitlines()]


def blocks(kind):
    """The blocks of the section on features."""
    section = DATA_PAGE.partition("## Features\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{kind}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def test_the_example_of_features_works(empty):
    for name, text in zip(("clicks", "people", "films"), blocks("csv"), strict=True):
        Path(f"{name}.csv").write_text(text)
    Path("clicks.features.yaml").write_text(blocks("yaml")[0])
    for line in blocks("sh")[0].splitlines():
        told = veilrec(*shlex.split(line)[1:])
        assert told.code == 0, told.err
    shares = {feature["name"]: feature["unknown"] for feature in json.loads(told.out)["features"]}
    assert shares == pytest.approx({"age": 2 / 3, "country": 1 / 3, "likes": 1 / 3, "genres": 0.0})
    assert list(load("csv:described").catalogue.titles) == ["Night Train (1999)", "A Day in June (1996)"]


def test_the_table_of_features_names_those_of_made_up_ratings():
    features = load("synthetic-ratings:users=50,items=60").features
    row = next(line for line in DATA_PAGE.splitlines() if line.startswith("| `synthetic-ratings` | `group`"))
    assert all(f"`{feature.name}`" in row for side in (features.users, features.items) for feature in side.features)
