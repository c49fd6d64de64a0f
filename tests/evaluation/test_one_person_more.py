"""What one person's data can move: over every reader and every protocol, nothing of anybody else's."""

from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import pytest

from tests.data.test_adressa import event, write
from tests.data.test_ebnerd import ARTICLES, behaviours, write_split
from tests.data.test_frappe import CONTEXT_TAIL, HEADER
from tests.data.test_impression_logs import shows, write_jsonl
from tests.data.test_mind import write_split as write_mind
from veilrec.core.csr import Csr
from veilrec.data import adressa, ebnerd, frappe, mind, synthetic_news, synthetic_ratings
from veilrec.data.impression_logs import read_impressions
from veilrec.data.movielens import read_1m, read_100k
from veilrec.data.own_csv import read_csv
from veilrec.data.population import some_users
from veilrec.evaluation.protocols import PROTOCOLS, make_split
from veilrec.methods.news.common import share_taking_part
from veilrec.runs.request import problem_of

DAY, NEW_YEAR = 86_400, 1_483_228_800  # 2017-01-01
PEOPLE, EACH, DAYS = 30, 11, 4
N_ITEMS = PEOPLE // 2 * EACH
# Two people of each part of the items, so that no item is one person's alone; the last one comes two days after all
# others, the first comes before them, and both use things twice and rate beyond what others do.
LATE, EARLY = PEOPLE - 1, 0


