"""What a page does in a round whatever happens: tabs beside each other, a switch that is turned, a closed window, a
budget that is gone. What has left is what came at the other end.
"""

import math
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from tests.web.browsing import browsing
from tests.web.conftest import ROUNDS
from tests.web.taking_part import (
    CHARGED,
    FLAGS,
    OFF,
    SENT,
    asking,
    blocked,
    federation_of,
    handed,
    invitation_to,
    join,
    listed,
    page_of,
    says,
)
from veilrec.core.schema import ReportSum
from veilrec.federation.facts import terms_in
from veilrec.federation.federation import joined
from veilrec.federation.page import about

DIFFERS = ("declined", b"another digest")
SLOW = """
const read = SubtleCrypto.prototype.decrypt;
SubtleCrypto.prototype.decrypt = async function (...given) {
  await new Promise((resolve) => setTimeout(resolve, 150));
  return read.apply(this, given);
};
"""  # of each item of the history: two tabs are then in the middle of a message at the same time


@pytest.fixture
def trial(federation, tmp_path):
    return handed(federation, tmp_path / "public.federation")


@contextmanager
def served(films, known, log):
    """The page, and beside it a coordinator that asks what a test wants."""
    with page_of(films, known, log) as (page, _), asking(known.folder, known, page) as coordinator:
        yield page, coordinator


def spent(known, reports, rounds):
    told = about(known)
    return float(reports * told["mu_of_report"] ** 2 + sum(mu**2 for mu in told["mu_of_rounds"][:rounds]))


def charged(browser, known):
    return browser.wait_for(CHARGED, known.federation.id)


def test_two_tabs_are_one_client_and_off_is_off_in_both(films, trial, visit, tmp_path):
    known, invited = trial
    with served(films, known, tmp_path / "log") as (page, coordinator):
        browser = visit(page, flags=FLAGS)
        for _ in range(5):
            browser.read(browser.categories(1)[0])
        join(browser, *invited)
        first = browser.driver.current_window_handle
        browser.driver.switch_to.new_window("tab")
        browser.open()  # the switch is on already: it goes on by itself

        coordinator.released.clear()
        coordinator.ask("round", 0, tabs=2)
        browser.element("#take-part").click()  # in the middle of the round, in one tab
        browser.wait_for(OFF)
        coordinator.released.set()
        for handle in (browser.driver.current_window_handle, first):
            browser.driver.switch_to.window(handle)
            browser.until("return !document.getElementById('take-part').checked")
        assert coordinator.answers == [] and charged(browser, known) == 0.0 and listed(browser) == []

        browser.element("#take-part").click()
        browser.driver.switch_to.window(next(h for h in browser.driver.window_handles if h != first))
        browser.open()
        for handle in browser.driver.window_handles:
            browser.driver.switch_to.window(handle)
            browser.js(SLOW)
        for count, (kind, number) in enumerate((("report", 0), ("round", 0), ("round", 1), ("round", 2)), 1):
            coordinator.released.clear()
            coordinator.ask(kind, number, tabs=2)
            coordinator.released.set()
            coordinator.until(lambda answers, count=count: len(answers) >= 2 * count)
        coordinator.polled(4)
        assert len(coordinator.answers) == 8 and len(set(coordinator.answers)) == 4  # one message for each, from both
        assert charged(browser, known) == pytest.approx(spent(known, 1, 3), rel=1e-9)
        assert [entry["charged"] for entry in browser.stored("journal")].count(True) == 4
        browser.open()
        browser.until("return document.querySelectorAll('#learnt li').length === 4")
        assert [row["receipt"] for row in listed(browser)] == ["taken"] * 4


def test_a_window_that_was_closed_before_it_sent_sends_the_same_when_it_is_opened_again(films, trial, visit, tmp_path):
    known, invited = trial
    with served(films, known, tmp_path / "log") as (page, coordinator):
        with browsing(page, tmp_path / "profile", flags=FLAGS) as browser:
            browser.open()
            for _ in range(5):
                browser.read(browser.categories(1)[0])
            blocked(browser, "*/v1/answer")
            join(browser, *invited)
            coordinator.ask("round", 0)
            browser.until("return document.querySelector('#learnt li') !== null")
            [(kind, number, content, receipt, _)] = browser.wait_for(SENT)
            assert (kind, number, receipt) == ("round", 0, "")
            assert charged(browser, known) == pytest.approx(spent(known, 0, 1), rel=1e-9)  # before anything left
        assert coordinator.answers == []
        browser = visit(page, flags=FLAGS)  # of the same profile
        browser.read(browser.categories(1)[0])  # a message that followed this would be another one
        coordinator.polled(2)  # those of the window that is gone are answered by then
        coordinator.ask("round", 0)
        coordinator.until(lambda answers: len(answers) == 1)
        says(browser, f"Round 1 of {ROUNDS}: taken")
        assert coordinator.answers[0].body.hex() == content
        assert charged(browser, known) == pytest.approx(spent(known, 0, 1), rel=1e-9)


