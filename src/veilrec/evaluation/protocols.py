"""The protocols of evaluation: which part of a population is learnt from, and which is asked.

A user with too few items (fewer than 2, or 3 with validation) is not asked and stays whole in training.
For all others the test cases are the same with and without validation, which is cut from the training part. Where
only what was liked counts, the items of a user are those.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from veilrec.core.arrays import Bools, Indices, Offsets
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput, known_name
from veilrec.data.population import Population, features_by, keys_of, usual_context
from veilrec.evaluation.split import (
    Cases,
    Purpose,
    Rated,
    Split,
    cases_of,
    distinct_rows,
    draw_unused,
    draws_of,
    join_rows,
    keep_entries,
    known_items,
    mark_some,
    split_impressions,
    split_last_day,
)

PROTOCOLS = {
    "loo-99": "the last item of every user, ranked among 99 sampled items that the user did not use",
    "loo-full": "the last item of every user, ranked among all items that the user did not use in training",
    "holdout-users": "a fifth of the users: adapt on half of their items, rank the rest among all never used",
    "holdout-records": "holdout-users by rows of the log, repeats kept: adapt on half of them, rank each other row",
    "holdout-users-liked": "holdout-users with ratings above 3 alone; what was rated lower is no positive and no rival",
    "ratio-8-2": "a random fifth of every user's items, ranked among all items not used in training",
    "mind": "the impressions of the dev part: rank what was shown, given the history before it",
    "last-day-20": "every click of the last day, ranked among 20 sampled items that the user did not use",
}
N_NEGATIVES = 99
LIKED = 3.0  # stars of five: more of them is a liking (PrivRec, section 3.2)
STARS = (1.0, 5.0)
TEST_USERS, VALID_USERS = 0.2, 0.1  # of holdout-users


def default_protocol(population: Population) -> str:
    """`mind` for a log of impressions or published dev parts, Adressa's for Adressa, `loo-99` for all others."""
    if "dev" in population.impressions or "cut" in population.facts:  # of a log: also where nobody has two impressions
        return "mind"
    return "last-day-20" if population.name == "adressa" else "loo-99"


def make_split(population: Population, protocol: str, *, seed: int, validation: bool = False) -> Split:
    """Cut a population by a protocol; the same seed gives the same cut."""
    protocol = known_name("protocol", protocol, PROTOCOLS)
    if seed < 0:
        raise BadInput(f"seed {seed} is negative: give a whole number from 0 up")
    if seed >= 2**63:
        raise BadInput(f"seed {seed} is too large: give a whole number below 2**63")
    if population.n_items < 2:
        raise BadInput(f"{population.name} has fewer than 2 items, so there is nothing to rank: bring more data")
    if protocol == "mind":
        return split_impressions(population, seed, validation)
    if protocol == "last-day-20":
        return split_last_day(population, seed, validation)

    pairs = population.interactions.pairs()
    if len(pairs.items) == 0:
        raise BadInput(f"{population.name} has no interactions to learn from: bring data with at least a click")
    disliked = None
    if protocol == "holdout-users-liked":
        liked = _liked(population)
        pairs, disliked = keep_entries(pairs, liked), keep_entries(pairs, ~liked)
    needed = 3 if validation else 2
    able = pairs.lengths() >= needed
    if not able.any():
        raise BadInput(
            f"no user of {population.name} has {needed} distinct items{'' if disliked is None else ' rated above 3'},"
            f" which {protocol} needs{' with a validation part' if validation else ''}: bring longer histories"
        )
    if protocol in ("holdout-users", "holdout-users-liked"):
        return _holdout_users(population, pairs, able, seed, validation, disliked)
    if protocol == "holdout-records":
        return _holdout_records(population, needed, seed, validation)
    if protocol == "ratio-8-2":
        return _ratio(population, pairs, able, seed, validation)
    return _leave_one_out(population, pairs, able, seed, validation, sampled=protocol == "loo-99")


def make_transfer_split(population: Population, protocol: str | None, *, seed: int) -> Split:
    """What a finished model is asked about a data set that it has not learnt from.

    That is the usual cut; of a data set that has a single part, all of it is asked.

    `Split.train` is then what stands in the histories, for popularity to count.
    """
    if protocol in (None, "mind") and set(population.impressions) == {"train"}:
        asked = population.impressions["train"]
        known = known_items(asked, population.n_users, population.n_items, clicks=False)
        cases = cases_of(population.name, asked, "given")
        return Split("mind", population.n_users, population.n_items, known, cases)
    split = make_split(population, protocol or default_protocol(population), seed=seed)
    if split.test.impressions is None:
        raise BadInput(
            f"{split.protocol} on {population.name} asks about users of its own training: a saved model can be measured"
            " elsewhere with --protocol mind or last-day-20"
        )
    return split


