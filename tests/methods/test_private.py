"""The private methods: noise that keeps the promise, honest values beside claims, and clear errors."""

import json
import math

import numpy as np
import pytest

from tests.methods.tastes import COHORT, ITEMS, ON_RATINGS, build, same, small_problem
from veilrec.client.local_training import Cohort, OwnItems
from veilrec.client.mf import ITEMS as TABLE
from veilrec.client.mf import USER, MfLocalTrainer, MfSettings
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.core.schema import RoundSpec, Schema, Tensor
from veilrec.methods.base import Problem, configure, make_trainer, promised, read_presets
from veilrec.methods.private import PrivacySettings, noisy_sum
from veilrec.methods.registry import get
from veilrec.privacy.accounting import Rounds
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.checks import on_lattice_l2
from veilrec.privacy.events import ComposedEvent, GaussianEvent, SampledEvent, repeated
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.clipping import clip_whole
from veilrec.privacy.mechanisms.sums import on_lattice
from veilrec.privacy.samplers import UNITS
from veilrec.runs.evaluation import evaluate_run, with_popularity
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.training import train
from veilrec.server.round_specs import CohortSettings

# Those that know items by their ids; what reads features has tests of its own (test_meta.py).
PRIVATE = [n for n in ON_RATINGS if {"calibration"} == {"calibration", "features"} & set(get(n).config.model_fields)]
SUB = [name for name in ON_RATINGS if "selection" in get(name).config.model_fields]
SMALL_NETWORK = {  # the paper's takes seconds a round
    name: ("local.mlp=16", "local.layers=16,8,8") for name in PRIVATE if "ncf" in name
}


PRIVACY = PrivacySettings(epsilon=3.0, delta=1e-5, clip_norm=0.7)


def sigma_of(cohort, dimension=100, *, keeps_state=False, **options):
    schema = Schema((Tensor("layer", (dimension,), by_row=False),))
    return noisy_sum(PRIVACY, cohort, schema, rounds=5, clients=60, keeps_state=keeps_state, **options).sigma


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
@pytest.mark.parametrize("before", [None, GaussianEvent(0.3)])
def test_the_noise_of_all_rounds_and_the_selection_keep_the_promise(sampling, before):
    dimension = 10**8  # sqrt(10^8) steps of sigma / 2^20 are almost a hundredth of sigma
    sigma = sigma_of(CohortSettings(size=10, sampling=sampling), dimension, before=before)
    moved = on_lattice_l2(0.7 if sampling == "poisson" else 1.4, dimension, sigma / UNITS)
    event = Rounds(rounds=5, sampling=sampling, population=60, cohort=10).event(sigma / moved)
    spent = epsilon_of(event if before is None else ComposedEvent(((before, 1), (event, 1))), 1e-5)
    assert 0.998 * 3.0 <= spent <= 3.0


def test_fixed_cohorts_of_clients_with_state_are_accounted_for_as_everybody():
    fixed, poisson = (CohortSettings(size=10, sampling=sampling) for sampling in ("fixed", "poisson"))
    everybody = CohortSettings(size=0, sampling="fixed")
    assert sigma_of(fixed, keeps_state=True) == sigma_of(everybody, keeps_state=True) == sigma_of(everybody)
    assert sigma_of(fixed) < 0.5 * sigma_of(fixed, keeps_state=True)
    assert sigma_of(poisson, keeps_state=True) == sigma_of(poisson)


@pytest.mark.parametrize(
    ("sampling", "size", "worthless", "secret"),
    [("fixed", 10, True, False), ("poisson", 10, False, True), ("poisson", 0, False, False)],
)
def test_a_statement_tells_what_a_cohort_is_worth(sampling, size, worthless, secret):
    settings = [f"cohort.size={size}", f"cohort.sampling={sampling}"]
    config, _ = configure(get("dp-fedmf"), preset="tuned", dataset="", settings=settings)
    caveats = " ".join(get("dp-fedmf").guarantee(config).caveats)
    assert ("fixed size is worth nothing" in caveats) == worthless and ("has to stay secret" in caveats) == secret