def test_a_budget_that_is_gone_ends_it_and_nothing_leaves(films, trial, visit, tmp_path):
    known, invited = trial
    fits = math.floor(spent(known, 1, len(about(known)["bounds"])) / spent(known, 1, 0) * (1.0 + 1e-9))
    assert 2 <= fits <= 20
    with served(films, known, tmp_path / "log") as (page, coordinator):
        browser = visit(page, flags=FLAGS)
        join(browser, *invited)
        for period in range(fits + 1):  # a coordinator that asks for the votes again and again
            coordinator.ask("report", 0, period=period)
            if period < fits:
                coordinator.until(lambda answers, period=period: len(answers) == 1 + period)
        says(browser, "is spent: it takes no more part")
        assert not browser.element("#take-part").is_selected()
        assert len(coordinator.answers) == fits and len(listed(browser)) == fits
        before = charged(browser, known)
        browser.open()
        assert not browser.element("#take-part").is_selected()  # it stays off
        browser.element("#take-part").click()  # and whoever turns it on is told the same
        coordinator.ask("round", 0)
        says(browser, "is spent: it takes no more part")
        assert len(coordinator.answers) == fits and charged(browser, known) == before


def test_into_a_sum_of_votes_goes_one_message_whatever_is_asked(films, visit, tmp_path):
    number, folder = ReportSum().number, federation_of(tmp_path / "trial", 2, secagg="helpers")
    known, invited = handed(folder, tmp_path / "public.federation")
    terms = terms_in(known.federation, known.plan, ReportSum()).about(b"", range(3))
    with served(films, known, tmp_path / "log") as (page, coordinator):
        browser = visit(page, flags=FLAGS)
        browser.read(browser.categories(1)[0])
        join(browser, *invited)
        another = replace(terms, round_number=number + 1)  # helpers can be asked for ever: there is no second sum
        coordinator.ask("report", number + 1, content=joined(invitation_to(known, another), b""))
        says(browser, "not answered, because the invitation to a secure sum is to a sum of reports with number")
        assert coordinator.answers == [] and charged(browser, known) == 0.0
        louder = invitation_to(known, terms.about(b"louder", range(3)))
        coordinator.ask("report", number, content=joined(louder, b""))
        coordinator.until(lambda answers: [(each.kind, each.body) for each in answers] == [DIFFERS])
        assert charged(browser, known) == 0.0
        coordinator.answers.clear()
        for period in range(2):  # with other keys of the helpers, and of another history
            coordinator.ask("report", number, period=period, content=joined(invitation_to(known, terms), b""))
            coordinator.until(lambda answers, period=period: len(answers) == 1 + period)
            browser.read(browser.categories(1)[0])
        assert len({answer.body for answer in coordinator.answers}) == 1
        assert charged(browser, known) == pytest.approx(spent(known, 1, 0), rel=1e-9)


def test_weights_beyond_their_bound_are_declined_and_cost_nothing(films, trial, visit, tmp_path):
    known, invited = trial
    with served(films, known, tmp_path / "log") as (page, coordinator):
        browser = visit(page, flags=FLAGS)
        browser.read(browser.categories(1)[0])
        join(browser, *invited)
        for weight, reason in ((2.0**21, b"beyond the bound"), (np.inf, b"not finite")):
            loud = bytearray(coordinator.model(0))
            loud[-4:] = np.array([weight], "<f4").tobytes()  # a weight that is learnt
            coordinator.ask("round", 0, content=bytes(loud))
            coordinator.until(lambda answers, reason=reason: answers[-1:] and answers[-1].body == reason)
            assert (coordinator.answers[-1].kind, coordinator.answers[-1].number) == ("declined", 0)
        assert charged(browser, known) == 0.0 and browser.wait_for(SENT) == []
        coordinator.ask("round", 0)
        coordinator.until(lambda answers: answers[-1].kind == "round")
