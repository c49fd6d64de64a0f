"""What a page does in a round whatever happens: tabs beside each other, a switch that is turned, a closed window, a
budget that is gone. What has left is what came at the other end.
"""

import math
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.federation.loopback import free_port, known_in
from tests.web.browsing import browsing
from tests.web.conftest import FILMS, PEOPLE, ROUNDS, serving
from tests.web.taking_part import CHARGED, SENT, asking, blocked, invitation_to, join, listed, says
from veilrec.core.schema import ReportSum
from veilrec.federation.facts import terms_in
from veilrec.federation.federation import CLIENTS, joined
from veilrec.federation.identity import INVITATION
from veilrec.federation.making import FederationOptions, make
from veilrec.federation.page import about, write_page

FLAGS = ("--ignore-certificate-errors",)
SLOW = """
const read = SubtleCrypto.prototype.decrypt;
SubtleCrypto.prototype.decrypt = async function (...given) {
  await new Promise((resolve) => setTimeout(resolve, 150));
  return read.apply(this, given);
};
"""  # of each item of the history: two tabs are then in the middle of a message at the same time


@pytest.fixture
def known(federation):
    return known_in(federation)


@pytest.fixture
def invited(federation, known, tmp_path):
    file = tmp_path / "public.federation"
    write_page(known, file)
    return (sorted((federation / CLIENTS).iterdir())[0] / INVITATION).read_text(), file


@contextmanager
def served(films, known, log):
    """The page, and beside it a coordinator that asks what a test wants."""
    more = ("--coordinator", known.federation.address)
    with (
        serving(films.release.folder, log, "/readyz", more=more) as (page, _),
        asking(known.folder, known, page) as coordinator,
    ):
        yield page, coordinator


def spent(known, reports, rounds):
    told = about(known)
    return float(reports * told["mu_of_report"] ** 2 + sum(mu**2 for mu in told["mu_of_rounds"][:rounds]))


def charged(browser, known):
    return browser.wait_for(CHARGED, known.federation.id)


def test_two_tabs_are_one_client_and_off_is_off_in_both(films, known, invited, window, tmp_path):
    with served(films, known, tmp_path / "log") as (page, coordinator):
        browser = window(page, flags=FLAGS)
        browser.open()
        for _ in range(5):
            browser.read(browser.categories(1)[0])
        join(browser, *invited)
        first = browser.driver.current_window_handle
        browser.driver.switch_to.new_window("tab")
        browser.open()  # the switch is on already: it goes on by itself

        coordinator.released.clear()
        coordinator.ask("round", 0, tabs=2)
        browser.element("#take-part").click()  # in the middle of the round, in one tab
        browser.until("return !document.getElementById('take-part').checked")
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
            coordinator.until(lambda answers, count=count: len(answers) >= 2 * count)  # type: ignore[misc]
        coordinator.polled(4)
        assert len(coordinator.answers) == 8 and len(set(coordinator.answers)) == 4  # one message for each, from both
        assert charged(browser, known) == pytest.approx(spent(known, 1, 3), rel=1e-9)
        assert [entry["charged"] for entry in browser.stored("journal")].count(True) == 4
        browser.open()
        browser.until("return document.querySelectorAll('#learnt li').length === 4")
        assert [row["receipt"] for row in listed(browser)] == ["taken"] * 4


def test_a_window_that_was_closed_before_it_sent_sends_the_same_when_it_is_opened_again(
    films, known, invited, window, tmp_path
):
    profile = tmp_path / "profile"
    with served(films, known, tmp_path / "log") as (page, coordinator):
        with browsing(page, profile, flags=FLAGS) as browser:
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
        browser = window(page, flags=FLAGS)  # of the same profile
        browser.open()
        browser.read(browser.categories(1)[0])  # a message that followed this would be another one
        coordinator.polled(2)  # those of the window that is gone are answered by then
        coordinator.ask("round", 0)
        coordinator.until(lambda answers: len(answers) == 1)
        says(browser, f"Round 1 of {ROUNDS}: taken")
        assert coordinator.answers[0].body.hex() == content
        assert charged(browser, known) == pytest.approx(spent(known, 0, 1), rel=1e-9)


def test_a_budget_that_is_gone_ends_it_and_nothing_leaves(films, known, invited, window, tmp_path):
    fits = math.floor(spent(known, 1, len(about(known)["bounds"])) / spent(known, 1, 0) * (1.0 + 1e-9))
    assert 2 <= fits <= 20
    with served(films, known, tmp_path / "log") as (page, coordinator):
        browser = window(page, flags=FLAGS)
        browser.open()
        join(browser, *invited)
        for period in range(fits + 1):  # a coordinator that asks for the votes again and again
            coordinator.ask("report", 0, period=period)
            if period < fits:
                coordinator.until(lambda answers, period=period: len(answers) == 1 + period)  # type: ignore[misc]
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


def test_into_a_sum_of_votes_goes_one_message_whatever_is_asked(films, window, tmp_path):
    folder, number = tmp_path / "trial", ReportSum().number
    make(
        folder,
        FederationOptions(method="veil", data=FILMS, clients=PEOPLE, rounds=2, secagg="helpers", port=free_port()),
    )
    known = known_in(folder)
    write_page(known, tmp_path / "public.federation")
    invitation = (sorted((folder / CLIENTS).iterdir())[0] / INVITATION).read_text()
    terms = terms_in(known.federation, known.plan, ReportSum())
    with served(films, known, tmp_path / "log") as (page, coordinator):
        browser = window(page, flags=FLAGS)
        browser.open()
        browser.read(browser.categories(1)[0])
        join(browser, invitation, tmp_path / "public.federation")
        another = replace(terms, round_number=number + 1)  # helpers can be asked for ever: there is no second sum
        coordinator.ask("report", number + 1, content=joined(invitation_to(known, another), b""))
        says(browser, "not answered, because the invitation to a secure sum is to a sum of reports with number")
        assert coordinator.answers == [] and charged(browser, known) == 0.0
        for period in range(2):  # with other keys of the helpers, and of another history
            coordinator.ask("report", number, period=period, content=joined(invitation_to(known, terms), b""))
            coordinator.until(lambda answers, period=period: len(answers) == 1 + period)  # type: ignore[misc]
            browser.read(browser.categories(1)[0])
        assert len({answer.body for answer in coordinator.answers}) == 1
        assert charged(browser, known) == pytest.approx(spent(known, 1, 0), rel=1e-9)
