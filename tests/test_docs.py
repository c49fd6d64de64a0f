"""README and docs: every command exists with its options, every link leads somewhere, all Python runs."""

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from tests.cli import running
from veilrec.cli.main import app
from veilrec.data.datasets import DATASETS
from veilrec.evaluation.protocols import PROTOCOLS
from veilrec.methods.registry import METHODS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
_COMMAND = typer.main.get_command(app)
_BEFORE_A_COMMAND = {"--help", "--version", "--install-completion"}


def _commands(page):
    """`veilrec ...` lines of code blocks, and `veilrec ...` between back-ticks."""
    found, in_block = [], False
    for line in TEXTS[page].splitlines():
        if line.startswith("```"):
            in_block = not in_block
        elif in_block and line.startswith("veilrec "):
            found.append(line.partition("  #")[0].strip())
        elif not in_block:
            found += re.findall(r"`(veilrec [^`]+)`", line)
    return found


CASES = [(page.name, text) for page in PAGES for text in _commands(page)]


class NotACommand(Exception):
    """No such command, or not with these options."""


def _default_of(command):
    return getattr(command, "default_command", "")  # that is meant where none is named


def _parsed(words):
    """The parameters that the words give to the command that they name; it is not run."""
    command = _COMMAND
    while hasattr(command, "commands"):
        if not words or words[0] in _BEFORE_A_COMMAND:
            return {}
        if words[0] not in command.commands and _default_of(command):
            words = [_default_of(command), *words]
        if words[0] not in command.commands:
            raise NotACommand(words[0])
        command, words = command.commands[words[0]], words[1:]
    try:
        context = command.make_context("veilrec", list(words))
    except Exception as error:
        if getattr(error, "exit_code", None) != 2:
            raise
        if type(error).__name__ == "MissingParameter" and not any(word.startswith("-") for word in words):
            return {}  # the bare name of a command is a mention of it
        raise NotACommand(str(error)) from error
    return context.params


def test_every_command_exists():
    for text in ("trane fedmf", "train fedmf --epochs 3", "data check --json"):  # wrong ones would be found
        with pytest.raises(NotACommand):
            _parsed(text.split())
    assert len(CASES) > 40
    for page, text in CASES:
        try:
            given = _parsed(shlex.split(text.replace("[", "").replace("]", ""))[1:])
        except NotACommand as error:
            pytest.fail(f"{page}: {text}: {error}")
        methods = given.get("method") or ()
        named = [name for name in ([methods] if isinstance(methods, str) else methods) if not name.endswith(".py")]
        assert set(named) <= {"METHOD", *METHODS}, (page, text)
        for name in ("data", "spec"):
            assert (given.get(name) or "").partition(":")[0] in {"", "NAME", *DATASETS}, (page, text)
        assert given.get("protocol") in {None, "P", *PROTOCOLS}, (page, text)


def test_links_lead_somewhere():
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)\s]+)\)", TEXTS[page])]
    for page, target in links:
        path, _, anchor = target.partition("#")
        if path.startswith("http"):
            continue
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), (page.name, target)
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, (page.name, target)


