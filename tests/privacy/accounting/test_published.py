"""DP-PrivRec's Tables 3 and 4: privacy-math.md section 5."""

from __future__ import annotations

import pytest

from veilrec.privacy.accounting.accountant import (
    DELTAS,
    FRAPPE_TABLE,
    MOVIELENS_TABLE,
    ROUNDS,
    compared,
    paper_convention,
)


@pytest.mark.parametrize(("population", "cohort"), [*MOVIELENS_TABLE, *FRAPPE_TABLE])
def test_every_printed_entry_comes_from_counting_each_device_as_a_release(population: int, cohort: int) -> None:
    for delta, printed in zip(DELTAS, (MOVIELENS_TABLE | FRAPPE_TABLE)[population, cohort], strict=True):
        ours = paper_convention(population, cohort, delta, releases=ROUNDS * cohort)
        assert ours == pytest.approx(printed, abs=1.5e-4)


@pytest.mark.parametrize(
    ("population", "cohort", "releases", "epsilons"),
    [
        (4800, 5, 5000, (1.7440, 1.3602, 0.9765)),
        (4800, 5, 1000, (1.5768, 1.1931, 0.8093)),
        (4800, 30, 30000, (18.9108, 16.6082, 14.3056)),
        (4800, 30, 1000, (3.4140, 2.8384, 2.2599)),
        (760, 15, 1000, (10.7808, 9.2607, 7.7256)),
    ],
)
def test_values_of_autodp(population: int, cohort: int, releases: int, epsilons: tuple[float, ...]) -> None:
    for delta, epsilon in zip(DELTAS, epsilons, strict=True):
        assert paper_convention(population, cohort, delta, releases=releases) == pytest.approx(epsilon, abs=1e-4)


@pytest.mark.parametrize(("population", "cohort"), [(4800, 5), (4800, 30), (760, 15)])
def test_the_honest_value_is_several_times_smaller(population: int, cohort: int) -> None:
    entry = compared(population, cohort, 1e-6)
    assert entry.paper_convention == pytest.approx(entry.paper, abs=1.5e-4)
    assert 2.7 < entry.paper / entry.honest < 13.0
