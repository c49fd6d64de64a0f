"""MovieLens 100K and 1M: known facts of the real files, and small files with every fault."""

import gzip

import numpy as np
import pytest

from veilrec.core.errors import BadInput
from veilrec.data.movielens import read_1m, read_100k

# user 3 rated 20 before 10 although the file says it later; user 1's two ratings share a second
RATINGS = "3::10::4::200\n3::20::5::100\n1::30::1::50\n1::10::2::50\n2::20::3::7\n2::30::3::8\n"
MOVIES = "10::Alpha (1999)::Action|War\n20::Béta::Drama\n30::Gamma::Comedy\n40::Never rated::Drama\n"
FITTING = [(0, 0), (1, 2), (2, 0)], [[1] * 99, [0] * 99, [2] * 99]  # a published test of these ratings


def write_1m(folder, ratings=RATINGS, movies=MOVIES, people=None):
    (folder / "ratings.dat").write_text(ratings)
    (folder / "movies.dat").write_bytes(movies.encode("latin-1"))
    if people is not None:
        (folder / "users.dat").write_text(people)
    return folder


def write_ncf(folder, positives, negatives, named=None):
    (folder / "ncf").mkdir(exist_ok=True)
    lines = [f"{user}\t{item}\t5\t0\n" for user, item in positives]
    (folder / "ncf" / "ml-1m.test.rating").write_text("".join(lines))
    rows = [
        f"({user},{item})\t" + "\t".join(map(str, row)) + "\n"
        for (user, item), row in zip(named or positives, negatives, strict=True)
    ]
    (folder / "ncf" / "ml-1m.test.negative.gz").write_bytes(gzip.compress("".join(rows).encode()))


def values(side, row):
    """What a row says, by the names of the features."""
    names = {}
    for feature, start in zip(side.categories, side.starts, strict=False):
        held = [code - start for code in side.codes[row] if start <= code < start + feature.codes]
        names[feature.name] = [feature.values[code - 1] if code else None for code in held]
    return names


def test_the_real_ml_100k_is_as_published(real):
    population = read_100k(real("ml-100k"))
    assert (population.n_users, population.n_items, len(population.interactions)) == (943, 1682, 100_000)
    assert (population.facts["duplicates_merged"], population.users[0], population.items[0]) == (0, "1", "1")
    first = population.catalogue.titles[0], population.catalogue.categories[0]
    assert first == ("Toy Story (1995)", "Animation|Children's|Comedy")
    later = np.diff(population.interactions.times) >= 0
    later[population.interactions.offsets[1:-1] - 1] = True  # steps from one user to the next
    assert later.all()
    # user 1: 24, M, technician; the second film is GoldenEye (1995)
    assert values(population.features.users, 0) == {"age": ["18"], "gender": ["M"], "occupation": ["technician"]}
    genres = ["Action", "Adventure", "Thriller"]
    assert values(population.features.items, 1) == {"genres": genres, "year": ["1995-1999"]}
    assert population.features.items.unknown().sum(axis=0).tolist() == [2, 1]


def test_the_real_ml_1m_is_as_published(real):
    folder = real("ml-1m")
    population = read_1m(folder)
    assert (population.n_users, population.n_items, len(population.interactions)) == (6040, 3883, 1_000_209)
    assert (population.unlisted_items, len(np.unique(population.interactions.items))) == (0, 3706)
    stars = np.bincount(population.interactions.ratings.astype(int)).tolist()
    assert stars == [0, 56174, 107557, 261197, 348971, 226310]
    assert (population.items[0], population.catalogue.titles[0]) == ("1", "Toy Story (1995)")
    assert (population.items[-1], population.catalogue.titles[-1]) == ("3952", "Contender, The (2000)")
    users, items = population.features.users, population.features.items
    assert values(users, 0) == {"age": ["1"], "gender": ["F"], "occupation": ["K-12 student"]}
    assert values(items, 0) == {"genres": ["Animation", "Children's", "Comedy"], "year": ["1995-1999"]}
    assert not users.unknown().any() and not items.unknown().any()
    if (folder / "ncf").is_dir():
        held_out, negatives = population.fixed_test
        assert (held_out.shape, negatives.shape) == ((6040,), (6040, 99))
        assert population.items[held_out[0]] == "48"  # 25 in the first line of ml-1m.test.rating
        assert population.facts["test_items_among_negatives"] == 156


def test_order_within_a_user_is_time_then_file_and_duplicates_are_merged(tmp_path):
    population = read_1m(write_1m(tmp_path))
    assert list(population.users) == ["1", "2", "3"]
    assert (list(population.items), population.unlisted_items) == (["10", "20", "30", "40"], 0)  # nobody rated 40
    log = population.interactions
    assert (log.offsets.tolist(), log.items.tolist()) == ([0, 2, 4, 6], [2, 0, 1, 2, 1, 0])
    assert log.ratings.tolist() == [1, 2, 3, 3, 5, 4]
    assert list(population.catalogue.titles)[:3] == ["Alpha (1999)", "Béta", "Gamma"]
    assert population.fixed_test is None
    population = read_1m(write_1m(tmp_path, RATINGS + RATINGS))
    assert (len(population.interactions), population.facts["duplicates_merged"]) == (6, 6)