def test_source_files_that_are_named_exist():
    sources = [path for folder in ("src", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    for page in [*PAGES, *sources]:
        for named in re.findall(r"(?<![\w/.])(?:tests|src/veilrec)/[\w/]+\.py\b", page.read_text(encoding="utf-8")):
            assert (ROOT / named).is_file(), f"{page.relative_to(ROOT)} names {named}, which is not there"
    known = {f"/{path.relative_to(ROOT)}" for path in sources}
    for page in PAGES:
        for named in set(re.findall(r"`([a-z][\w/]*\.py)`", TEXTS[page])) - {"src/my_method.py"}:
            assert any(path.endswith(f"/{named}") for path in known), f"{page.name} names {named}, which is not there"


EXAMPLES = [
    pytest.param(code, id=f"{page.name}-{number}")
    for page in PAGES
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", TEXTS[page], re.DOTALL))
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_python_example_runs_and_prints_what_it_says(code, tmp_path, monkeypatch, capsys):
    from veilrec.runs.request import RunRequest, prepare
    from veilrec.runs.training import train

    monkeypatch.chdir(tmp_path)
    for folder in re.findall(r'"(runs/[\w-]+)"', code):
        if "from-python" not in folder:  # a run that the page trained by a command before
            method = folder.split("/")[1].split("-")[0]
            train(prepare(RunRequest(method, "synthetic-ratings:users=150,items=200", rounds=2)), Path(folder))
    capsys.readouterr()
    exec(compile(code, "example", "exec"), {})  # noqa: S102
    promised = re.findall(r"^print\(.*\)  # (.+)$", code, re.MULTILINE)
    if promised:
        assert capsys.readouterr().out.split() == promised


def test_the_walk_through_of_a_method_runs(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "researcher.md").read_text(encoding="utf-8")
    section = page.partition("## A method of your own\n")[2]
    lines = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)[0].splitlines()
    assert [line.split()[1] for line in lines] == ["new", "check", "train", "recommend", "evaluate"]
    monkeypatch.chdir(tmp_path)
    for line in lines:
        running.shown(*shlex.split(line)[1:])
    written = (tmp_path / "my-method" / "src" / "my_method.py").read_text()
    running.says(written, *re.findall(r"^\| `(\w+)` \|", section.partition("\n## ")[0], re.MULTILINE))
    entry = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)[0]
    assert entry in (tmp_path / "my-method" / "pyproject.toml").read_text()


def test_the_calculators_print_the_numbers_beside_them():
    line = re.compile(r"^(veilrec privacy .+ --json)  # (\w+) ([\d.]+)$", re.MULTILINE)
    printed = [row for text in TEXTS.values() for row in line.findall(text)]
    assert printed
    for command, name, value in printed:
        told = running.told(*shlex.split(command.removesuffix(" --json"))[1:])
        assert f"{told[name]:.{len(value.partition('.')[2])}f}" == value, command


def test_the_officers_tables_are_what_the_calculators_print():
    text = (ROOT / "docs" / "privacy-officer.md").read_text(encoding="utf-8")
    for first_column, arguments, epsilon_at in (
        ("epsilon, of everything", "calibrate --mechanism gaussian --epsilon {} --delta 1e-6", 0),
        ("releases", "account --noise-multiplier 4.2247 --rounds {} --delta 1e-6", 2),
    ):
        lines = text[text.index(f"| {first_column}") :].partition("\n\n")[0].splitlines()[2:]
        assert len(lines) > 5
        for row in ([cell.strip() for cell in line.strip("|").split("|")] for line in lines):
            told = running.told("privacy", *arguments.format(row[0]).split())
            assert float(row[epsilon_at]) == pytest.approx(told["epsilon"], abs=0.005)
            found, guess = row[-2], row[-1].removesuffix(" %")
            assert f"{100 * told['detected_at_1_percent_false_alarms']:.{len(found.partition('.')[2])}f}" == found
            assert f"{100 * told['best_guess']:.1f}" == guess


@pytest.mark.slow
def test_the_audit_proves_the_bounds_on_the_page_and_no_bad_claim_is_left_out():
    from veilrec.audit.auditor import all_cases, audit_claim

    bad = [case for case in all_cases() if case.kind != "proven"]
    text = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    row = r"^\| `([\w-]+)` \|(?: [\w-]+ \| (\w+) \|)? ([\d.e-]+) \| ([\d.]+) \| ≥ ([\d.]+) \|"
    found = re.findall(row, text, re.MULTILINE)
    rows = {(name, float(d), round(float(claim), 3)): (unit, float(bound)) for name, unit, d, claim, bound in found}
    assert len(rows) == len(bad)
    for case in bad:
        unit, bound = rows[case.name, case.delta, round(case.claimed_epsilon, 3)]
        assert unit in {case.unit, ""}
        # Other processors round other last digits; a threshold may then fall elsewhere.
        assert audit_claim(case, effort=1, seed=0).lower_bound == pytest.approx(bound, rel=0.02)


def test_claims_mechanisms_and_bounds_are_the_same_wherever_they_are_named():
    text = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| .* \| ≥ ([\d.]+) \|", text.partition("\n### ")[0], re.MULTILINE)
    counts = f"{len(rows)} claims, on {len({name for name, _ in rows})} mechanisms"
    officer = (ROOT / "docs" / "privacy-officer.md").read_text(encoding="utf-8")
    assert counts in " ".join(officer.split())
    assert counts.replace(" claims", " of them") in " ".join(text.split())
    assert f"refutes {len(rows)} privacy claims" in " ".join(TEXTS[ROOT / "README.md"].split())
    (proves,) = re.findall(r"the audit proves ([\d.]+) for 30\s+coordinates", text)
    assert proves == dict(rows)["elementwise-laplace"]  # which the audit prints, see above


def test_the_table_of_commands_is_complete():
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for name, command in _COMMAND.commands.items():
        if command.hidden:
            continue
        inner = [f"{name} {word}" for word in getattr(command, "commands", {}) if word != _default_of(command)]
        running.says(text, *(f"`veilrec {path}" for path in inner or [name]))
    options = [option for parameter in _COMMAND.commands["train"].params for option in parameter.opts]
    running.says(text, *(option for option in options if option.startswith("--")))


def test_pictures_are_small_and_no_page_names_a_local_folder():
    pictures = list((ROOT / "docs" / "images").iterdir())
    assert pictures and all(picture.stat().st_size < 200_000 for picture in pictures)
    for page in [*PAGES, *pictures]:
        assert str(ROOT.resolve()).encode() not in page.read_bytes(), page