def test_the_honest_value_of_rows_is_that_of_privacy_math():
    # section 7: |rows| sqrt(d) epsilon_2 for scale 2C / epsilon_2, and twice that for C / epsilon_2
    config, _ = configure(get("dp-fedmf"), preset="paper", dataset="ml-100k")
    claim = promised(get("dp-fedmf"), config, small_problem(users=120))
    assert (claim.basis, claim.epsilon, claim.delta) == ("as published", 2.0, 0.0)
    assert claim.honest_epsilon == pytest.approx(2.0 * ITEMS * math.sqrt(32) * 2.0, rel=1e-6)
    assert "over a run in which a client takes part" in claim.honest_note


@pytest.mark.parametrize(("size", "rate"), [(0, 1.0), (10, 1.0 / 6.0)])
@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_a_click_may_change_a_clipped_update_into_its_opposite(size, rate, sampling):
    sigma = sigma_of(CohortSettings(size=size, sampling=sampling), unit="click")
    event = repeated(SampledEvent(1.4 / sigma, rate, "padding"), 5)  # its owner is drawn or not
    assert 0.998 * 3.0 <= epsilon_of(event, 1e-5) <= 3.0


def test_two_updates_that_differ_by_a_click_can_lie_twice_the_clip_norm_apart():
    items = np.array([[1.0, 0.0], [-400.0, 0.0]], np.float32)
    updates = []
    for own in ([0], [0, 1]):
        trainer = MfLocalTrainer(MfSettings(dim=2, negatives=0, epochs=2, user_rate=0.5, item_rate=0.5))
        train = Csr(np.array([0, len(own)]), np.array(own, np.int32))
        cohort = Cohort(np.array([0]), OwnItems(train), {USER: np.array([[1.0, 0.0]], np.float32)}, 0)
        rows = clip_whole(trainer.learn(cohort, {TABLE: items}, RoundSpec(0)).updates, 0.05).tables[TABLE]
        update = np.zeros((2, 2))
        update[rows.index] = rows.values
        updates.append(update)
    assert np.linalg.norm(updates[0] - updates[1]) > 1.9 * 0.05


def test_reports_of_a_cohort_alone_would_tell_who_is_in_it():
    asked = ["selection.unit=click", "selection.reports=cohort"]
    with pytest.raises(BadInput, match="the items of a round would tell who is in it"):
        build("priv-fedmf-sub", small_problem(), [*asked, "cohort.size=10"])
    build("priv-fedmf-sub", small_problem(), [*asked, "cohort.size=0"])


def test_noise_on_a_lattice_covers_what_cutting_to_it_moves():
    sigma = on_lattice(3.0, 0.7, 10**8)
    assert sigma / on_lattice_l2(0.7, 10**8, sigma / UNITS) == pytest.approx(3.0) and sigma > 1.02 * 3.0 * 0.7
    assert on_lattice(3.0, 0.7, 1) == pytest.approx(3.0 * 0.7, rel=1e-5)
    with pytest.raises(BadInput, match="only hide rounding; ask for a larger privacy.epsilon") as error:
        on_lattice(60.0, 0.7, 10**8)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["priv-fedmf-sub", "priv-fedncf-sub", "priv-fedncf-sub-compress"])
def test_reports_that_trust_nobody_cover_clicks_only(name):
    method = get(name)
    settings = ["selection.unit=click", "cohort.size=50", *SMALL_NETWORK.get(name, ())]
    config, _ = configure(method, preset="tuned", dataset="", settings=settings)
    promise = method.guarantee(config)
    assert promise.unit == "click" and "Only single clicks" in promise.caveats[0]
    trainer = make_trainer(method, config, small_problem())
    assert np.isfinite(trainer.step(0).loss or 0.0)


