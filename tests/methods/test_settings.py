"""Bad settings are refused in one line that names them; proven plans spend what they promise."""

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.methods import tiny_news
from tests.methods.tastes import ON_RATINGS, small_problem
from veilrec.core.errors import BadInput
from veilrec.methods.base import configure, make_trainer, promised
from veilrec.methods.registry import METHODS, get
from veilrec.privacy.accounting import epsilon_of
from veilrec.privacy.events import training_event

# Each of these alone is refused, by its own name.
ALONE = {
    "dp-fedmf": "privacy.epsilon=0",
    "dp-fedmf-svd": "rank=9 rank=0",
    "dp-fedmf-topk": "compression.share=0 compression.share=1.5",
    "dp-fedncf": "privacy.delta=1",
    "dp-fedncf-dgc": "dgc.share=0 dgc.share=2 dgc.momentum=1 dgc.local_clip_norm=0",
    "dp-privrec": "bound.quantile=1 bound.count_share=0 bound.rate=-1 bound.noise_multiplier=0",
    "dpals": "votes=1 whole=0 gramians=0.995 exponent=0.1 ridge=0 cohort.sampling=cyclic",
    "ease": "ridge=0",
    "fcf": "local.dim=0 local.alpha=-1 local.decay=0 local.decay=inf start=0",
    "fedmf": "local.dim=0 local.epochs=0 local.negatives=-1 local.batch=-1 local.user_rate=nan local.item_rate=-1 "
    "local.decay=inf local.start=-0.1 adapt_epochs=0 rounds=2.5 rounds=nan rounds=inf rounds=1e400 rounds=many",
    "fedmf-lean": "row_share=0",
    "fedncf": "local.layers= local.layers=8,0 local.layers=99999999,8 local.gmf=0 local.batch=-1 local.start=nan "
    "local.decay=inf local.optimiser=lion local.epochs=0 local.item_rate=-1 adapt_epochs=-1",
    "fednewsrec": "train_users=0 train_users=81 round_share=0 round_share=nan train_share=1.5 negatives=20000",
    "mf": "dim=0 rate=-1 rate=inf decay=-0.1 negatives=0 adapt_epochs=0",
    "ncf": "mlp=100000 adapt_epochs=0",
    "nrms": "size.heads=9999 history=20000",
    "priv-fedncf-sub-compress": "compression.share=0",
    "private-gram": "votes=0 votes=1 items=-1 items=5000 cohort.sampling=cyclic",
    "private-popularity": "privacy.epsilon=0 privacy.epsilon=much privacy.delta=1 privacy.clip_norm=nan privacy.no=1",
    "privaterec": "size.basis=65 size.basis=1 privacy.pad_probability=1 privacy.epsilon=0.0000001 "
    "privacy.epsilon=1000 model=bert",
    "privrec": "features.items=[] local.loss=hinge local.rate=-1 model.hidden=[0] "
    "local.epochs=0 local.steps=-1 local.rate=nan local.rate=inf local.needed=-1",
}
REPORTS = "training=reports cohort.size=20 cohort.sampling=cyclic"
TOGETHER = [
    ("dp-fedmf", "cohort.size=61", "cohort.size is 61, but only 60 clients"),
    ("dp-fedmf", "cohort.sampling=fixed cohort.drop_out=0.1", "nothing is proven"),
    ("dp-fedmf", "aggregation=weighted-mean", "aggregation is weighted-mean.*use --set aggregation=mean"),
    ("dp-fedmf-svd", "rank=9", "rank is 9, but a table with 8 columns"),
    ("dp-privrec", "cohort.size=30 cohort.sampling=fixed cohort.drop_out=0.1", "use --set cohort.sampling=poisson"),
    ("dp-privrec", "calibration=as-published cohort.size=30 cohort.sampling=poisson", "cohort.sampling=fixed"),
    ("dp-privrec", "cohort.size=30 aggregation=weighted-mean", "use --set aggregation=mean"),
    ("dpals-features", "items=[colour]", "unknown feature 'colour'"),
    ("fedmf", "rounds=many", "setting rounds of fedmf is 'many'"),
    ("fednewsrec", "cohort.size=20 calibration=proven cohort.sampling=fixed cohort.drop_out=0.1", "fixed cohort"),
    (
        "fednewsrec",
        "calibration=none train_users=81",
        r"train_users is 81, but \d+ users can learn: .* or leave it out",
    ),
    ("nn-self", "local.proximal=0.1", "without ratings and proximal term"),
    ("privaterec", "training=reports privacy.law=gaussian", "laplace"),
    ("privaterec", "training=reports cohort.size=5 cohort.sampling=poisson", "cyclic"),
    ("privaterec", "training=sums cohort.size=10 cohort.sampling=cyclic", "cyclic"),
    ("privaterec", f"{REPORTS} privacy.epsilon=0.001", "nothing but noise"),
    ("privrec", "cohort.size=30 features.items=[nope]", "unknown feature 'nope'"),
    ("privrec", "cohort.size=30 local.loss=rating", "no ratings with a scale"),
    ("privrec", "cohort.size=30 local.negatives=0", "a softmax needs other items"),
]


