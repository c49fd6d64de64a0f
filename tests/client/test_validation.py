"""Validation clients: chosen publicly; their gain is a difference of mean AUC; never validation and training alike."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from veilrec.audit.contract_subject import histories_of
from veilrec.audit.method import small_problem
from veilrec.client.federated import AnotherRole, FederatedClient
from veilrec.client.news_data import OwnImpressions, pack_logs
from veilrec.client.validation import NewsValidator, is_validator, parted
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.plan import ModelSelection
from veilrec.core.schema import RoundSpec, whole_model
from veilrec.data.population import Impressions
from veilrec.methods.base import configure
from veilrec.methods.registry import get
from veilrec.privacy.ledger import BudgetExhausted
from veilrec.privacy.mechanisms.sums import GainSum
from veilrec.privacy.randomness import FastSource
from veilrec.server.server import selection_of
from veilrec.simulation.real_clients import budget_for
from veilrec.wire import messages, rounds
from veilrec.wire.messages import BadMessage, WrongRound


def logs():
    """User 0 has two impressions, user 1 none that has both labels, user 2 one."""
    shown = histories_of([[0, 1, 2], [3, 4], [0, 1], [5, 6, 7, 8]])
    clicked = np.array([1, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0], np.uint8)
    histories = histories_of([[1, 2], [], [3]])
    users = np.array([0, 0, 1, 2], np.int32)
    times, history_of = np.arange(4, dtype=np.int64), np.array([0, 1, 1, 2], np.int32)
    return pack_logs(Impressions(users, times, shown, clicked, histories, history_of), 3)


@dataclass(frozen=True)
class Fixed:
    """Scores items by a table, whatever the history."""

    kind = "fixed"

    def model(self, weights, private, histories):
        table = weights["scores"]

        class Model:
            def score_impressions(self, asked):
                assert len(asked.histories) == len(asked)
                return table[asked.shown.items]

        return Model()


def test_adding_or_removing_somebody_moves_nobody_else():
    everybody = is_validator(np.arange(1000), 0.2, 7)
    assert np.array_equal(is_validator(np.array([3, 500, 17]), 0.2, 7), everybody[[3, 500, 17]])
    assert 120 < everybody.sum() < 280  # beyond 6 standard deviations
    assert not np.array_equal(is_validator(np.arange(1000), 0.2, 8), everybody)


def test_each_client_learns_or_validates():
    whole = histories_of([[number, number + 1] for number in range(200)])
    both = parted(whole, 0.3, 1)
    assert np.array_equal(both.rows.lengths() + both.active_validation.lengths(), whole.lengths())
    assert not ((both.rows.lengths() > 0) & (both.active_validation.lengths() > 0)).any()
    some = both.take(np.array([5, 6, 7]))
    assert [len(some.rows.row(i)) + len(some.active_validation.row(i)) for i in range(3)] == [2, 2, 2]


def test_a_gain_is_the_difference_of_the_mean_auc_of_a_client():
    nothing = histories_of([[], [], []])
    data = OwnImpressions(nothing, logs())
    validator = NewsValidator(Fixed())
    flat, good = np.zeros(9, np.float32), np.zeros(9, np.float32)
    good[[0, 5]] = 1.0  # the click of user 0's first impression, and one of two clicks of user 2
    found = validator.gains(data, {"scores": flat}, {"scores": good})
    # user 0: (1 - 1/2 + 1/2 - 1/2) / 2; user 2: clicks 5 and 7 against 6 and 8: pairs 1, 1, 1/2, 1/2, less 1/2
    np.testing.assert_allclose(found, [0.25, 0.0, 0.25])
    assert validator.clients(data).tolist() == [0, 2]
    assert validator.gains(data, {"scores": good}, {"scores": flat})[0] == -0.25
    nobody = OwnImpressions(logs())  # has impressions to validate with
    assert not len(validator.clients(nobody)) and not validator.gains(nobody, {}, {}).any()


SETTINGS = ("training=sums", "size.word_dim=4", "size.heads=2", "size.head_dim=2", "size.attention=2", "size.basis=2")
LAST = 3


@cache
def made():
    method = get("privaterec")
    config, _ = configure(method, preset="tuned", dataset="", settings=list(SETTINGS))
    problem = small_problem(method, 40, LAST)
    data = method.clients(config, problem)
    return method.plan(config, problem), data


def validator_and_trainer():
    plan, data = made()
    return int(plan.model_selection.validator.clients(data)[0]), int(np.flatnonzero(data.rows.lengths() > 0)[0])


def client(folder, number, plan=None, **options):
    plan = plan or made()[0]
    budgets = options.pop("budgets", [budget_for(plan)])
    return FederatedClient.create(folder, plan, made()[1].take(np.array([number])), budgets, number=number, **options)


def model(factor=1.0, number=LAST):
    """The start, or another model."""
    plan = made()[0]
    weights = {name: (values * np.float32(factor)).astype(np.float32) for name, values in plan.start.items()}
    return rounds.encode(RoundSpec(number), whole_model(plan.schema, weights, number), plan.schema)


def charged(one):
    return one.spent()[0].messages


def test_a_validator_tells_its_clipped_gain_and_is_charged(tmp_path):
    plan, data = made()
    number, _ = validator_and_trainer()
    with client(tmp_path, number) as one:
        message = one.validate(model(), model(-1.0), LAST)
        assert charged(one) == 1
    comparison = plan.model_selection
    other = {name: -values for name, values in plan.start.items()}
    gain = comparison.validator.gains(data.take(np.array([number])), plan.start, other)
    assert gain[0] != 0.0 and messages.decode_gain(message) == comparison.mechanism.bound(gain)[0]
    assert abs(messages.decode_gain(message)) <= comparison.mechanism.clip


def test_asked_again_it_gives_the_same_bytes_whatever_it_is_asked_about(tmp_path):
    number, _ = validator_and_trainer()
    with client(tmp_path, number) as one:
        message = one.validate(model(), model(-1.0), LAST)
    plan, data = made()
    with FederatedClient.open(tmp_path, plan, data.take(np.array([number]))) as again:
        assert again.validate(model(), model(-1.0), LAST) == message
        assert again.validate(model(-1.0), model(), LAST + 1) == message and again.validate(b"", b"", 0) == message
        assert charged(again) == 1


def test_a_trainer_never_validates_and_a_validator_never_learns_even_with_other_data(tmp_path):
    plan, data = made()
    validator, trainer = validator_and_trainer()

    def learn(one):
        one.take_part(model(number=0), 0)

    def validate(one):
        one.validate(model(), model(2.0), LAST)

    roles = ((trainer, learn, validate, "does not validate"), (validator, validate, learn, "does not train"))
    for number, own, other, told in roles:
        with client(tmp_path / told, number) as one:
            with pytest.raises(AnotherRole, match=told):
                other(one)
            assert charged(one) == 0
            own(one)
        swapped = data.take(np.array([validator + trainer - number]))
        with FederatedClient.open(tmp_path / told, plan, swapped) as one, pytest.raises(AnotherRole):
            other(one)


def test_a_budget_that_is_too_small_keeps_the_answer_inside(tmp_path):
    number, _ = validator_and_trainer()
    with client(tmp_path, number, budgets=[budget_for(made()[0], epsilon=0.01)]) as one:
        for _ in range(2):
            with pytest.raises(BudgetExhausted):
                one.validate(model(), model(2.0), LAST)
        assert charged(one) == 0


def test_models_that_are_none_are_refused_free_of_charge(tmp_path):
    number, _ = validator_and_trainer()
    with client(tmp_path, number) as one:
        for start, trained in ((b"", model()), (model(), b"junk"), (model(), model()[:-1])):
            with pytest.raises(BadMessage):
                one.validate(start, trained, LAST)
        with pytest.raises(WrongRound):
            one.validate(model(number=1), model(), LAST)
        assert charged(one) == 0
        one.validate(model(), model(2.0), LAST)


def test_nothing_is_compared_for_a_sum_that_is_refused(tmp_path, monkeypatch):
    """It would cost nothing, and how long it took would tell of the data, for any two models."""
    number, _ = validator_and_trainer()
    compared, gains = [], NewsValidator.gains

    def counted(self, *given):
        compared.append(1)
        return gains(self, *given)

    def refuse():
        raise BadMessage("of another sum")

    monkeypatch.setattr(NewsValidator, "gains", counted)
    with client(tmp_path, number) as one:
        with pytest.raises(BadMessage, match="another sum"):
            one.validate(model(), model(-1.0), LAST, mask=bytes, in_sum=0, check=refuse)
        assert (compared, charged(one)) == ([], 0)
        sent = one.validate(model(), model(-1.0), LAST, mask=bytes, in_sum=0, check=lambda: None)
        assert (compared, charged(one)) == ([1], 1)
        assert one.validate(b"", b"", LAST, mask=bytes, in_sum=0, check=refuse) == sent  # which has left already


def test_a_plan_without_model_selection_has_no_validators(tmp_path):
    number, _ = validator_and_trainer()
    one = client(tmp_path, number, replace(made()[0], model_selection=None))
    with one, pytest.raises(BadInput, match="no validation clients"):
        one.validate(model(), model(2.0), LAST)


def test_a_client_stays_with_the_comparison_that_it_agreed_to(tmp_path):
    number, _ = validator_and_trainer()
    plan, data = made()
    client(tmp_path, number).close()
    louder = GainSum(clip=0.1, epsilon=50.0, delta=1e-6, adjacency=plan.model_selection.mechanism.adjacency)
    other = replace(plan, model_selection=replace(plan.model_selection, mechanism=louder))
    with pytest.raises(BadInput, match="another plan"):
        FederatedClient.open(tmp_path, other, data.take(np.array([number])))


def test_the_server_takes_clipped_numbers_and_no_others():
    mechanism = GainSum(clip=0.1, epsilon=2.0, delta=1e-6, adjacency="add-remove")
    selection = ModelSelection(validator=None, mechanism=mechanism, people=50)
    fair = [messages.encode_gain(0.1)] * 50
    found = selection_of(fair, selection, FastSource(1, one_generator=True))
    assert found.validators == 50 and found.gain == pytest.approx(0.1, abs=8 * mechanism.sigma / 50)
    for wrong in (messages.encode_gain(0.11), messages.encode_gain(-5.0), b"1"):
        with pytest.raises(VeilrecError):
            selection_of([*fair, wrong], selection, FastSource(1, one_generator=True))
    assert selection_of([], selection, FastSource(1, one_generator=True)).kept == "start"
