from dataclasses import replace

import pytest

from tests.report.conftest import DATA
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


def test_lists_are_what_the_models_recommend_and_favourites_are_marked(person, models):
    assert [own.method for own in person.lists] == ["fedmf", "mf", "popularity"]
    for own, model in zip(person.lists, models, strict=False):
        assert [item.item for item in own.items] == [r.item for r in model.recommend_user(person.user, 10)]
        assert own.guarantee == model.guarantee
    for own in person.lists:
        assert len(own.items) == len(own.fits) == 10
        assert own.fits == tuple(item.category in person.favourites for item in own.items)
    used = models[0].clients.used
    counts = {item: int((used.items == item).sum()) for item in range(POPULATION.n_items)}
    own = set(used.row(POPULATION.users.find(person.user)).tolist())
    best = [counts[POPULATION.items.find(item.item)] for item in person.lists[-1].items]
    assert best == sorted((count for item, count in counts.items() if item not in own), reverse=True)[:10]


def test_favourites_are_counted_and_titles_are_cut(person, models):
    known = POPULATION.catalogue
    used = models[0].clients.used.row(POPULATION.users.find(person.user))
    categories = [known.categories[item] for item in used.tolist()]
    counts = sorted((categories.count(name) for name in set(categories)), reverse=True)
    assert list(person.favourites.values()) == counts[:3]
    assert all(categories.count(name) == count for name, count in person.favourites.items())
    assert tastes.TitledItem("i", "The Last Spy (spy)", "spy").named() == "The Last Spy (spy)"
    assert tastes.TitledItem("i", "Rain and more rain to come", "weather").named(3) == "Rain and more ... (weather)"


def test_without_titles_there_is_nothing_to_tell(models):
    with pytest.raises(BadInput, match="no titles and categories"):
        tastes.example_person(models, replace(POPULATION, catalogue=None))
