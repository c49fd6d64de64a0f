"""Every method of ours keeps the contract, and the contract finds what is planted."""

from collections.abc import Callable

import numpy as np
import pytest

from veilrec.audit.contract import CONTRACT, cases, check_method, try_check
from veilrec.audit.contract_subject import ContractSubject
from veilrec.methods.plugins import write_template
from veilrec.methods.registry import METHODS, get

SLOW = ("audit",)  # of all methods together; below for one of them, and in tests/cli/test_audit.py
NEWS = ["parts", "settings", "guarantee", "seed", "resume", "new-users", "without-data", "cohort", "nobody"]
NEWS += ["sums", "shortcut", "public-facts"]
QUICK_NAMES = [check.name for check in CONTRACT if check.name not in SLOW]


def _cases():
    found = []
    for name in METHODS:
        on_ratings = "synthetic-ratings" in get(name).datasets
        chosen = QUICK_NAMES if on_ratings else [*NEWS, *(["real-rounds"] if get(name).plan else [])]
        for check, subject in cases(name, chosen):
            label = f"{name}-{check.name}" + ("" if subject.data is None else f"-{subject.data}")
            if check.every_calibration and subject.calibration is not None:
                label += f"-{subject.calibration}"
            found.append(pytest.param(check, subject, id=label))
    return found


@pytest.fixture
def made_up_sentences(monkeypatch):
    """Sentence vectors without the language model, whose package need not be there."""

    def vectors(catalogue):
        return np.random.default_rng(4).standard_normal((len(catalogue.titles), 384), np.float32) / 384**0.5

    monkeypatch.setattr("veilrec.methods.news.text_vectors.whole_vectors", vectors)


@pytest.mark.parametrize(("check", "subject"), _cases())
@pytest.mark.usefixtures("made_up_sentences")
def test_keeps_the_contract(check, subject):
    outcome = try_check(check, subject)
    assert outcome.verdict in {"holds", "exempt", "does not apply"}, outcome.found


# Ways of training that a method has beside the usual one.
OTHER_WAYS = {"sums": ("training=sums",), "reports": ("training=reports", "cohort.sampling=cyclic")}


@pytest.mark.parametrize("way", OTHER_WAYS)
@pytest.mark.parametrize("name", [*NEWS, "bounds", "noise", "bytes", "real-rounds"])
@pytest.mark.usefixtures("made_up_sentences")
def test_every_way_of_training_keeps_the_contract(name, way):
    (check,) = (check for check in CONTRACT if check.name == name)
    outcome = try_check(check, ContractSubject("privaterec", "proven", OTHER_WAYS[way]))
    assert outcome.verdict in {"holds", "does not apply"}, outcome.found


def test_a_proven_method_withstands_its_audit_and_every_check_applies_to_some_method():
    (outcome,) = check_method("dp-fedmf", ["audit"])
    assert outcome.verdict == "holds", outcome.found
    applying = {"fedmf": {"cohort", "real-rounds", "nobody", "learns"}, "dp-fedmf": {"bounds", "noise", "outside"}}
    for name, wanted in applying.items():
        outcomes = list(check_method(name, sorted(wanted)))
        assert {outcome.check.name for outcome in outcomes if outcome.verdict == "holds"} == wanted


def test_exemptions_name_checks_and_give_reasons():
    known = {check.name for check in CONTRACT}
    for name in METHODS:
        for exemption in get(name).exemptions:
            assert exemption.check in known
            assert len(exemption.reason.split()) > 3
    (outcome,) = check_method("ease", ["seed"])
    assert (outcome.verdict, outcome.found) == ("exempt", get("ease").exemptions[0].reason)


Change = Callable[..., str]


@pytest.fixture
def changed(tmp_path):
    """The file of the template's method, with some of its text replaced."""
    file = write_template("planted", tmp_path / "planted").folder / "src" / "planted.py"

    def change(*replaced):
        text = file.read_text()
        for old, new in replaced:
            assert old in text
            text = text.replace(old, new)
        copy = tmp_path / f"planted{len(list(tmp_path.glob('*.py')))}.py"
        copy.write_text(text)
        return str(copy)

    return change


_SENT = "values=rows.values * self._damping"
_TOUCHED = "The server sees the change of every item row that a client touched: it can tell which items a user has."
_CAVEATS = f'        "{_TOUCHED}",\n'
_MADE = "PlantedLocalTrainer(local, config.damping)"
_OWN_RANKER = (
    ("def plan(", 'class Ranker(MfRanker):\n    """Mine."""\n\n    kind = "mine"\n\n\ndef plan('),
    ("ranker=MfRanker(", "ranker=Ranker("),
)
PLANTED = {
    "draws of its own": (
        ((_SENT, "values=rows.values * np.float32(np.random.rand())"),),
        {"seed", "resume", "cohort", "real-rounds"},
    ),
    "the others count": (((_SENT, "values=rows.values / np.float32(len(cohort.clients))"),), {"cohort", "real-rounds"}),
    "holds people": (
        (
            ("    return Plan(", f"    trainer = {_MADE}\n    trainer.seen = problem.train.items\n    return Plan("),
            (f"trainer={_MADE},", "trainer=trainer,"),
        ),
        {"nobody"},
    ),
    "no bounds of a setting": ((("Field(gt=0.0, le=1.0)", "Field()"),), {"settings"}),
    "no caveats": (((_CAVEATS, ""),), {"guarantee"}),
    "learns nothing": (((_SENT, "values=rows.values * np.float32(0.0)"),), {"learns"}),
    "a way of ranking that is not declared": (_OWN_RANKER, {"without-data"}),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_the_contract_finds_what_is_planted(changed, bug):
    replaced, broken = PLANTED[bug]
    outcomes = list(check_method(changed(*replaced), [*broken, "parts"]))
    assert {outcome.check.name for outcome in outcomes if outcome.verdict == "broken"} == broken
    assert all(outcome.found for outcome in outcomes if outcome.verdict == "broken")


def test_a_declared_ranker_opens_what_it_saved(changed):
    declared = ('    private_relative="dp-fedmf",', "    rankers=(Ranker,),")
    (outcome,) = check_method(changed(*_OWN_RANKER, declared), ["without-data"])
    assert outcome.verdict == "holds", outcome.found


def test_what_a_method_raises_is_a_finding(changed):
    line = "        learned = self._factorise"
    file = changed((line, f"        raise RuntimeError('no luck')\n{line}"))
    found = {outcome.check.name: outcome for outcome in check_method(file, ["seed", "parts"])}
    assert found["seed"].found == "RuntimeError: no luck"
    assert found["parts"].verdict == "holds"
