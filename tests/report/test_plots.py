import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from tests.cli.running import says
from veilrec.audit.auditor import audit_claim, select
from veilrec.report import plots
from veilrec.report.labels import byte_scale, human_bytes, meaning, spelt

CURVE = plots.Curve("fedmf", [1, 2, 3], [0.1, 0.3, 0.4])
CHART = plots.Chart("rounds", "HR@10 over $x$ and $y$", "Round", "HR@10", [CURVE], {"popularity": 0.2})


def _words(svg):
    return "".join(ET.fromstring(svg).itertext())  # noqa: S314  (we have just made it)


def test_labels_are_as_people_say_them():
    sizes = {0: "0 B", 999: "999 B", 1000: "1.0 kB", 2_500_000: "2.5 MB", 7e12: "7.0 TB"}
    assert {count: human_bytes(count) for count in sizes} == sizes
    assert (byte_scale(4.8e9), byte_scale(12)) == ((1e9, "GB"), (1.0, "bytes"))
    assert (spelt("ndcg@10"), meaning("unheard-of")) == ("nDCG@10", "")
    assert "first 10" in meaning("hr@10")


def test_a_picture_is_xml_with_its_words_as_text_and_always_the_same(tmp_path):
    svg = plots.picture(CHART)
    says(_words(svg), "HR@10 over $x$ and $y$", "Round", "fedmf", "popularity")  # nothing is typeset
    assert plots.picture(CHART) == svg
    for name, start in (("curve.svg", b"<?xml"), ("curve.png", b"\x89PNG")):
        plots.save(CHART, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)


def test_an_inline_picture_takes_the_pages_text_colour_and_loads_nothing():
    svg = plots.inline(replace(CHART, curves=[plots.Curve("<script>x</script>", [1, 2], [0.1, 0.2])]))
    assert "currentColor" in svg
    assert not any(words in svg for words in ("#ffffff", "<?xml", "<script"))
    assert "HR@10 over" in _words(svg)
    known = ("http://www.w3.org/", "http://purl.org/", "http://creativecommons.org/")
    assert all(address.startswith(known) for address in re.findall(r'https?://[^"\s]+', svg))


def test_two_charts_in_a_page_share_no_id_and_every_reference_is_there():
    page = plots.inline(CHART) + plots.inline(replace(CHART, name="bytes"))
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    references = re.findall(r'(?:xlink:href="#|url\(#)([^")]+)', page)
    assert references and set(references) <= set(ids)


def test_places_on_the_axis_and_colours_are_those_that_are_given():
    svg = plots.picture(replace(CHART, ticks=("0", "5", "half"), levels={}, numbers={"fedmf": 3}))
    assert "half" in _words(svg)
    assert plots.COLOURS[3].lower() in svg.lower()


def test_the_chart_shows_what_was_sent_between_what_is_compared(runs):
    chart = plots.over_bytes(runs, "hr@10", {"hr@10": 0.9})
    assert [curve.label for curve in chart.curves] == ["fedmf"]
    assert chart.curves[0].y == [point.metrics["hr@10"] for point in runs[0].points]
    levels = {name: runs[0].baselines[name]["hr@10"] for name in ("popularity", "random")}
    assert chart.levels == {"mf (centralised)": runs[1].metrics["hr@10"], **levels, plots.BEST_POSSIBLE: 0.9}
    assert chart.curves[0].x[-1] == pytest.approx((runs[0].down_bytes + runs[0].up_bytes) / 1e6)
    assert "MB" in chart.x_label
    other = plots.over_bytes([replace(run, dataset='B "x"/<y>') for run in runs], "hr@10", {})
    assert other.name == "b-x-y-bytes"
    assert plots.over_bytes(runs[1:], "hr@10", {}) is None  # without a federated run there is nothing to draw


def _drawn(chart):
    """Label -> colour."""
    (axes,) = plots._draw(chart).axes
    return {str(line.get_label()): str(line.get_color()) for line in axes.get_lines()}


def test_a_method_has_one_colour_in_all_charts_of_a_page(runs):
    fedmf, mf = runs
    other = [replace(fedmf, label="fednewsrec"), replace(mf, label="fm"), mf]
    numbers = plots.colour_numbers([*runs, *other])
    first, second = (_drawn(plots.over_bytes(part, "hr@10", {"hr@10": 0.9}, numbers)) for part in (runs, other))
    assert set(first) == {"fedmf", "mf (centralised)", "popularity", "random", plots.BEST_POSSIBLE}
    shared = set(first) & set(second)
    assert shared == set(first) - {"fedmf"}
    assert all(first[label] == second[label] for label in shared)
    both = first | second
    assert len(set(both.values())) == len(both) == 7


def test_letters_are_large_enough_where_a_phone_shows_the_picture_390_pixels_wide():
    """The page leaves 360 of them to the picture; every letter must still be 9 pixels high."""
    root = ET.fromstring(plots.picture(CHART))  # noqa: S314  (we have just made it)
    width = float(root.attrib["viewBox"].split()[2])
    sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", plots.picture(CHART))]
    assert min(sizes) * 360 / width > 9


def verdicts(*names):
    return [audit_claim(case, effort=1, seed=0) for name in names for case in select(name)]


def labels(rows):
    (axes,) = plots.draw_audit(rows).axes
    return [label.get_text() for label in axes.get_yticklabels()]


def test_every_claim_has_a_row_with_its_terms(tmp_path):
    rows = verdicts("k-ary-response", "top-k-update", "reused-noise")
    response, update = "k-ary-response categories 5 (history", "top-k-update dimension 8 (user"
    noise = "reused-noise (user, replace-one, 1e-06)"
    assert labels(rows) == [f"{response}, replace-one, 0)", f"{update}, replace-one, 0)", noise]
    trusting = labels(verdicts("adaptive-sum"))
    assert trusting and all("per round, trusting: server, " in label for label in trusting)
    assert "trusting nobody unless a row says otherwise" in plots.draw_audit(rows).get_suptitle()
    rows.append(replace(rows[0], lower_bound=0.0))  # drawn at the edge
    for name in ("a.svg", "b.svg"):
        plots.save_figure(plots.draw_audit(rows), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
