"""A catalogue in a real browser: ranked as Python ranks it, by what was picked in its order, and nothing leaves."""

import json
import urllib.error
import urllib.request

import numpy as np
import pytest

from tests.web.browsing import files_of
from tests.web.conftest import serving
from tests.web.test_browser import CONTRAST, PAGE, PICKED, TRANSFERRED, no_complaints, save
from tests.web.test_browser_privacy import ALTERED, before_loading, envelope_of, refused, serves
from veilrec.runs.release_model import open_client, ranking_of

LISTED = (
    "const m = await import('/web/veilrec.js'); const client = await m.Client.open(); await client.release();"
    "return (await client.front(given[0], 20)).stories.map(story => story.id)"
)

SCORED = (
    "const m = await import('/web/veilrec.js');"
    "const file = async (name) => new Uint8Array(await (await fetch('/v1/release/files/' + name)).arrayBuffer());"
    "const manifest = JSON.parse((await (await fetch('/v1/release')).json()).manifest);"
    "const [items, ranking] = [await file('items.safetensors'), await file('ranking.safetensors')];"
    "const catalogue = m.Catalogue.read(manifest, items, ranking);"
    "return given[0].map(history => [...catalogue.scores(history)])"
)


def asked(browser):
    """The paths of all requests."""
    return [each["url"].removeprefix(browser.address) for each in browser.requests() if each["url"]]


def shown(browser):
    """The titles on the page, the best first."""
    return browser.js("return [...document.querySelectorAll('#stories .headline')].map(each => each.textContent)")


def test_the_list_turns_to_what_is_picked_and_no_request_says_so(films, visit, tmp_path):
    browser = visit(films.address)
    status = browser.element("#status").text
    assert "picked nothing yet" in status and "popular" in status
    category = browser.categories(13)[-1]
    first = asked(browser)
    titles = [browser.read(category) for _ in range(6)]
    personal = browser.categories(13).count(category)
    reasons = browser.js("return [...document.querySelectorAll('#stories .because')].map(each => each.textContent)")
    assert reasons and all(any(title[:40] in reason for title in titles) for reason in reasons)
    assert "6 items in their order, with weights fitted to the latest 2" in browser.element("#status").text
    assert not set(titles) & set(shown(browser))
    assert asked(browser) == first  # nothing was fetched for any of it
    browser.choose("not-personal")
    assert "The same list for everybody" in browser.element("#status").text
    assert personal >= browser.categories(13).count(category) + 2
    assert not browser.driver.find_elements("css selector", "#stories .because")
    browser.choose("none-sent")
    browser.shown(browser.element("#refresh").click)
    assert asked(browser) == [*first, *3 * ["/v1/release"]]
    everything = json.dumps(browser.requests())
    picked = browser.wait_for(PICKED)
    assert len(picked) == 6
    assert not any(known in everything for known in (*picked, *titles))
    assert all(each["method"] == "GET" for each in browser.requests() if each["url"])
    files = files_of(films.release, "items", "ranking")
    assert set(first) <= PAGE | files | {"/v1/release"}
    assert 0 < browser.js(TRANSFERRED) <= 250_000  # most of it is the catalogue, zipped
    for place, words in (("#sum", "0 bytes"), ("#accounts", "nothing can be"), ("#journal", "nothing of you")):
        assert words in browser.element(place).text
    assert "epsilon" not in browser.element("#modes").text.lower()
    assert browser.js(CONTRAST) == []
    no_complaints(browser)
    save(browser, "page-catalogue.png", tmp_path)


def test_a_browser_lists_and_scores_as_a_client_in_python(films, visit, tmp_path):
    """Scores to 1e-3 of their spread, for histories of many lengths; Python sums in single precision."""
    browser = visit(films.address)
    for place in range(9):
        browser.read(browser.categories(13)[place])
    history = browser.wait_for(PICKED)
    with open_client(tmp_path / "client", films.release) as client:
        client.read(*history)
        for mode, same in (("none-sent", "none-sent"), ("not-personal", "nobody")):
            expected = client.recommend(20, same)
            assert browser.wait_for(LISTED, mode) == [item.id for item in expected.items]
    generator = np.random.default_rng(5)
    histories = [generator.permutation(len(films.ids))[:length].tolist() for length in (0, 2, 5, 30, 150)]
    found = browser.wait_for(SCORED, histories)
    model = ranking_of(films.release)
    for items, scores in zip(histories, found, strict=True):
        whole = model.scores(np.array(items, np.int32)).astype(np.float64)
        assert np.abs(np.array(scores) - whole).max() < 1e-3 * whole.std()


def test_it_goes_on_without_the_server_and_keeps_what_was_picked(films, visit, tmp_path):
    with serving(films.release.folder, tmp_path / "log", "/readyz") as (address, _):
        browser = visit(address)
        category = browser.categories(13)[-1]
        browser.read(category)
    browser.read(category)  # the server is gone
    browser.shown(browser.element("#refresh").click)
    assert browser.element("#read-count").text.startswith("2 items")
    assert "The server is away" in browser.element("#notice").text
    assert shown(browser)


def test_a_newer_release_is_taken_when_somebody_looks_for_it(films, window):
    browser = window(films.address)
    serves(browser, envelope_of(films, version=2), "window.newer &&")
    browser.open()
    browser.read(browser.categories(13)[-1])
    asked_before = len(asked(browser))
    browser.js("window.newer = true")
    browser.shown(browser.element("#refresh").click)
    assert ", version 2," in browser.element("#release").text
    assert "by 1 item, with the weights of everybody" in browser.element("#status").text
    assert len(asked(browser)) == asked_before  # its files are those that are here, by their hashes
    browser.js("window.newer = false")
    browser.element("#refresh").click()
    browser.until("return !document.getElementById('banner').hidden")
    assert "went back to version 1" in browser.element("#banner").text


def test_a_catalogue_that_was_altered_is_refused_and_there_is_nothing_to_ask(films, window):
    browser = window(films.address)
    before_loading(browser, ALTERED % "ranking")
    refused(browser, "anking.safetensors of the release was altered")
    for path, body in (("/v1/pool", None), ("/v1/recommend", b'{"k": 5}')):
        request = urllib.request.Request(films.address + path, body, {"content-type": "application/json"})  # noqa: S310
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request)  # noqa: S310
        assert caught.value.code == 409
        assert "ranks on clients only" in json.loads(caught.value.read())["error"]
