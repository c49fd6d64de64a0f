"""One person more moves a sum by one clip norm, as the epsilon counts; the cut of a log must not add to it."""

import cut
from veilrec.data.synthetic_draws import DAY, FIRST_DAY


def test_a_late_person_moves_a_sum_by_one_clip_norm_unless_the_person_decides_the_cut(tmp_path):
    for has in (True, False):
        cut.write_log(tmp_path, with_person=has)
    public = FIRST_DAY + (cut.DAYS - 1) * DAY

    def moved(*cuts):
        return cut.measure(tmp_path, cuts, draws=0)["clip_norms_moved"]

    assert moved(None, None) <= 1.000001
    assert moved(public, public) <= 1.000001
    assert moved(cut.LATE // DAY * DAY, public) > 3.0  # the last day of the log: the measure would see it