@pytest.mark.parametrize("name", SUB)
def test_a_threshold_that_selects_nothing_or_everything(name):
    small = SMALL_NETWORK.get(name, ())
    with pytest.raises(BadInput, match="selection.threshold is 0.99: no item"):
        build(name, small_problem(), ["selection.threshold=0.99", "selection.share=0.9", *small]).step(0)
    with pytest.raises(BadInput, match="from 0 to below 1"):
        build(name, small_problem(), ["selection.threshold=1.5", *small])
    one_item_each = Problem(Csr(np.arange(61), np.zeros(60, np.int32)), 1, 0, rounds=2)
    whole = build(name, one_item_each, small)
    whole.step(0)
    assert all(np.isfinite(value).all() for value in whole.state().values())


@pytest.mark.parametrize("name", [*PRIVATE, "fedmf-sub-rr", "fedmf-sub-rr-est"])
def test_clients_without_ratings_take_part(name):
    train = small_problem().train
    gap = Csr(np.insert(train.offsets, 5, train.offsets[5]), train.items)  # client 5 has nothing
    trainer = build(name, Problem(gap, ITEMS, 0, rounds=2), SMALL_NETWORK.get(name, ()))
    trainer.step(0)
    trainer.step(1)
    assert all(np.isfinite(value).all() for value in trainer.state().values())
    assert np.isfinite(trainer.model().score_all(np.array([5]))).all()


def test_presets_over_presets():
    lean = read_presets("fedmf-lean")["tuned@ml-1m"]
    assert lean["rounds"] == 205 and lean["local"] == read_presets("fedmf")["tuned@ml-1m"]["local"]
    assert read_presets("fedmf")["tuned@ml-1m"]["rounds"] == 300


def test_a_private_run_that_is_no_better_than_popularity_says_so():
    method = get("priv-fedmf-sub")
    config, _ = configure(method, preset="tuned", dataset="")
    promise = method.guarantee(config)
    worse = with_popularity(promise, {"ndcg@10": 0.2}, {"ndcg@10": 0.25}, method="dp-fedmf")
    assert "no better than popularity" in worse.caveats[-1]
    assert "0." not in worse.caveats[-1]  # exact metrics are no part of a promise
    assert "private-popularity" in worse.caveats[-1]
    assert with_popularity(promise, {"ndcg@10": 0.3}, {"ndcg@10": 0.25}, method="dp-fedmf") == promise
    assert with_popularity(promise, {"ndcg@10": 0.2}, {"ndcg@10": 0.25}, method="private-popularity") == promise


def test_epsilons_of_other_terms_are_not_compared_with_that_of_private_popularity():
    def caveat(setting):
        method = get("privaterec")
        config, _ = configure(method, preset="tuned", dataset="synthetic-news", settings=[setting])
        return with_popularity(method.guarantee(config), {"auc": 0.4}, {"auc": 0.5}, method="privaterec").caveats[-1]

    assert "a smaller epsilon in the same terms" in caveat("training=sums")
    for other in ("training=reports", "calibration=as-published"):
        assert "in other terms (per user, add-remove, whole run, trusting: server, proven)" in caveat(other)
        assert "smaller epsilon" not in caveat(other)


def test_the_statement_of_a_whole_run_tells_that_popularity_ranks_better(tmp_path):
    request = RunRequest("priv-fedmf-sub", "synthetic-ratings:users=150,items=200,mean_history=12,seed=3", rounds=1)
    result = train(prepare(request), tmp_path / "run")
    assert result["metrics"]["ndcg@10"] < result["baselines"]["popularity"]["ndcg@10"]
    stated = Guarantee.from_json(json.loads((tmp_path / "run" / "result.json").read_text())["guarantee"])
    assert (stated.basis, stated.unit, stated.scope) == ("proven", "user", "whole run")
    assert "no better than popularity" in stated.caveats[-1]
    assert evaluate_run(tmp_path / "run")["guarantee"] == result["guarantee"]


