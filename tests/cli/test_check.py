"""`veilrec check method` and `veilrec new method`: a line a check, JSON, exit codes."""

import json

from tests.cli.running import refused, says, shown, told, veilrec


def test_a_line_a_check_and_its_meaning():
    done = veilrec("check", "method", "FedMF", "--only", "Resume", "--only", "audit")
    resume, audit, end = done.out.splitlines()
    meaning = "resume: a resumed training gives the same bits as an uninterrupted one"
    assert resume.split(maxsplit=1) == ["holds", meaning]
    assert audit.startswith("does not apply")
    assert (done.code, end) == (0, "fedmf keeps the contract.")


def test_a_new_method_names_the_next_steps_and_a_broken_one_is_code_1(tmp_path):
    folder = tmp_path / "mine"
    assert f"veilrec check method {folder}/src/mine.py" in shown("new", "method", "mine", "--out", folder)
    assert told("new", "method", "other", "--out", tmp_path / "other")["files"][0] == "pyproject.toml"
    assert "exists already" in refused("new", "method", "mine", "--out", folder)
    file = folder / "src" / "mine.py"
    file.write_text(file.read_text().replace("Field(gt=0.0, le=1.0)", "Field()"))
    code, text, _ = veilrec("check", "method", file, "--only", "settings")
    assert code == 1
    says(text, "broken          settings:", "--set damping=nan is taken")
    assert text.splitlines()[-1] == "mine breaks 1 of 1."
    code, text, _ = veilrec("check", "method", file, "--only", "settings", "--json")
    found = json.loads(text)
    assert (code, found["method"], found["holds"]) == (1, "mine", False)
    assert set(found["checks"][0]) == {"check", "calibration", "means", "verdict", "found", "seconds"}


def test_unknown_names_are_refused():
    assert "unknown method 'fedmff': did you mean fedmf" in refused("check", "method", "fedmff")
    assert "unknown check 'cohorts': did you mean cohort" in refused("check", "method", "fedmf", "--only", "cohorts")
