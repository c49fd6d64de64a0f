"""The page in a real browser: it learns from clicks, tells nobody, and can be read by everybody."""

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest

from tests.web.browsing import files_of
from tests.web.make_vectors import FOLDER

IMAGES = Path(__file__).parents[2] / "docs" / "images"
NO_CLICKS = "Nothing yet."
BACKGROUND = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
TRANSFERRED = (
    "return [...performance.getEntriesByType('resource'), ...performance.getEntriesByType('navigation')]"
    ".reduce((sum, entry) => sum + entry.transferSize, 0)"
)
PICKED = "return (await (await (await import('/web/veilrec.js')).Client.open()).clicks()).map(c => c.id)"
PAGE = {"/", *(f"/web/{name}" for name in ("style.css", "app.js", "veilrec.js", "icon.svg"))}
CONTRAST, LANDMARKS = (
    (Path(__file__).parent / "scripts" / name).read_text() for name in ("contrast.js", "landmarks.js")
)


def save(browser, name, tmp_path, *, of=None):
    """A picture for README and docs, where that is asked for; otherwise a temporary one. `of`: one element alone."""
    from PIL import Image

    browser.js("window.scrollTo(0, 0); document.activeElement?.blur()")
    browser.rest()
    picture = tmp_path / name
    assert (browser.driver.save_screenshot if of is None else browser.element(of).screenshot)(str(picture))
    if os.environ.get("VEILREC_SCREENSHOTS"):
        with Image.open(picture) as opened:
            opened.convert("RGB").quantize(96).save(IMAGES / name, optimize=True)


