from dataclasses import replace

import numpy as np
import pytest

from tests.report.conftest import DATA
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.data.datasets import load
from veilrec.report import person as tastes
from veilrec.runs.saved import open_model

POPULATION = load(DATA)


@pytest.fixture(scope="module")
def models(run_folders):
    return [open_model(folder) for folder in run_folders.values()]


@pytest.fixture(scope="module")
def person(models):
    return tastes.example_person(models, POPULATION)


def test_the_person_is_the_first_with_ten_items(person, models):
    used = models[0].clients.used
    index = next(user for user in range(len(used)) if len(used.row(user)) >= 10)
    assert person.user == models[0].clients.users[index]
    assert person.used == len(used.row(index))
    assert [item.item for item in person.latest] == [models[0].items[i] for i in used.row(index)[::-1][:10]]


def test_lists_are_what_the_models_recommend_and_fits_are_counted_from_categories(person, models):
    assert [own.method for own in person.lists] == ["fedmf", "mf", "popularity"]
    for own, model in zip(person.lists, models, strict=False):
        assert [item.item for item in own.items] == [r.item for r in model.recommend_user(person.user, 10)]
        assert own.guarantee == model.guarantee
    for own in person.lists:
        assert len(own.items) == len(own.fits) == 10
        assert own.fits == tuple(item.category in person.favourites for item in own.items)
        main = next(iter(person.favourites))
        assert own.fit.main == sum(item.category == main for item in own.items)
        assert own.fit.favourites == sum(own.fits)


def test_favourites_and_chance_are_counted(person, models):
    known = POPULATION.catalogue
    used = models[0].clients.used.row(POPULATION.users.find(person.user) or 0)
    categories = [known.categories[item] for item in used.tolist()]
    counts = sorted((categories.count(name) for name in set(categories)), reverse=True)
    assert list(person.favourites.values()) == counts[:3]
    assert all(categories.count(name) == count for name, count in person.favourites.items())
    of_these = sum(name in person.favourites for name in known.categories)
    assert person.chance.favourites == pytest.approx(10 * of_these / POPULATION.n_items)
    mains = list(known.categories).count(next(iter(person.favourites)))
    assert person.chance.main == pytest.approx(10 * mains / POPULATION.n_items)


def test_the_mean_is_over_everybody(person, models):
    names = list(POPULATION.catalogue.categories)
    overlaps = []
    for best in models[0].recommend_everybody(10):
        own = [names[item] for item in models[0].clients.used.row(best.user).tolist()]
        listed = [names[item] for item in best.items.tolist()]
        overlaps.append(sum(min(own.count(c) / len(own), listed.count(c) / len(listed)) for c in set(own)))
    assert person.lists[0].fit.mean_overlap == pytest.approx(np.mean(overlaps))


def test_a_list_that_misses_the_main_interest_does_not_fit_as_well_as_one_that_has_it():
    counts = np.array([[30, 7, 4, 4], [0, 0, 0, 0]])  # travel, health, food, others; and somebody without any
    misses, has, mixed = (
        tastes._fit(counts, np.array([listed, [10, 0, 0, 0]]), 0, [0, 1, 2])
        for listed in ([0, 8, 2, 0], [10, 0, 0, 0], [6, 2, 1, 1])
    )
    assert misses == tastes.CategoryFit(0, 10, pytest.approx(11 / 45), pytest.approx(11 / 45))
    assert has == tastes.CategoryFit(10, 10, pytest.approx(30 / 45), pytest.approx(30 / 45))
    assert mixed.overlap == pytest.approx(0.6 + 7 / 45 + 4 / 45 + 4 / 45)


def test_chance_is_what_lists_drawn_from_all_items_overlap_on_average():
    """20,000 draws: the mean's deviation is below 0.001, so it misses 0.005 never by chance."""
    counts, sizes = np.array([[30, 7, 4, 4]]), np.array([9, 21, 30, 40])
    drawn = np.random.default_rng(0).multivariate_hypergeometric(sizes, 10, 20_000) / 10
    expected = np.minimum(drawn, counts / counts.sum()).sum(axis=1).mean()
    chance = tastes._by_chance(counts, sizes, 0, [0, 1, 2])
    overlap = pytest.approx(expected, abs=0.005)
    assert chance == tastes.CategoryFit(0.9, 6.0, overlap, overlap)


def test_favourites_are_had_popularity_leaves_out_what_is_used_and_titles_are_cut():
    used = Csr(np.array([0, 2, 2]), np.array([0, 1], np.int32))
    chosen = tastes._favourites(tastes._count(used, np.array([4, 4, 0, 1]), 5))
    assert chosen.tolist() == [[False] * 4 + [True], [False] * 5]
    used = Csr(np.array([0, 2, 3, 4]), np.array([2, 0, 2, 1], np.int32))
    assert [row.tolist() for row in tastes._popular(used, 4)] == [[1, 3], [0, 1, 3], [2, 0, 3]]
    assert tastes.TitledItem("i", "The Last Spy (spy)", "spy").named() == "The Last Spy (spy)"
    assert tastes.TitledItem("i", "Rain and more rain to come", "weather").named(3) == "Rain and more ... (weather)"


def test_without_titles_there_is_nothing_to_tell(models):
    with pytest.raises(BadInput, match="no titles and categories"):
        tastes.example_person(models, replace(POPULATION, catalogue=None))