def test_a_malformed_line_is_named(tmp_path):
    for files, fault in (
        ({"ratings": RATINGS + "1::10::5\n"}, r"ratings\.dat, line 7: expected 4 fields separated by '::', found 3"),
        ({"ratings": RATINGS + "1::10::x::5\n"}, r"ratings\.dat, line 7: rating 'x' is not a whole number"),
        ({"ratings": RATINGS + "1::10::6::5\n"}, r"ratings\.dat, line 7: rating '6' is above 5"),
        ({"ratings": RATINGS + "0::10::5::5\n"}, r"ratings\.dat, line 7: user '0' is below 1"),
        ({"ratings": RATINGS + "1::ten::5::5\n"}, r"ratings\.dat, line 7: item 'ten' is not a whole number"),
        ({"ratings": RATINGS + "1::10::5::\n"}, r"ratings\.dat, line 7: time is empty"),
        ({"movies": MOVIES + "30::Again::Comedy\n"}, r"movies\.dat, line 5: item 30 is listed twice"),
        ({"people": "1::F::1::10::1\n2::M::old::3::1\n"}, r"users\.dat, line 2: age 'old' is not a whole number"),
        ({"people": "1::F::1::10::1\n1::M::25::3::1\n"}, r"users\.dat, line 2: user 1 is listed twice"),
        ({"people": "1::F::1\n"}, r"users\.dat, line 1: expected 5 fields"),
    ):
        with pytest.raises(BadInput, match=fault):
            read_1m(write_1m(tmp_path, **files))


def test_the_published_test_which_counts_items_by_first_appearance_is_read_when_it_fits(tmp_path):
    ratings = RATINGS.replace("::10::", "::31::")  # what the files call 0, 1, 2 is 31, 20, 30
    write_ncf(write_1m(tmp_path, ratings), FITTING[0], [[1] * 99, [0] * 99, [2] * 98 + [0]])
    population = read_1m(tmp_path)
    held_out, negatives = population.fixed_test
    assert [population.items[item] for item in held_out] == ["31", "30", "31"]
    assert [population.items[item] for item in negatives[:, 0]] == ["20", "31", "30"]
    assert population.facts["test_items_among_negatives"] == 1


def test_a_published_test_that_does_not_fit_is_refused(tmp_path):
    for published, fault in (
        (([(0, 1), (1, 2), (2, 0)], FITTING[1]), "line 1: the test item is not among"),
        ((FITTING[0], [[1] * 99, [1] * 99, [2] * 99]), "line 2: a negative is among"),
        (([(0, 0), (2, 0)], [[1] * 99, [2] * 99]), "one line for each of the 3 users"),
        (([(0, 0), (1, 9), (2, 0)], FITTING[1]), "line 2: item '9' is above 2"),
        ((FITTING[0], [[1] * 98, [0] * 98, [2] * 98]), "expected 100 fields"),
        ((*FITTING, [(0, 0), (1, 2), (2, 1)]), "does not name the pairs"),
    ):
        write_ncf(write_1m(tmp_path), *published)
        with pytest.raises(BadInput, match=fault):
            read_1m(tmp_path)


def test_ml_100k_without_titles_or_people_is_read(tmp_path):
    (tmp_path / "u.data").write_text("2\t7\t5\t9\n1\t3\t4\t8\n")
    population = read_100k(tmp_path)
    assert (population.catalogue, population.features, population.unlisted_items) == (None, None, 2)
    assert list(population.items) == ["3", "7"]
    (tmp_path / "u.item").write_text("3|Three|d||u" + "|0" * 18 + "|1\n")
    assert read_100k(tmp_path).unlisted_items == 1
    catalogue = read_100k(tmp_path).catalogue
    assert list(catalogue.titles) == ["Three", ""]
    assert list(catalogue.categories) == ["Western", ""]


def test_people_and_films_are_described_and_ages_put_into_groups(tmp_path):
    people = "1::F::1::10::48067\n3::M::56::99::1\n9::M::25::3::1\n"
    features = read_1m(write_1m(tmp_path, people=people)).features
    assert [values(features.users, row) for row in range(3)] == [
        {"age": ["1"], "gender": ["F"], "occupation": ["K-12 student"]},
        {"age": [None], "gender": [None], "occupation": [None]},  # not listed
        {"age": ["56"], "gender": ["M"], "occupation": [None]},
    ]
    assert values(features.items, 0) == {"genres": ["Action", "War"], "year": ["1995-1999"]}
    assert values(features.items, 1) == {"genres": ["Drama"], "year": [None]}
    (tmp_path / "u.data").write_text("".join(f"{user}\t{1 + user % 2}\t3\t7\n" for user in range(1, 8)))
    ages = [7, 18, 24, 34, 49, 55, 73]
    (tmp_path / "u.user").write_text("".join(f"{n}|{age}|M|writer|1\n" for n, age in enumerate(ages, 1)))
    features = read_100k(tmp_path).features
    found = [values(features.users, row)["age"] for row in range(7)]
    assert found == [["1"], ["18"], ["18"], ["25"], ["45"], ["50"], ["56"]]
    assert (len(features.items), features.items.features) == (2, ())  # no u.item
