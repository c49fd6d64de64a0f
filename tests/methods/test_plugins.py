"""Methods of other packages and of files, and the scaffold of one: found without an import, refused in one line."""

import json
import sys
import tomllib

import pytest
from typer.testing import CliRunner

import veilrec
from veilrec.cli.main import app
from veilrec.core.errors import BadInput
from veilrec.methods import plugins, registry
from veilrec.methods.plugins import write_template
from veilrec.methods.registry import get
from veilrec.runs.config_file import make_request, read_config_file, write_request
from veilrec.runs.request import RunRequest

DATA = "synthetic-ratings:users=150,items=200,seed=1"
OWN_RANKER = """
class OwnRanker(MfRanker):
    \"\"\"Mine.\"\"\"

    kind = "mine"

"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a package with entry points where Python finds it, as pip would."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def put(package, entries, **modules):
        info = site / f"{package}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        lines = "".join(f"{name} = {value}\n" for name, value in entries.items())
        (info / "entry_points.txt").write_text(f"[veilrec.methods]\n{lines}")
        for name, text in modules.items():
            (site / f"{name}.py").write_text(text)
        plugins._sorted_out.cache_clear()
        return site

    yield put
    plugins._sorted_out.cache_clear()
    for name in ("their_method", "broken_method", "no_method"):
        sys.modules.pop(name, None)


def source(name, folder, *, own_ranker=False):
    """A method that works."""
    written = write_template(name, folder / f"{name}-template")
    text = (written.folder / written.module).read_text()
    if own_ranker:
        text = text.replace("\nMETHOD = ", f"{OWN_RANKER}\nMETHOD = ").replace("ranker=MfRanker(", "ranker=OwnRanker(")
        text = text.replace("    rounds=200,", "    rounds=200,\n    rankers=(OwnRanker,),")
    return text


def test_a_package_brings_a_method_that_trains_and_whose_run_opens_again(install, tmp_path):
    text = source("their-method", tmp_path, own_ranker=True)
    install("theirs", {"their-method": "their_method:METHOD"}, their_method=text)
    assert registry.names()[-1] == "their-method"
    assert "their_method" not in sys.modules  # listing imports nothing
    run = veilrec.train("Their-Method", DATA, rounds=2, out=tmp_path / "run")
    assert run.result["method"] == "their-method"
    assert "method_from: theirs 1.2" in (tmp_path / "run" / "config.yaml").read_text()
    assert len(veilrec.open(tmp_path / "run").recommend(["i001"], k=3)) == 3
    assert veilrec.open(tmp_path / "run").evaluate()["method"] == "their-method"


def test_a_run_of_a_package_that_is_gone_is_refused_in_one_line(tmp_path):
    file = tmp_path / "their_method.py"
    file.write_text(source("their-method", tmp_path, own_ranker=True))
    veilrec.train(str(file), DATA, rounds=1, out=tmp_path / "run")
    told = r"made by the method their-method, .*not installed: install the package .*--method FILE\.py"
    with pytest.raises(BadInput, match=told):
        veilrec.open(tmp_path / "run").recommend(["i001"])
    done = CliRunner().invoke(app, ["recommend", str(tmp_path / "run"), "--history", "i001", "--method", str(file)])
    assert done.exit_code == 0, done.output
    with pytest.raises(BadInput, match=r"fedmf brings no ranker"):
        veilrec.open(tmp_path / "run", method="fedmf").recommend(["i001"])


def test_a_broken_package_is_named_with_its_reason_and_breaks_nothing_else(install, tmp_path):
    install(
        "bad",
        {"broken-one": "broken_method:METHOD", "absent-one": "not_there:METHOD", "no-method": "no_method:METHOD"},
        broken_method="raise RuntimeError('out of order')",
        no_method="METHOD = 3",
    )
    with pytest.raises(BadInput, match=r"broken-one of the package bad 1\.2 .*RuntimeError: out of order"):
        registry.get("broken-one")
    with pytest.raises(BadInput, match=r"absent-one of the package bad 1\.2 .*No module named 'not_there'"):
        registry.get("absent-one")
    with pytest.raises(BadInput, match=r"no_method:METHOD of the package bad 1\.2 is no Method but a int"):
        registry.get("no-method")
    install("theirs", {"other-name": "their_method:METHOD"}, their_method=source("their-method", tmp_path))
    with pytest.raises(BadInput, match="registered as other-name and calls itself their-method"):
        registry.get("other-name")
    assert registry.get("fedmf").name == "fedmf"
    listed = CliRunner().invoke(app, ["methods"])
    assert listed.exit_code == 0 and "broken-one" in listed.output


def test_a_name_of_ours_and_a_name_of_two_are_refused_and_said(install):
    install("first", {"FedMF": "x:METHOD", "shared": "x:METHOD", "Bad Name": "x:METHOD"})
    install("second", {"shared": "y:METHOD"})
    told = "\n".join(registry.refused())
    assert "first 1.2 brings a method FedMF, which is the name of a built-in one" in told
    assert "first 1.2 and second 1.2 all bring a method shared" in told
    assert "'Bad Name': small letters, digits and dashes only" in told
    assert not {"FedMF", "shared", "Bad Name"} & set(registry.names())
    done = CliRunner().invoke(app, ["methods", "--json"])
    assert "fedmf" in {entry["name"] for entry in json.loads(done.stdout)["methods"]} and "built-in" in done.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, r"mine\.py is not there: give the file of a method"),
        ("x = 1", r"has no METHOD: write FILE\.py:NAME"),
        ("METHOD = 1", "is no Method but a int"),
        ("x = 1\nraise ValueError('bad day')", r"cannot be run \(line 2, ValueError: bad day\)"),
        ("def (", "cannot be run .*SyntaxError"),
        ("from veilrec.methods.priv_fedmf_sub.fedmf import FEDMF as METHOD", "fedmf is the name of a built-in method"),
    ],
)
def test_a_file_that_is_no_method_is_one_line(text, told, tmp_path):
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(BadInput, match=told) as error:
        registry.get(str(file))
    assert "\n" not in str(error.value)


def test_the_run_of_a_file_is_measured_compared_and_trained_again(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(source("their-method", tmp_path))
    done = CliRunner().invoke(
        app, ["train", str(file), "--data", DATA, "--rounds", "2", "--out", str(tmp_path / "run")]
    )
    assert done.exit_code == 0 and "settings of privacy" not in done.output
    measured = veilrec.open(tmp_path / "run").evaluate()
    assert (measured["method"], measured["metrics"]) == ("their-method", veilrec.open(tmp_path / "run").metrics)

    config = tmp_path / "run" / "config.yaml"
    with pytest.raises(BadInput, match=r"of a method in .*mine\.py, and no --config makes code run by itself"):
        veilrec.train(config=config)
    again = veilrec.train(str(file), config=config, out=tmp_path / "again")
    assert again.metrics == measured["metrics"]
    with pytest.raises(BadInput, match=r"is for their-method, and fedmf was asked for"):
        veilrec.train("fedmf", config=config)

    asked = [f"{file}:damping=0.5", f"{file}:METHOD", "FEDMF"]
    compared = veilrec.compare(asked, DATA, seeds=1, rounds=2, out=tmp_path / "compared")
    assert [entry.label for entry in compared.entries[:3]] == ["their-method:damping=0.5", "their-method", "fedmf"]
    assert compared.entries[1].metrics["ndcg@10"].mean == measured["metrics"]["ndcg@10"]


def test_the_name_in_a_file_may_be_given_and_a_changed_file_is_another_method(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(source("their-method", tmp_path) + "\nOTHER = METHOD\n")
    assert registry.get(f"{file}:OTHER") is registry.get(str(file))
    assert registry.full_name(str(file)) == f"{file.resolve()}:METHOD"
    before = registry.code_of(str(file))
    assert registry.code_of(f"{file}:METHOD") == before
    file.write_text(file.read_text() + "\n# changed\n")
    assert registry.code_of(str(file)) != before and registry.code_of("fedmf") is None


def test_no_written_request_makes_code_run(tmp_path):
    """Neither one that a search wrote for the method of a file, nor one that names the file itself."""
    file = tmp_path / "mine.py"
    file.write_text(source("their-method", tmp_path))
    best = tmp_path / "best.yaml"
    best.write_text(write_request(RunRequest(registry.full_name(str(file)), DATA, rounds=3)))
    for text in (best.read_text(), f"method: {file}\ndata: {DATA}\nrounds: 3\n"):
        best.write_text(text)
        with pytest.raises(BadInput, match="no --config makes code run"):
            make_request(read_config_file(best), {})
        request, _ = make_request(read_config_file(best), {"method": str(file)})
        assert (request.rounds, registry.short_name(request.method)) == (3, "their-method")


def test_the_written_package_says_what_it_is(tmp_path):
    written = write_template("My-Method2", tmp_path / "here")
    assert written.name == "my-method2"
    assert {str(p.relative_to(written.folder)) for p in written.folder.rglob("*") if p.is_file()} == set(written.files)
    project = tomllib.loads((written.folder / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["veilrec.methods"] == {"my-method2": "my_method2:METHOD"}
    assert get(str(written.folder / written.module)).name == "my-method2"
    assert not any("$" in (written.folder / file).read_text() for file in written.files)


def test_names_that_cannot_be(tmp_path):
    told = {
        "cannot be the name of a method: use small letters": ("my_method", "Bad Name!", "", "-x", "a--b", "../x"),
        "fedmf is the name of a method that is there already": ("FedMF",),
        "would make a Python module (json|class), a name that is taken": ("json", "class"),
    }
    for line, names in told.items():
        for name in names:
            with pytest.raises(BadInput, match=line):
                write_template(name, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path):
    kept = tmp_path / "mine" / "notes.txt"
    kept.parent.mkdir()
    kept.write_text("mine")
    with pytest.raises(BadInput, match="exists already"):
        write_template("mine", tmp_path / "mine")
    assert [path.name for path in kept.parent.iterdir()] == ["notes.txt"]