def no_complaints(browser):
    """Nothing was blocked, and nothing failed."""
    assert [entry["message"] for entry in browser.driver.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_five_sport_stories_turn_the_front_page_to_sport_and_no_request_says_so(site, visit, tmp_path):
    browser = visit(site.address)
    assert 0 < browser.js(TRANSFERRED) <= 1_000_000  # until the first list
    assert browser.js("return performance.now()") < 20_000  # generous: it takes half a second
    before = browser.categories()
    asked = len([each for each in browser.requests() if each["url"]])
    titles = [browser.read("sport") for _ in range(5)]
    after = browser.categories()
    assert after.count("sport") >= before.count("sport") + 4
    assert after.count("sport") >= 8
    assert "because you read" in browser.element("#stories").text.lower()
    # What was read is on the page no more, and nothing was fetched for any of it.
    assert not set(titles) & {each.text for each in browser.driver.find_elements("css selector", ".headline")}
    assert len([each for each in browser.requests() if each["url"]]) == asked
    browser.shown(browser.element("#refresh").click)  # and asking again says nothing either
    everything = json.dumps(browser.requests())  # addresses, headers and bodies
    read = browser.wait_for(PICKED)
    assert len(read) == 5
    assert not any(known in everything for known in (*read, *titles))
    assert all(each["method"] == "GET" for each in browser.requests() if each["url"])
    files = files_of(site.release, "encoder", "serving")
    urls = {each["url"].removeprefix(site.address).split("?")[0] for each in browser.requests() if each["url"]}
    assert urls <= PAGE | files | {"/v1/release", "/v1/pool"}
    no_complaints(browser)


def test_the_picture_of_the_readme(site, visit, tmp_path):
    browser = visit(site.address, "science", "sport", "culture", height=1300)
    browser.choose("interest")
    browser.element("#journal summary").click()
    assert b"VRQ1".hex(" ") in browser.element("#journal").text
    save(browser, "page.png", tmp_path)


def test_a_reload_keeps_the_history_and_forgetting_empties_it(site, visit):
    browser = visit(site.address)
    titles = [browser.read(browser.categories(1)[0]) for _ in range(2)]
    browser.open()
    assert browser.element("#read-count").text.startswith("2 stories")
    assert all(title in browser.element("#read").text for title in titles)
    # On disk there is nothing that can be read without the key, and the key cannot be taken out.
    sealed = browser.stored("history")
    assert [sorted(record) for record in sealed] == [["data", "iv"]] * 2
    assert not any(title in record["data"] for title in titles for record in sealed)
    assert [key["extractable"] for key in browser.stored("keys")] == [False]
    browser.element("#forget").click()
    browser.element("#sure button[value='no']").click()
    assert browser.element("#read-count").text.startswith("2 stories")
    browser.element("#forget").click()
    browser.shown(browser.element("#sure-yes").click)
    assert browser.element("#read-count").text == NO_CLICKS
    browser.open()
    assert browser.element("#read-count").text == NO_CLICKS
    assert browser.stored("history") == browser.stored("keys") == []


def test_the_page_fits_a_phone(site, visit, tmp_path):
    browser = visit(site.address, "sport", width=390, height=844)
    assert browser.js("return innerWidth") == 390
    assert browser.js("return document.documentElement.scrollWidth") <= 390
    browser.element(".headline").click()
    browser.until("return document.getElementById('reader').open")
    assert browser.js("return document.getElementById('reader').getBoundingClientRect().right") <= 390
    small = browser.js(
        "return [...document.querySelectorAll('button:not(.headline)')].filter(b => b.checkVisibility())"
        ".map(b => b.getBoundingClientRect().height).filter(h => h < 36)"
    )
    assert small == []
    browser.shown(browser.element("#close").click)
    save(browser, "page-phone.png", tmp_path)


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_stands_out(site, visit, tmp_path, *, dark):
    browser = visit(site.address, "sport", "science", "sport", dark=dark)
    assert (max(browser.js(BACKGROUND)) < 80) is dark
    assert browser.js(CONTRAST) == []
    if dark:
        save(browser, "page-dark.png", tmp_path)
    button = browser.element("#theme")
    assert button.get_attribute("aria-pressed") == str(dark).lower()
    button.click()
    browser.open()  # the choice stays
    assert (max(browser.js(BACKGROUND)) < 80) is not dark
    assert browser.js(CONTRAST) == []


def test_the_keyboard_is_enough(site, visit):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser = visit(site.address)

    def press(key):
        ActionChains(browser.driver).send_keys(key).perform()

    def focused():
        return str(browser.js("const e = document.activeElement; return e.id || e.className || e.tagName"))

    for key, place in ((Keys.TAB, "skip"), (Keys.ENTER, "news"), (Keys.TAB, "refresh"), (Keys.TAB, "headline")):
        press(key)
        assert focused() == place
    assert browser.js("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    press(Keys.ENTER)
    browser.until("return document.getElementById('reader').open")
    assert browser.js("return document.getElementById('reader').contains(document.activeElement)")
    browser.shown(lambda: press(Keys.ESCAPE))
    browser.until("return document.activeElement.id === 'news'")
    assert browser.element("#read-count").text.startswith("1 story")
    # Arrow keys go through the modes, and what costs something waits for its button.
    browser.js("document.querySelector('input[value=none-sent]').focus()")
    press(Keys.ARROW_DOWN)
    assert browser.js("return document.activeElement.value") == "interest"
    assert browser.element("#again").is_displayed()
    assert "per history (replace-one), per message, trusting: nobody, proven" in browser.element("#promise").text
    assert not any(each["method"] == "POST" for each in browser.requests())
    press(Keys.TAB)
    assert focused() == "again"
    browser.shown(lambda: press(Keys.ENTER))
    assert [each["method"] for each in browser.requests()].count("POST") == 1


def test_a_screen_reader_finds_its_way(site, visit):
    browser = visit(site.address, "sport")
    facts = browser.js(LANDMARKS)
    order = facts.pop("order")
    assert order[0] == 1 and all(later - earlier <= 1 for earlier, later in pairwise(order))
    assert all(facts.pop("meters")) and facts.pop("live") >= 2 and facts.pop("title")
    faults = dict.fromkeys(("unnamed", "pictures", "drawings", "regions", "twice", "lost", "positive"), 0)
    assert facts == faults | {"lang": "en", "h1": 1, "landmarks": [1, 1, 1, 1], "alert": 1}


def test_the_vectors_hold_in_the_browser_too(site, visit):
    browser = visit(site.address)
    vectors = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
    checks = (Path(__file__).parent / "checks.mjs").read_text().replace("export function", "function")
    failed = browser.wait_for(
        f"{checks}\nconst veilrec = await import('/web/veilrec.js'); const failed = []; let done = 0;"
        "for (const [name, act] of allChecks(veilrec, JSON.parse(given[0]))) {"
        " try { await act(); done++; } catch (error) { failed.push(name + ': ' + error); } }"
        "return [done, failed]",
        json.dumps(vectors),
    )
    assert failed[1] == []
    assert failed[0] > 90
