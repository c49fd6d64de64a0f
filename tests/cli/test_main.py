"""The entry point: fast help, versions, no heavy imports, one line per error."""

import io
import subprocess
import sys
from unittest import mock

import pytest
from rich.console import Console

from tests.cli.running import refused, says, shown, told, veilrec
from veilrec.cli import main
from veilrec.cli.output import data_names, method_names, metrics_table, protocol_names, say, text_table
from veilrec.methods.registry import METHODS, PAPERS, listed

HEAVY = ("torch", "numba", "llvmlite", "polars", "matplotlib", "PIL", "scipy", "dp_accounting", "opendp")
MAX_SECONDS = 0.3  # for `import veilrec`


def imported_by(code):
    program = f"import sys; {code}; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_nothing_heavy_is_imported_before_it_is_needed():
    listed()  # the index is in the cache from now on
    for code, heavy in (
        ("import veilrec; dir(veilrec)", {*HEAVY, "numpy", "pydantic"}),
        ("import veilrec.cli.main", set(HEAVY)),
        ("from veilrec.cli.methods import methods; methods()", {*HEAVY, "numpy", "pydantic"}),
        ("from veilrec.cli.output import method_names; method_names('fed')", {*HEAVY, "numpy", "pydantic"}),
        ("import veilrec.runs.saved", {"numba", "scipy", "torch", "polars"}),
    ):
        assert not heavy & imported_by(code), code


def test_import_veilrec_is_fast():
    timed = [sys.executable, "-X", "importtime", "-c", "import veilrec"]
    lines = subprocess.run(timed, capture_output=True, text=True, check=True).stderr.splitlines()
    columns = [[cell.strip() for cell in line.removeprefix("import time:").split("|")] for line in lines]
    (microseconds,) = [int(total) for _, total, name in columns if name == "veilrec"]
    assert microseconds < 1e6 * MAX_SECONDS


def test_the_module_is_the_command():
    command = [sys.executable, "-m", "veilrec", "train", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("veilrec: ")
    assert done.stderr.count("\n") == 1


def test_every_command_has_help_with_an_example_or_a_sentence():
    for command in ("demo", "data list", "data check", "data import", "methods", "train", "evaluate", "doctor"):
        assert len(shown(*command.split(), "--help")) > 100
    for command in ("list", "check", "import", "fetch", "export"):
        assert f"veilrec data {command}" in shown("data", command, "--help")
    assert shown("--version").startswith("veilrec ")


def test_completion_of_names():
    assert {"fedmf", "fedmf-lean"} <= set(method_names("fedm"))
    assert all(name.startswith("fedm") for name in method_names("fedm"))
    assert data_names("ml-") == ["ml-100k", "ml-1m"]
    assert set(protocol_names("loo")) == {"loo-99", "loo-full"}
    assert method_names("zz") == data_names("zz") == protocol_names("zz") == []


def test_doctor():
    findings = told("doctor")
    assert {"veilrec", "machine", "parts", "data", "problems"} <= set(findings)
    assert findings["problems"] == []
    assert "Data sets" in shown("doctor")


def test_tables_keep_brackets_cut_nothing_off_and_have_titles_of_any_width():
    def printed(renderable, width):
        target = io.StringIO()
        Console(file=target, width=width).print(renderable)
        return target.getvalue()

    text = printed(text_table(("part", "version"), [("pfl", "pip install 'veilrec[bench]'")], left=range(2)), 30)
    assert "'veilrec[bench]'" in text and "…" not in text
    title = "fedmf on [mine], a data set with a long name, loo-99, seed 0"
    assert title in printed(metrics_table(title, {"fedmf": {"hr@10": 0.5}}), 80).splitlines()[0]


def test_methods_are_a_line_each_and_fit_into_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = veilrec("methods").out.splitlines()
    assert max(len(line) for line in lines) <= 80
    assert set(METHODS) <= {line.split()[0] for line in lines}
    assert len(lines) == len(METHODS) + len(PAPERS) + 1
    monkeypatch.delenv("COLUMNS")
    says(veilrec("methods").out, *(entry["summary"] for entry in listed()))
    for method in told("methods")["methods"]:
        assert {"name", "paper", "model", "datasets", "guarantee", "measured"} <= set(method)


def test_one_method_is_told_in_full_and_many_are_filtered():
    text = shown("methods", "DP-FedMF")
    assert text.count("-DP per") == text.count("trusting:") == 1
    says(text, "privacy.epsilon=8.0", "tuned@ml-1m: rounds=15", "hr@10=0.515", "Algorithm 2")
    about = told("methods", "fedmf")
    assert (about["name"], about["private_relative"]) == ("fedmf", "dp-fedmf")
    found = told("methods", "--private", "--data", "ML-1M")["methods"]
    assert {"dp-fedmf"} <= {entry["name"] for entry in found}
    assert all(entry["private"] for entry in found)
    assert "No method is left" in shown("methods", "--private", "--paper", "references")
    assert "leave them out" in refused("methods", "fedmf", "--private")


def test_trouble_is_one_line(monkeypatch, capsys):
    for raised, code, words in (
        (PermissionError(13, "Permission denied", "/runs/x"), 2, "/runs/x cannot be used (Permission denied)"),
        (OSError("no such device"), 2, "no such device"),
        (MemoryError(), 2, "not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 2, "not enough memory"),
        (SystemExit(130), 130, "veilrec: interrupted"),
    ):
        monkeypatch.setattr(main, "app", mock.Mock(side_effect=raised))
        with pytest.raises(SystemExit) as leaving:
            main.run()
        said = capsys.readouterr().err
        assert (leaving.value.code, said.count("\n")) == (code, 1), raised
        assert words in said


def test_a_former_name_is_told_what_it_is_called_now():
    for line, told_now in {
        "bench serve --quick": "bench is now a script",
        "federate device x": "device is now client",
        "federate init x --devices 3": "--devices is now --clients",
        "audit dp-fedmf --shares": "--shares is now --distributed-noise",
        "attack inversion --method dp-fedmf --uploads 3": "--uploads is now --updates",
        "train privaterec --data synthetic-news --set judges.share=0.1": "judges.share is now validators.share",
        "train fedmf --data synthetic-ratings --set cohort.sampling=turns": "is now cohort.sampling=cyclic",
    }.items():
        done = veilrec(*line.split())
        assert done.code == 2, line
        assert told_now in done.err.strip().splitlines()[-1], line
    assert "is now" not in veilrec("train", "fedmf", "--data", "synthetic-ratings", "--devices", "3").err


def test_titles_of_others_do_nothing_to_a_terminal(capsys):
    say("one\ttwo\nthree \x1b[2J\x07\r\u202e\x9b é")
    assert capsys.readouterr().err == "one\ttwo\nthree ?[2J????" + " é\n"
    target = io.StringIO()
    Console(file=target, width=30).print(text_table(("title",), [("\x1b[2J",)]))
    assert "?[2J" in target.getvalue() and "\x1b" not in target.getvalue()
