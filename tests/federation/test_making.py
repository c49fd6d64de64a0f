"""What init writes: nothing of anybody where everybody looks, one user's data in each client's folder, a budget that
just covers the plan."""

import stat
from dataclasses import replace
from functools import reduce

import numpy as np
import pytest

from tests.federation.loopback import basis_of, known_in, lay_out_in
from veilrec.audit.contract_subject import ContractSubject, subjects
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.core.files import Seal, key_in
from veilrec.core.schema import RoundSpec
from veilrec.data.population import Strings
from veilrec.federation import federation
from veilrec.federation.client import folder as client_folder
from veilrec.federation.facts import spending_of
from veilrec.federation.federation import CLIENTS, COORDINATOR, FACTS
from veilrec.methods.public import public_people
from veilrec.methods.registry import METHODS, get
from veilrec.privacy.budget import Cost
from veilrec.privacy.randomness import SecureSource


def others(basis):
    """The same devices, with other data."""
    train = basis.problem.train
    moved = Csr(train.offsets, ((train.items + 7) % basis.problem.n_items).astype(np.int32))
    problem = replace(basis.problem, train=moved)
    return replace(basis, problem=problem, data=ContractSubject(basis.method).method.clients(basis.config, problem))


def public(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / FACTS).iterdir())}


def test_what_is_public_is_the_same_whatever_people_have_done(tmp_path):
    basis = basis_of(ContractSubject("veil"), "cohort.size=4", users=5, rounds=2)
    lay_out_in(tmp_path / "one", basis)
    lay_out_in(tmp_path / "two", others(basis))
    assert public(tmp_path / "one") == public(tmp_path / "two")
    one, two = (federation.read(tmp_path / name) for name in ("one", "two"))
    drawn = ("id", "address")  # by chance, and by the test
    assert replace(one, **dict.fromkeys(drawn, "")) == replace(two, **dict.fromkeys(drawn, ""))


def test_a_client_has_its_own_data_and_nobody_elses(tmp_path):
    basis = basis_of(ContractSubject("privrec"), users=4, rounds=1)  # with features and ratings of people
    lay_out_in(tmp_path, basis)
    known = known_in(tmp_path)
    for place in sorted((tmp_path / CLIENTS).iterdir()):
        number = client_folder.read_record(place).number
        mine = client_folder.data_of(place, known, number)
        wanted = basis.data.take(np.array([number]))
        found, asked = client_folder.arrays_of(mine), client_folder.arrays_of(wanted)
        assert found.keys() == asked.keys()
        assert all(np.array_equal(found[name], asked[name]) for name in found)
        content = Seal(key_in(place / "key")).open((place / "data").read_bytes(), "data")
        assert len(content) < 2000 + sum(array.nbytes for array in asked.values())


def test_what_is_secret_is_for_its_owner_alone(tmp_path):
    lay_out_in(tmp_path, basis_of(ContractSubject("fedmf"), "cohort.size=3", users=3, rounds=1), secagg="helpers")
    secrets = [*(tmp_path / CLIENTS).glob("*/*"), *(tmp_path / "helpers").glob("*/*")]
    secrets += [tmp_path / COORDINATOR / name for name in ("secret", "tls.key", "operator.token", "registry.sqlite")]
    for path in secrets:
        if path.suffix != ".pub":
            assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    for folder in (tmp_path / COORDINATOR, *(tmp_path / CLIENTS).iterdir()):
        assert not stat.S_IMODE(folder.stat().st_mode) & 0o077


@pytest.mark.parametrize("name", [name for name in METHODS if get(name).plan and not subjects(name)[0].reads_news])
def test_a_budget_covers_the_plan_and_not_a_round_more(name):
    """Of news methods plans take long to make, and have the same mechanisms."""
    plan = basis_of(subjects(name)[0], "cohort.size=4", users=6, rounds=3).plan
    budget, clear = spending_of(plan)
    if clear:
        return
    events = [(plan.mechanism, plan.mechanism.event_in(RoundSpec(number))) for number in range(plan.rounds)]
    events += [] if plan.reports is None else [(plan.reports.mechanism, plan.reports.mechanism.event())]
    costs = [budget.cost(event, owner.unit, owner.adjacency) for owner, event in events]
    total = reduce(lambda sum, cost: sum.plus(cost), costs, Cost())
    assert budget.allows(total, total)
    if costs[0] != Cost():
        more = total.plus(costs[0]) if plan.reports is None else total.plus(total)
        assert not budget.allows(more, more)


