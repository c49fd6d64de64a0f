"""A browser and clients in Python finish the rounds of a federation together, over loopback.

The browser is told to take the certificate of the federation's own authority (--ignore-certificate-errors): a page has
no other way to know it. Where pages are real the coordinator has a certificate that browsers know.
"""

import re
import threading
from contextlib import contextmanager

import numpy as np

from tests.federation.loopback import coordinating, opened, run_everybody
from tests.web.conftest import PEOPLE, ROUNDS
from tests.web.taking_part import FLAGS, SENT, SPENT, blocked, federation_of, handed, join, listed, page_of, says
from tests.web.test_browser import PICKED, save
from veilrec.federation.coordinator.aggregation import HelperAggregation
from veilrec.federation.federation import CLIENTS

WITHOUT_X25519 = """
const made = SubtleCrypto.prototype.generateKey;
SubtleCrypto.prototype.generateKey = async function (how, ...rest) {
  if (how.name === "X25519") throw new DOMException("unknown", "NotSupportedError");
  return made.call(this, how, ...rest);
};
"""


@contextmanager
def others(folder, known):
    """Every client but the first, in threads, until it is over."""
    names = [path.name for path in sorted((folder / CLIENTS).iterdir())][1:]
    failures = []

    def run():
        try:
            run_everybody(folder, known, lambda _: None, names)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield failures
    thread.join(60.0)
    assert not thread.is_alive() and not failures


def counts(control):
    return [(report.messages, report.clients) for report in control.driver.coordinator.history()]


def test_a_browser_and_clients_in_python_finish_rounds_together(films, federation, visit, tmp_path):
    known, (invitation, file) = handed(federation, tmp_path / "public.federation")
    address = known.federation.address
    with page_of(films, known, tmp_path / "log") as (page, _):
        browser = visit(page, flags=FLAGS)
        category = browser.categories(13)[-1]
        for _ in range(6):
            browser.read(category)
        assert not browser.element("#take-part").is_selected()  # off unless a person turns it on
        with coordinating(federation, known, page=page) as control, others(federation, known):
            blocked(browser, "*/v1/answer")
            join(browser, invitation, file)
            browser.until("return document.querySelector('#learnt li[data-kind=report]') !== null")
            told = {"kind": "report", "round": "0", "bytes": "50", "tensors": "votes", "receipt": ""}
            assert listed(browser) == [told]
            before, spent = browser.wait_for(SENT), browser.wait_for(SPENT)
            browser.read(browser.categories(1)[0])  # a message that followed this would be another one
            browser.open()  # the switch is still on: it goes on by itself, with the same bytes
            blocked(browser)
            browser.until("return document.getElementById('learning-status').textContent.includes('is over')")
            check_what_left(browser, before, spent)
            assert counts(control) == [(PEOPLE, PEOPLE)] * ROUNDS  # everybody's messages, the browser's among them
        urls = {each["url"] for each in browser.requests() if each["url"] and not each["url"].startswith(page)}
        assert urls == {f"{address}/v1/{name}" for name in ("enrol", "poll", "content", "answer")}
        assert invitation.strip().split(":")[1] not in str(browser.stored("settings"))


def check_what_left(browser, before, spent):
    """One report and a message for each round, each once and with its promise, in the panel as in the ledger."""
    sent = browser.wait_for(SENT)
    report = next(each for each in sent if each[0] == "report")
    assert [report[2]] == [each[2] for each in before]
    assert sorted(each[:2] for each in sent) == [["report", 0], *(["round", number] for number in range(ROUNDS))]
    assert {receipt for *_, receipt, _ in sent} == {"taken"}
    assert all("per user (add-remove), this message, trusting: server, proven" in each[4] for each in sent)
    rows = listed(browser)
    assert [(row["kind"], row["round"], int(row["bytes"])) for row in rows] == [
        (kind, str(number), len(content) // 2) for kind, number, content, *_ in sent
    ]
    assert browser.wait_for(SPENT) != spent and "so far, trusting: server" in spent
    assert browser.js("return document.getElementById('learnt-sum').textContent").startswith("5 messages as d00000, ")
    assert [row["tensors"] for row in reversed(rows)] == ["votes", "places", "further", "weights", "weights map"]
    assert browser.js("return document.querySelector('#learnt-budget [role=meter]').ariaValueNow") == "100"
    tried = re.search(r"(\d+) went to a federation", browser.element("#sum").text)
    assert tried is not None and int(tried[1]) >= 6  # five, and the first one once more after it was lost
    assert "Nothing was spent" in browser.element("#accounts").text  # of what trusts nobody


def test_a_page_of_another_origin_reaches_nobody(films, federation, visit, tmp_path):
    known, invited = handed(federation, tmp_path / "public.federation")
    with page_of(films, known, tmp_path / "log") as (page, _):
        browser = visit(page, flags=FLAGS)
        with coordinating(federation, known, page="https://elsewhere.example.org"):
            join(browser, *invited)
            browser.until("return document.getElementById('learning-status').textContent.includes('does not answer')")
        assert browser.wait_for(SENT) == []


def test_under_masks_a_browser_is_in_sums_that_are_exact(films, visit, tmp_path, monkeypatch):
    settings = ("privacy.epsilon=8", "people=100000")  # so many that places of items are asked for
    folder = federation_of(tmp_path / "trial", 2, settings=settings, secagg="helpers")
    known, invited = handed(folder, tmp_path / "public.federation")
    totals, came, add_up = [], [], HelperAggregation.total

    def watched(self, invitation, messages, cohort):
        total = add_up(self, invitation, messages, cohort)
        came.extend(messages)
        totals.extend([] if total is None else [total])
        return total

    monkeypatch.setattr(HelperAggregation, "total", watched)
    votes = known.plan.reports.mechanism
    expected = np.zeros(votes.length, np.int64)
    for place in sorted((folder / CLIENTS).iterdir())[1:]:
        with opened(place, known) as client:
            expected += weighed(votes, client.data.rows.row(0))
    with page_of(films, known, tmp_path / "log") as (page, _):
        browser = visit(page, flags=FLAGS, height=3200)  # all of the panel is in view
        for _ in range(6):
            browser.read(browser.categories(1)[0])
        browser.js(WITHOUT_X25519)
        join(browser, *invited)
        says(browser, "has no X25519, which secure sums need: it cannot take part")
        assert not any(each["url"].startswith(known.federation.address) for each in browser.requests())
        browser.open()
        join(browser, *invited)
        with coordinating(folder, known, page=page) as control, others(folder, known):
            says(browser, "is over")
            assert counts(control) == [(PEOPLE, PEOPLE)] * 2
        used = browser.wait_for(PICKED)
        sent = {content for _, _, content, *_ in browser.wait_for(SENT)}
        text = browser.element("#learning").text
        browser.js("document.querySelector('#learnt li[data-tensors=places] details').open = true")
        save(browser, "page-learning.png", tmp_path, of="#learning")
    assert sent <= {message.hex() for message in came} and len(sent) == 3
    assert len(used) == 6
    ids = list(known.people.items)
    expected += weighed(votes, np.array([ids.index(item) for item in used]))
    assert len(totals) == 3 and np.array_equal(totals[0], expected)  # and rounds are exact, or their check is broken
    assert "trusting: server sees only sums" in text and "sees sums alone" in text


def weighed(votes, items):
    """What somebody with these items adds to the votes."""
    return votes.weigh(np.isin(np.arange(votes.length), items))
