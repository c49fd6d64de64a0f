"""DP-PrivRec's Tables 3 and 4: privacy-math.md section 5."""

import pytest

from veilrec.privacy.accounting import accountant


@pytest.mark.parametrize(("population", "cohort"), [*accountant.MOVIELENS_TABLE, *accountant.FRAPPE_TABLE])
def test_every_printed_entry_comes_from_counting_each_client_as_a_release(population, cohort):
    for delta, printed in zip(
        accountant.DELTAS, (accountant.MOVIELENS_TABLE | accountant.FRAPPE_TABLE)[population, cohort], strict=True
    ):
        ours = accountant.paper_convention(population, cohort, delta, releases=accountant.ROUNDS * cohort)
        assert ours == pytest.approx(printed, abs=1.5e-4)


@pytest.mark.parametrize(("population", "cohort"), [(4800, 5), (4800, 30), (760, 15)])
def test_the_honest_value_is_several_times_smaller(population, cohort):
    entry = accountant.compared(population, cohort, 1e-6)
    assert entry.paper_convention == pytest.approx(entry.paper, abs=1.5e-4)
    assert 2.7 < entry.paper / entry.honest < 13.0