def test_facts_of_news_that_prove_nothing_tell_which_news_were_shown():
    for name, tells in (("fedrec", True), ("dp-fedrec", False)):
        basis = basis_of(ContractSubject(name), "cohort.size=4", users=16, rounds=1)
        items = Strings.of(str(number) for number in range(basis.problem.n_items))
        people = public_people(basis.problem, items, tells_shown=basis.guarantee.basis != "proven")
        shown = people.impressions["train"].shown
        assert (len(shown.row(len(shown) - 1)) > 2) == tells


def test_a_folder_of_a_rehearsal_says_so(tmp_path):
    basis = basis_of(ContractSubject("dp-fedmf"), "cohort.size=0", users=3, rounds=1)
    lay_out_in(tmp_path / "real", basis, rehearsal=False)
    lay_out_in(tmp_path / "rehearsal", basis)
    for name, shared in (("real", False), ("rehearsal", True)):
        caveats = known_in(tmp_path / name).federation.guarantee["caveats"]
        assert any("rehearsal protects nobody" in words for words in caveats) == shared
        disclosure = known_in(tmp_path / name).federation.guarantee["disclosure"]
        assert disclosure["fields"] == ["items"] and not disclosure["simulated"]
        place = sorted((tmp_path / name / CLIENTS).iterdir())[0]
        assert (client_folder.read_record(place).shared is not None) == shared


def test_clients_that_rehearse_nothing_draw_all_noise_anew(tmp_path):
    """No two streams are alike: of two clients, two rounds, what a message, a report or a share of it is for."""
    lay_out_in(
        tmp_path, basis_of(ContractSubject("priv-fedmf-sub"), "cohort.size=0", users=3, rounds=2), rehearsal=False
    )
    known, drawn = known_in(tmp_path), []
    for place in sorted((tmp_path / CLIENTS).iterdir())[:2]:
        with client_folder.open_client(place, known) as client:
            of = (client._noise_of_message, client._noise_of_report, client._noise_of_share, client._noise_of_learning)
            sources = [noise(number) for noise in of for number in (0, 1)]
            assert all(isinstance(source, SecureSource) for source in sources)
            drawn += [source.words(2).tobytes() for source in sources]
    assert len(set(drawn)) == len(drawn) == 16


@pytest.mark.parametrize("name", ["priv-fedmf-sub", "dp-fedrec"])
def test_no_sum_opens_with_fewer_clients_than_its_noise_allows_for(name, tmp_path):
    """Of clients and validation clients a third may be lost, rounded down."""
    settings = ("cohort.size=0", "privacy.noise=distributed", "privacy.lost=0.34")
    basis = basis_of(ContractSubject(name), *settings, users=60, rounds=1)
    made = lay_out_in(tmp_path, basis, secagg="helpers")
    assert made.least == made.clients - int(0.34 * made.clients) > 3
    assert made.least_reported == made.least
    assert made.least_compared == max(2, made.validators - int(0.34 * made.validators))
    assert (made.least_compared > 5) == (name == "dp-fedrec")


def test_the_budget_of_a_client_trusts_nobody_more_than_its_messages_do():
    server = basis_of(ContractSubject("dp-fedmf"), "cohort.size=0", users=4, rounds=1).plan
    nobody = basis_of(ContractSubject("dp-fedmf", "as-published"), "cohort.size=0", users=4, rounds=1).plan
    settings = ("cohort.size=0", "privacy.noise=distributed", "privacy.lost=0.5")
    distributed = basis_of(ContractSubject("dp-fedmf"), *settings, users=4, rounds=1).plan
    found = [spending_of(plan)[0].trust for plan in (server, distributed, nobody)]
    assert found == ["server", "server sees only noisy sums", "nobody"]


def test_what_a_plan_may_not_need_and_when_more_clients_are_drawn_than_needed(tmp_path):
    basis = basis_of(ContractSubject("fedmf"), "cohort.size=2", users=3, rounds=1)
    start = {name: values + np.float32(0.5) for name, values in basis.plan.start.items()}  # as if learnt from people
    with pytest.raises(BadInput, match="more than public facts"):
        lay_out_in(tmp_path / "other", replace(basis, plan=replace(basis.plan, start=start)))
    made = lay_out_in(tmp_path / "fedmf", basis, rehearsal=False)
    assert made.over_selection == 1.3
    place = sorted((tmp_path / "fedmf" / CLIENTS).iterdir())[0]
    (place / "ledger").touch(mode=0o600)  # as far as it came: a client that was killed meanwhile starts again
    for _ in range(2):
        client_folder.open_client(place, known_in(tmp_path / "fedmf")).close()
    for sampling in ("poisson", "fixed"):  # proofs are about who was drawn
        private = basis_of(ContractSubject("dp-fedmf"), "cohort.size=2", f"cohort.sampling={sampling}")
        assert lay_out_in(tmp_path / sampling, private, rehearsal=False).over_selection == 1.0
