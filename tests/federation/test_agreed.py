"""What a client believes of federation.yaml: what it works out itself, and what its invitation names."""

from dataclasses import fields, replace

import pytest
import yaml

from tests.federation import loopback
from tests.wire.raising import raises
from veilrec.audit.contract_subject import ContractSubject
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.schema import FIRST_COMPARISON_SUM, FIRST_REPORT_SUM
from veilrec.federation import federation
from veilrec.federation.client import folder as client_folder
from veilrec.federation.facts import FederationFacts
from veilrec.federation.federation import CLIENTS, FILE, HELPERS, UNPINNED, Federation
from veilrec.federation.helper import HelperAnswers
from veilrec.federation.identity import INVITATION, Invitation, read_invitation

OTHER = {
    "id": "0" * 32,
    "address": "https://elsewhere.example.org:1",
    "method": "fedmf",
    "config": {},
    "plan": "0" * 64,
    "facts": "0" * 64,
    "budget": {"epsilon": 800.0},
    "guarantee": {"epsilon": 0.01},
    "secagg": "none",
    "helpers": (),
    "neighbourhood": {"clients": 2, "degree": 2, "threshold": 1, "corrupt": 0, "most": 5},
    "compared": {"clients": 2},
    "minimum_messages": 2,
    "invited": "0" * 64,
}


def other(value):
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    return value + (1 if isinstance(value, int | float) else "x")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agreed") / "trial"
    settings = ("cohort.size=0", "privacy.noise=distributed", "privacy.lost=0.4")
    basis = loopback.basis_of(ContractSubject("dp-fedmf"), *settings, users=5, rounds=2)
    loopback.lay_out_in(folder, basis, secagg="helpers")
    return folder


def start(folder, edited):
    client_folder.open_client(min((folder / CLIENTS).iterdir()), FederationFacts(folder, edited)).close()


def test_every_field_is_worked_out_or_named_by_the_invitation_or_of_no_harm(made):
    right = federation.read(made)
    assert {field.name for field in fields(Federation)} >= {*OTHER, *UNPINNED}
    for field in fields(Federation):
        value = getattr(right, field.name)
        edited = replace(right, **{field.name: OTHER[field.name] if field.name in OTHER else other(value)})
        if field.name in UNPINNED:
            assert edited.digest == right.digest
            start(made, edited)
            continue
        with pytest.raises(VeilrecError) as refusal:
            start(made, edited)
        assert "\n" not in str(refusal.value), field.name
        invited = read_invitation(min((made / HELPERS).iterdir()))
        raises(BadInput, "is not what helper-0 was invited to", invited.check, edited)


@pytest.mark.parametrize(
    ("name", "edited", "words"),
    [
        ("guarantee", lambda value: {**value, "epsilon": 0.01}, "says guarantee.epsilon 0.01"),
        ("budget", lambda value: {**value, "epsilon": 800.0}, "says budget.epsilon 800.0"),
        ("budget", lambda value: {**value, "lifetime_epsilon": 800.0}, "says budget.lifetime_epsilon 800.0"),
        ("least", lambda _: 2, "says least 2"),
        ("clients", lambda _: 500, "says clients 500"),
        ("least_reported", lambda _: 2, "says least_reported 2"),
        ("least_compared", lambda _: 3, "says least_compared 3"),
        ("config", lambda value: {**value, "privacy": {**value["privacy"], "lost": 0.0}}, "another plan|says"),
        ("secagg", lambda _: "none", "says"),
        ("config", lambda value: {**value, "privacy": {**value["privacy"], "silent": 0.4}}, "another plan|says"),
        ("rounds", lambda value: value + 1, "another plan|says"),
    ],
)
def test_what_a_client_works_out_it_compares(made, name, edited, words):
    right = federation.read(made)
    raises(BadInput, words, start, made, replace(right, **{name: edited(getattr(right, name))}))


def test_every_kind_of_sum_has_a_least_of_its_own_that_helpers_and_clients_read(made):
    right = replace(federation.read(made), least=3, least_reported=4, least_compared=5)
    numbers = [0, FIRST_REPORT_SUM - 1, FIRST_REPORT_SUM, FIRST_COMPARISON_SUM - 1, FIRST_COMPARISON_SUM]
    assert [right.least_of(number) for number in numbers] == [3, 3, 4, 4, 5]


def test_a_whole_other_federation_is_not_the_one_that_somebody_was_invited_to(made, tmp_path):
    """All files of another one, honest in itself, but without secure sums: beside the invitation it is noticed."""
    basis = loopback.basis_of(ContractSubject("dp-fedmf"), "cohort.size=0", users=5, rounds=2)
    loopback.lay_out_in(tmp_path / "weaker", basis)
    weaker = loopback.known_in(tmp_path / "weaker")
    with pytest.raises(BadInput, match="is not what d00000 was invited to"):
        client_folder.open_client(min((made / CLIENTS).iterdir()), weaker)
    with pytest.raises(BadInput, match="is not what helper-0 was invited to"):
        HelperAnswers(min((made / HELPERS).iterdir()), replace(federation.read(made), least=2))


def test_an_invitation_names_what_was_agreed_on(made, tmp_path):
    invitation, right = read_invitation(min((made / CLIENTS).iterdir())), federation.read(made)
    invitation.check(right)
    assert Invitation.read(invitation.text(), "it").agreed == right.digest
    place = tmp_path / INVITATION
    place.write_text(invitation.text().rpartition(":")[0])
    raises(BadInput, "bring back the one that init wrote", read_invitation(tmp_path).check, right)
    content = yaml.safe_load((made / FILE).read_text())
    (tmp_path / FILE).write_text(yaml.safe_dump(dict(reversed(content.items()))))  # another order, the same words
    assert federation.read(tmp_path).digest == right.digest