def test_the_honest_value_of_a_run_is_made_of_reports_and_updates():
    # 300 bits at epsilon 2 in each of 5 rounds, or once; 9 updates of the same rows either way
    method = get("priv-fedmf-sub")
    notes = []
    for settings in (["selection.reports=everybody"], ["selection.reports=cohort"], ["selection.fresh=false"]):
        config, _ = configure(method, preset="paper", dataset="", settings=[*settings, "cohort.size=30"])
        notes.append(promised(method, config, small_problem()).honest_note)
    totals = [float(note.split("epsilon ")[1].split(" ")[0]) for note in notes]
    assert "takes part 3 times and draws 5 reports, epsilon" in notes[0]
    assert "takes part 3 times and draws 3 reports, epsilon" in notes[1]
    assert "takes part 3 times and draws one report, epsilon" in notes[2]
    assert totals[0] - totals[2] == pytest.approx(4 * ITEMS * 2.0, rel=0.01)
    assert totals[1] - totals[2] == pytest.approx(2 * ITEMS * 2.0, rel=0.01)
    assert f"; {totals[2]:.4g} if it drew one report and repeated it" in notes[0]


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize(("preset", "dataset", "users"), [("paper", "ml-1m", 131), ("tuned", "frappe", 97)])
def test_every_preset_starts_in_both_calibrations(name, preset, dataset, users):
    for calibration in ("as-published", "proven"):
        settings = [f"calibration={calibration}", *SMALL_NETWORK.get(name, ())]
        if preset == "paper":
            settings.append("cohort.size=30")
        config, _ = configure(get(name), preset=preset, dataset=dataset, settings=settings)
        trainer = make_trainer(get(name), config, small_problem(users=users))
        trainer.step(0)
        assert all(np.isfinite(value).all() for value in trainer.state().values())


@pytest.mark.parametrize("name", ["dp-fedmf", "dp-fedncf", "priv-fedmf-sub"])
@pytest.mark.parametrize(
    ("aggregation", "optimiser", "power"),
    [("mean", "sgd", 1.0), ("row-mean", "sgd", 1.0), ("row-sqrt", "sgd", 0.5), ("row-mean", "adam", 1.0)],
)
def test_a_proven_sum_is_divided_by_a_public_number_only(name, aggregation, optimiser, power):
    # The number of clients that changed a row, which FedSubAvg divides by, is not covered by the noise.
    number = COHORT**power
    rate, caution = (0.5, 1e-3) if optimiser == "sgd" else (0.01, 0.5)
    plain, careful = (rate / number, caution) if optimiser == "sgd" else (rate, caution * number)
    runs = [
        build(name, small_problem(), [f"server.optimiser={optimiser}", *settings, *SMALL_NETWORK.get(name, ())])
        for settings in (
            [f"aggregation={aggregation}", f"server.rate={rate}", f"server.caution={caution}"],
            ["aggregation=sum", f"server.rate={plain}", f"server.caution={careful}"],
        )
    ]
    for round_number in range(2):
        for run in runs:
            run.step(round_number)
    assert same(runs[0].state(), runs[1].state())


def test_reports_of_clicks_that_are_drawn_anew_share_what_one_report_may_spend():
    settings = ["selection.unit=click", "selection.fresh=true"]
    once, anew = (build("priv-fedmf-sub", small_problem(), settings[:count]) for count in (1, 2))
    keep = [trainer.plan.reports.mechanism.keep_probability for trainer in (once, anew)]
    epsilons = [math.log(p / (1.0 - p)) for p in keep]
    assert epsilons[0] == pytest.approx(0.2 * 8.0, rel=1e-6)
    assert epsilons[1] == pytest.approx(epsilons[0] / small_problem().rounds, rel=1e-6)