def problem_of(name):
    return small_problem() if name in ON_RATINGS else tiny_news.problem()


def refusal(name, *settings):
    small = () if name in ON_RATINGS else tiny_news.SMALL
    with pytest.raises(BadInput) as refused:
        config, _ = configure(get(name), preset="tuned", dataset="", settings=[*small, *settings])
        make_trainer(get(name), config, problem_of(name))
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("name", ALONE)
def test_a_bad_value_is_refused_by_the_name_of_its_setting(name):
    for setting in ALONE[name].split():
        known, _, value = setting.partition("=")
        told = refusal(name, setting)
        assert known.rpartition(".")[2] in told, setting
        assert any(part in told for part in (*value.split(","), "unknown", "empty")), setting


@pytest.mark.parametrize(("name", "settings", "told"), TOGETHER)
@pytest.mark.usefixtures("synthetic_sentences")
def test_settings_that_do_not_go_together_are_refused(name, settings, told):
    with pytest.raises(BadInput, match=told):
        raise BadInput(refusal(name, *settings.split()))


@pytest.mark.parametrize("name", ["privrec", "dp-privrec", "popularity-head", "nn-self"])
def test_data_without_features_is_refused(name):
    config, _ = configure(get(name), preset="tuned", dataset="")
    with pytest.raises(BadInput, match=r"features\.yaml"):
        make_trainer(get(name), config, replace(small_problem(), features=None))


SMALL_COHORT = "privacy.epsilon=3 cohort.size=40 local.steps=2 local.negatives=8"
PRIVATE = [name for name in ON_RATINGS if "calibration" in get(name).config.model_fields]
SPENDING = [
    *((name, "") for name in PRIVATE if not name.startswith("dp-privrec")),
    *((name, f"privacy.epsilon={epsilon}") for name in ("dpals", "private-gram") for epsilon in (1, 8)),
    ("dpals-features", ""),
    ("private-popularity", ""),
    *(
        ("dp-privrec", f"{SMALL_COHORT} cohort.sampling={sampling} model.popularity={popularity}")
        for sampling in ("poisson", "fixed", "cyclic")
        for popularity in ("true", "false")
    ),
    *(
        ("veil", f"privacy.epsilon={epsilon} {further}")
        for epsilon in (0.5, 8)
        for further in ("", "people=20000", "cohort.size=20")
    ),
    *(
        ("veil on news", f"privacy.epsilon={epsilon} {further}")
        for epsilon in (0.5, 2)
        for further in ("", "cohort.size=20", "people=5000", "titles=sentences")
    ),
    ("privaterec", f"{REPORTS} privacy.epsilon=8"),
]


@pytest.mark.parametrize(("name", "settings"), SPENDING)
@pytest.mark.usefixtures("synthetic_sentences")
def test_the_whole_run_spends_what_is_promised(name, settings):
    name, _, news = name.partition(" on ")
    method, small = get(name), tiny_news.SMALL if name == "privaterec" else ()
    config, _ = configure(method, preset="tuned", dataset="", settings=[*small, *settings.split()])
    problem = tiny_news.problem() if news else problem_of(name)
    spent = epsilon_of(training_event(method.plan(config, problem)), 1e-6)
    assert 0.97 * config.privacy.epsilon < spent <= config.privacy.epsilon
    stated = promised(method, config, problem)
    trust = "nobody" if "reports" in settings else "server"
    assert (stated.basis, stated.unit, stated.scope, stated.trust) == ("proven", "user", "whole run", trust)
    assert (stated.epsilon, stated.delta) == (config.privacy.epsilon, 1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_every_preset_is_of_settings_that_there_are(name):
    for key in get(name).presets:
        preset, kind, of = re.fullmatch(r"([\w-]+)([@:]?)(.*)", key).groups()
        settings = [f"calibration={of}"] if kind == ":" else []
        configure(get(name), preset=preset, dataset=of if kind == "@" else "", settings=settings)


def test_features_are_chosen_by_name():
    config, _ = configure(get("dpals-features"), preset="tuned", dataset="", settings=["items=[taste]"])
    plan = get("dpals-features").plan
    assert plan(config, small_problem()).start["features"].shape[1] == 15


def test_ratings_and_the_logarithm_of_votes_do_not_go_together():
    problem = small_problem()
    rated = replace(problem, ratings=np.ones(len(problem.train.items), np.float32))
    for preset, settings in (("tuned", ["cohort.size=30", "local.loss=rating"]), ("ratings", ["cohort.size=30"])):
        config, _ = configure(get("privrec"), preset=preset, dataset="", settings=settings)
        if preset == "ratings":
            make_trainer(get("privrec"), config, rated)
        else:
            with pytest.raises(BadInput, match="use --preset ratings"):
                make_trainer(get("privrec"), config, rated)