def _leave_one_out(
    population: Population, pairs: Csr, able: Bools, seed: int, validation: bool, *, sampled: bool
) -> Split:
    """Hold out each able user's last item, or the published one; then the last of the rest for validation."""
    users = np.flatnonzero(able)
    if population.fixed_test is None:
        test_items = pairs.items[pairs.offsets[users + 1] - 1]
    else:
        test_items = population.fixed_test[0][users]
    held_of = np.full(len(pairs), -1, np.int32)
    held_of[users] = test_items
    rest = keep_entries(pairs, pairs.items != held_of[pairs.row_numbers()])

    negatives = None
    cut = "each user's last item" if population.fixed_test is None else "the test items as they were published"
    if sampled and population.fixed_test is not None:
        negatives = population.fixed_test[1][users]
    elif sampled:
        negatives = _negatives(population, pairs, users, seed, Purpose.TEST_NEGATIVES)
    test = _one_positive(users, test_items, negatives)

    train, valid = rest, None
    if validation:
        last = rest.offsets[users + 1] - 1
        # Drawn from outside the rest: the validation must not know the test item, not even by its absence.
        negatives = _negatives(population, rest, users, seed, Purpose.VALID_NEGATIVES) if sampled else None
        valid = _one_positive(users, rest.items[last], negatives)
        kept = np.ones(len(rest.items), np.bool_)
        kept[last] = False
        train = keep_entries(rest, kept)
        test = replace(test, set_aside=valid.positives)
    name = "loo-99" if sampled else "loo-full"
    return Split(name, population.n_users, population.n_items, train, test, valid, cut=cut)


def _negatives(population: Population, used: Csr, users: Offsets, seed: int, purpose: Purpose) -> Indices:
    left = population.n_items - used.lengths()[users]
    if left.min() < N_NEGATIVES:
        user = population.users[int(users[left.argmin()])]
        raise BadInput(
            f"loo-99 needs {N_NEGATIVES} items that a user did not use, and user {user} leaves {left.min()}"
            f" of {population.n_items}: give --protocol loo-full"
        )
    keys = keys_of(population.users)[users]
    return draw_unused(used.take(users), keys, population.n_items, N_NEGATIVES, seed, purpose)


def _one_positive(users: Offsets, items: Indices, negatives: Indices | None) -> Cases:
    positives = Csr(np.arange(len(users) + 1, dtype=np.int64), np.ascontiguousarray(items))
    candidates = None if negatives is None else np.column_stack([items, negatives])
    return Cases(users, positives, candidates=candidates)


def _ratio(population: Population, pairs: Csr, able: Bools, seed: int, validation: bool) -> Split:
    """8:2 within every user, 7:1:2 with validation.

    The paper (section 6.1) gives the ratio and no order; we choose at random, at least one item a part.
    """
    keys = keys_of(population.users)
    train, test = _take_out(pairs, able, 5, keys, seed, Purpose.TEST_ITEMS)
    valid = None
    if validation:
        train, valid = _take_out(train, able, 8, keys, seed, Purpose.VALID_ITEMS)
        test = replace(test, set_aside=valid.positives)
    cut = "a random fifth of each user's items"
    return Split("ratio-8-2", population.n_users, population.n_items, train, test, valid, cut=cut)