def uses_of(person):
    """(user, item, seconds, rating), in the order of time."""
    rng = np.random.default_rng(person)
    items = (person // 2) * EACH + rng.permutation(EACH) + 1
    seconds = NEW_YEAR + np.sort(rng.integers(0, DAYS * DAY, EACH))
    seconds += {LATE: (DAYS + 2) * DAY, EARLY: -9 * DAY}.get(person, 0)
    rated = rng.integers(2, 5, EACH) + (person == LATE) - (person == EARLY)
    return [(100 - person, int(i), int(t), int(r)) for i, t, r in zip(items, seconds, rated, strict=True)]


def log_without(person):
    rows = [row for other in range(PEOPLE) if other != person for row in uses_of(other)]
    return sorted(rows, key=lambda row: (row[2] % 977, row))


def of_100k(folder, rows):
    (folder / "u.data").write_text("".join(f"{u}\t{i}\t{r}\t{t}\n" for u, i, t, r in rows))
    return read_100k(folder)


def of_1m(folder, rows):
    (folder / "ratings.dat").write_text("".join(f"{u}::{i}::{r}::{t}\n" for u, i, t, r in rows))
    return read_1m(folder)


def of_frappe(folder, rows):
    tails = [CONTEXT_TAIL.replace("morning", daytime) for daytime in ("morning", "night", "unknown")]
    lines = [f"{u}\t{i}\t{r}{tails[(t + k) % 3]}" for u, i, t, r in rows for k in range(1 + t % 2)]
    (folder / "frappe.csv").write_text(HEADER + "".join(lines))
    return frappe.read(folder)


def of_csv(folder, rows, unit=1):
    (folder / "log.csv").write_text(
        "user,item,rating,time\n" + "".join(f"{u},{i},{r},{t * unit}\n" for u, i, t, r in rows)
    )
    return read_csv(folder / "log.csv")


def of_csv_in_milliseconds(folder, rows):
    return of_csv(folder, [(u, i, t // (100_000 if u == 100 - EARLY else 1), r) for u, i, t, r in rows], 1000)


def of_csv_with_a_cut(folder, rows):
    of_csv(folder, rows)
    return read_csv(folder / "log.csv", cut=NEW_YEAR + (DAYS - 1) * DAY)


def shown(rows):
    """(user, moment, item, another, history) of every use."""
    for u, i, t, _ in rows:
        past = [str(item) for _, item, at, _ in uses_of(100 - u) if at < t]
        yield u, t, str(i), str(i % N_ITEMS + 1), past


def of_mind(folder, rows):
    for part, kept in (("train", lambda t: t < NEW_YEAR + 3 * DAY), ("dev", lambda t: t >= NEW_YEAR + 3 * DAY)):
        lines = [
            [
                str(n),
                str(u),
                f"{datetime.fromtimestamp(t, UTC):%m/%d/%Y %I:%M:%S %p}",
                " ".join(past),
                f"{i}-1 {other}-0",
            ]
            for n, (u, t, i, other, past) in enumerate(shown(rows))
            if kept(t)
        ]
        write_mind(
            folder / part, lines, [[str(i), "", "", f"News {i}", "", "", "[]", "[]"] for i in range(1, N_ITEMS + 1)]
        )
    return mind.read(folder)


def of_ebnerd(folder, rows):
    moments = [
        (u, datetime.fromtimestamp(t, UTC).replace(tzinfo=None), int(i), int(o)) for u, t, i, o, _ in shown(rows)
    ]
    middle = datetime(2017, 1, 4)
    for part, kept in (("train", lambda at: at < middle), ("validation", lambda at: at >= middle)):
        table = [(n, u, at, [i, o], [i]) for n, (u, at, i, o) in enumerate(moments) if kept(at)]
        write_split(folder / part, behaviours(*table), {u: [uses_of(100 - u)[0][1]] for u, *_ in moments})
    articles = [(i, f"News {i}", "", "") for i in range(1, N_ITEMS + 1)]
    pl.DataFrame(articles, schema=ARTICLES.schema, orient="row").write_parquet(folder / "articles.parquet")
    return ebnerd.read(folder)


def of_adressa(folder, rows):
    days = [f"201701{day:02}" for day in range(1, DAYS + 1)]
    events = {day: [] for day in days}
    for u, i, t, _ in rows:
        day = min(max((t - NEW_YEAR) // DAY, 0), DAYS - 1)
        events[days[day]].append(event(f"cx:{u:03}", t, str(i), title=f"News {i}"))
    for day, some in events.items():
        write(folder / day, some)
    return adressa.read(folder)


def of_impressions(folder, rows, **how):
    described = [{"item": str(i)} for i in range(1, N_ITEMS + 1)]
    lines = [shows(str(u), t, [i, other], [i]) for u, t, i, other, _ in shown(rows)]
    return read_impressions(write_jsonl(folder, described + lines), **how)


def of_impressions_with_a_cut(folder, rows):
    return of_impressions(folder, rows, cut=NEW_YEAR + (DAYS - 1) * DAY)


READERS = {
    "ml-100k": of_100k,
    "ml-1m": of_1m,
    "frappe": of_frappe,
    "csv": of_csv,
    "csv in milliseconds": of_csv_in_milliseconds,
    "csv with a cut": of_csv_with_a_cut,
    "mind": of_mind,
    "ebnerd": of_ebnerd,
    "adressa": of_adressa,
    "impressions": of_impressions,
    "impressions with a cut": of_impressions_with_a_cut,
}
IMPRESSIONS = ("mind", "ebnerd", "impressions", "impressions with a cut", "synthetic-news")
RATED = ("ml-100k", "ml-1m", "csv", "csv in milliseconds", "csv with a cut", "synthetic-ratings")


def protocols_of(name):
    """Those that this data can be cut by."""
    left_out = {"mind"} if name not in IMPRESSIONS else {"last-day-20"}
    left_out |= {"last-day-20"} if name == "frappe" else set()
    return sorted(set(PROTOCOLS) - left_out - ({"holdout-users-liked"} if name not in RATED else set()))


@cache
def population_without(name, person):
    if name.startswith("synthetic"):  # made anew for the others alone
        generate = synthetic_news.generate if name == "synthetic-news" else synthetic_ratings.generate
        how = {"news": 300, "days": 4} if name == "synthetic-news" else {"items": 200, "days": 5, "mean_history": 12}
        everybody = generate(users=60, seed=1, **how)
        others = np.flatnonzero(np.arange(60) != (-1 if person is None else person))
        return (
            everybody
            if person is None
            else generate(users=59, seed=1, **how)
            if person == 59
            else some_users(everybody, others)
        )
    with TemporaryDirectory() as folder:
        return READERS[name](Path(folder), log_without(person))


def rows_by_name(rows, users):
    return {user: rows.row(place).tolist() for place, user in enumerate(users)}


def impressions_by_name(part, users):
    found = {user: [] for user in users}
    for row in range(len(part)):
        low, high = part.shown.offsets[row : row + 2]
        past = part.histories.row(int(part.history_of[row])).tolist()
        found[users[part.users[row]]].append(
            (int(part.times[row]), part.shown.items[low:high].tolist(), part.clicked[low:high].tolist(), past)
        )
    return found


def cases_by_name(cases, users):
    found = {user: [] for user in users}
    for row, user in enumerate(cases.users):
        drawn = None if cases.candidates is None else cases.candidates[row].tolist()
        rest = [None if part is None else part.row(row).tolist() for part in (cases.adapt, cases.set_aside)]
        rest += [None if cases.people is None else cases.people.codes[row].tolist()]
        found[users[user]].append((cases.positives.row(row).tolist(), drawn, rest))
    return {} if cases.impressions is None else impressions_by_name(cases.impressions, users), found


def all_of(name, person, protocol, seed, validation):
    """Everything that a split says of each user, by name, and what a method gets beside it."""
    population = population_without(name, person)
    split = make_split(population, protocol, seed=seed, validation=validation)
    users = list(population.users)
    parts = {"train": rows_by_name(split.train, users), "test": cases_by_name(split.test, users)}
    if split.valid is not None:
        parts["valid"] = cases_by_name(split.valid, users)
    if split.train_impressions is not None:
        parts["train impressions"] = impressions_by_name(split.train_impressions, users)
    problem = problem_of(population, split, seed, 1)
    for part in ("records", "disliked", "liked"):
        if (rows := getattr(split, part)) is not None:
            parts[part] = rows_by_name(rows, users)
    if problem.features is not None:
        known = problem.features.users
        parts["people"] = dict(zip(users, zip(known.codes.tolist(), known.numbers.tolist(), strict=True), strict=True))
    if problem.ratings is not None:
        parts["ratings"] = rows_by_name(Csr(split.train.offsets, problem.ratings), users)
    return (split.cut, population.rating_scale, list(population.items)), parts


def without(parts, user):
    """What is said of all others."""
    if isinstance(parts, tuple):
        return tuple(without(part, user) for part in parts)
    if isinstance(parts, dict):
        return {name: without(part, user) for name, part in parts.items() if name != user}
    return parts


@pytest.mark.parametrize("name", [*READERS, "synthetic-ratings", "synthetic-news"])
def test_one_person_more_changes_nothing_of_anybody_else(name):
    for person in (EARLY, LATE, 59) if name.startswith("synthetic") else (EARLY, LATE):
        gone = set(population_without(name, None).users) - set(population_without(name, person).users)
        assert len(gone) == 1
        for protocol in protocols_of(name):
            for validation in (False, True):
                both = [all_of(name, one, protocol, 2, validation) for one in (None, person)]
                assert both[0][0] == both[1][0], protocol
                everybody, others = (without(parts, gone.copy().pop()) for _, parts in both)
                assert everybody == others, (protocol, validation, person)
                assert sum(map(len, everybody["train"].values())) > 50


def test_who_takes_part_is_drawn_for_each_alone():
    rng = np.random.default_rng(1)
    lengths = rng.integers(0, 4, 400)
    logs = Csr(np.concatenate([[0], np.cumsum(lengths)]), np.arange(lengths.sum(), dtype=np.int32))
    some, more = (share_taking_part(logs, share, seed=3).lengths() for share in (0.3, 0.6))
    assert ((some == 0) | (some == lengths)).all() and ((some > 0) <= (more > 0)).all()
    assert abs((more > 0).sum() / (lengths > 0).sum() - 0.6) < 0.12  # over 4 standard deviations
    for person in (0, 17, 399):  # whose data is there or not
        emptied = np.where(np.arange(400) == person, 0, lengths)
        others = Csr(np.concatenate([[0], np.cumsum(emptied)]), np.zeros(emptied.sum(), np.int32))
        found = share_taking_part(others, 0.3, seed=3).lengths()
        assert np.delete(found, person).tolist() == np.delete(some, person).tolist()