def _take_out(pairs: Csr, able: Bools, one_in: int, keys: Offsets, seed: int, purpose: Purpose) -> tuple[Csr, Cases]:
    counts = np.where(able, np.maximum(pairs.lengths() // one_in, 1), 0)
    marked = mark_some(pairs.offsets, counts, keys, seed, purpose)
    users = np.flatnonzero(able)
    return keep_entries(pairs, ~marked), Cases(users, keep_entries(pairs, marked).take(users))


def _liked(population: Population) -> Bools:
    """Mark the pairs of user and item whose last rating is above 3 stars of five."""
    log = population.interactions
    without = "use the protocol holdout-users, for which every use counts"
    if log.ratings is None:
        raise BadInput(f"holdout-users-liked needs ratings from 1 to 5, and {population.name} has none: {without}")
    scale, low, high = population.rating_scale, float(log.ratings.min()), float(log.ratings.max())
    if scale != STARS or not STARS[0] <= low <= high <= STARS[1]:
        told = "have no scale" if scale is None else f"have one from {scale[0]:g} to {scale[1]:g}"
        raise BadInput(
            f"holdout-users-liked needs ratings from 1 to 5, and those of {population.name} {told} and go from {low:g}"
            f" to {high:g} (counts of uses are none): {without}"
        )
    liked: Bools = log.ratings[log.last_uses()] > LIKED
    return liked


def _holdout_users(
    population: Population, pairs: Csr, able: Bools, seed: int, validation: bool, disliked: Csr | None
) -> Split:
    """A fifth of all users for test, a further tenth for validation; their rows of `train` are empty.

    Each user is drawn alone, so that nobody's place depends on who else is there.

    The paper (section 3.3) splits a test user's data "evenly" and gives no order: we do it at random, and the
    odd item goes to the half for adapting. Every pair counts as a positive; what is `disliked` is none of them.
    """
    protocol = "holdout-users" if disliked is None else "holdout-users-liked"
    drawn = draws_of(keys_of(population.users), seed, Purpose.TEST_USERS)
    for_test = np.flatnonzero(drawn < TEST_USERS)
    for_valid = np.flatnonzero((drawn >= TEST_USERS) & (drawn < TEST_USERS + VALID_USERS) & validation)

    learnt_users = np.ones(len(pairs), np.bool_)
    learnt_users[for_test] = learnt_users[for_valid] = False
    train = keep_entries(pairs, learnt_users[pairs.row_numbers()])
    if len(train.items) == 0:
        raise BadInput(
            f"{protocol} leaves none of the {len(pairs)} users of {population.name} for training:"
            " bring more users, or use the protocol loo-99"
        )

    def halves(users: Offsets) -> Cases:
        if len(users) == 0:
            raise BadInput(
                f"{protocol} drew no user of {population.name} with enough items: try another seed,"
                " or use the protocol loo-99"
            )
        cases, low = _halves(population, pairs, users, seed), None
        if disliked is not None:
            known = keep_entries(disliked, ~_mark_half(population, disliked, users, seed))
            cases, low = replace(cases, set_aside=disliked.take(users)), known.take(users)
        return replace(cases, rated=_rated(population, cases, low))

    test = halves(for_test[able[for_test]])
    valid = halves(for_valid[able[for_valid]]) if validation else None
    liked = None if disliked is None else pairs
    low = None if disliked is None else keep_entries(disliked, learnt_users[disliked.row_numbers()])
    cut = "a random fifth of the users, each drawn alone"
    return Split(
        protocol, population.n_users, population.n_items, train, test, valid, disliked=low, liked=liked, cut=cut
    )


def _halves(population: Population, pairs: Csr, users: Offsets, seed: int) -> Cases:
    marked = _mark_half(population, pairs, users, seed)
    adapt = keep_entries(pairs, ~marked)
    known = features_by(population, adapt)
    return Cases(
        users,
        keep_entries(pairs, marked).take(users),
        adapt=adapt.take(users),
        people=None if known is None else known.users.take(users),
    )


def _rated(population: Population, cases: Cases, disliked: Csr | None) -> Rated | None:
    """The ratings of people who adapt: of what they adapt on, of what they disliked in it, and of what is asked."""
    if population.rating_scale is None or cases.adapt is None:
        return None
    rows = cases.adapt if disliked is None else join_rows(cases.adapt, disliked)
    log, highest = population.interactions, np.float32(population.rating_scale[1])
    known, asked = (log.ratings_of(cases.users[some.row_numbers()], some.items) for some in (rows, cases.positives))
    if known is None or asked is None:
        return None
    return Rated(rows, known / highest, asked / highest, population.rating_scale)


def _mark_half(population: Population, rows: Csr, users: Offsets, seed: int) -> Bools:
    counts = np.zeros(len(rows), np.int64)
    counts[users] = rows.lengths()[users] // 2
    return mark_some(rows.offsets, counts, keys_of(population.users), seed, Purpose.TEST_ITEMS)


def _holdout_records(population: Population, needed: int, seed: int, validation: bool) -> Split:
    """As `holdout-users`, but a test user's rows are split, so that an item may stand in both halves.

    Each row of the one half is ranked among the items that its user never used (PrivRec, section 3.3, "negative items
    that the user has never interacted with"). What a client knows of its user is what the other half says.
    """
    log = population.interactions
    rows = Csr(log.offsets, log.items)
    whole = _holdout_users(population, rows, rows.lengths() >= needed, seed, validation, None)

    def by_rows(cases: Cases) -> Cases:
        held = np.zeros(len(rows), np.int64)
        held[cases.users] = 1
        marked = _mark_half(population, rows, cases.users, seed)
        distinct = distinct_rows(cases.positives, population.n_items)
        keys = cases.positives.row_numbers() * population.n_items + cases.positives.items
        _, repeats = np.unique(keys, return_counts=True)
        people = cases.people
        if population.contexts is not None:
            people = usual_context(population, ~marked & (held[rows.row_numbers()] > 0)).take(cases.users)
        return replace(cases, positives=distinct, repeats=repeats.astype(np.int64), people=people, rated=None)

    return replace(
        whole,
        protocol="holdout-records",
        train=distinct_rows(whole.train, population.n_items),
        records=whole.train,
        test=by_rows(whole.test),
        valid=None if whole.valid is None else by_rows(whole.valid),
    )
