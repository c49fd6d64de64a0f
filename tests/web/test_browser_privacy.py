"""What leaves a real browser: once, of one length, charged before it goes; and what is refused."""

import base64
import json
import shutil
import signal
import struct
import time
import urllib.request
from pathlib import Path

import pytest

from tests.web.conftest import serving
from tests.web.make_vectors import signed
from tests.web.taking_part import blocked
from veilrec.wire.releases import describe_file, sign_release

WATCH = (Path(__file__).parent / "scripts" / "watch.js").read_text()
ALTERED = (
    "{ const real = window.fetch.bind(window); window.fetch = async (a, h) => { const r = await real(a, h);"
    " if (!a.endsWith('%s.safetensors')) return r; const b = new Uint8Array(await r.arrayBuffer());"
    " b[b.length - 1] ^= 1; return new Response(b); }; }"
)
# Noise has to come from the browser's cryptographic generator, whose words are counted, and from nothing else.
GENERATORS = (
    "{ window.words = 0; Math.random = () => { throw new Error('Math.random was called'); };"
    " const real = crypto.getRandomValues.bind(crypto); crypto.getRandomValues = (array) => {"
    " if (array instanceof BigUint64Array) window.words += array.length; return real(array); }; }"
)


def queries(browser):
    """The bodies of all requests that carry a query, as they went over the network."""
    asked = [each for each in browser.requests() if each["method"] == "POST"]
    private = [each for each in asked if each["headers"]["Content-Type"] == "application/octet-stream"]
    return [b"".join(base64.b64decode(part["bytes"]) for part in each["postDataEntries"]) for each in private]


def before_loading(browser, script):
    """Run a script in every page before its own."""
    browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})


def serves(browser, envelope, when="true &&"):
    """From now on, the page gets this as its release where a condition of the page holds."""
    before_loading(
        browser,
        f"{{ const real = window.fetch.bind(window); const text = {json.dumps(json.dumps(envelope))};"
        f" window.fetch = (a, h) => {when} a.endsWith('/v1/release') ? Promise.resolve(new Response(text))"
        " : real(a, h); }",
    )


def spent(browser):
    """What the bars say, in percent: of the history (this release, ever) and of a click."""
    bars = browser.driver.find_elements("css selector", ".meter")
    return [float(bar.get_attribute("aria-valuenow")) for bar in bars]


def envelope_of(site, **changed):
    """The release that is served, with other fields, properly signed."""
    manifest = json.dumps({**site.release.manifest, **changed}, sort_keys=True, separators=(",", ":"))
    return signed(manifest, site.key)


def refused(browser, *words):
    """The page says why, shows nothing, and asks for no pool."""
    browser.requests()
    browser.sent.clear()
    browser.driver.get(browser.address)
    browser.until("return !document.getElementById('banner').hidden")
    text = browser.element("#banner").text
    assert all(word in text for word in words), text
    assert browser.driver.find_elements("css selector", ".story") == []
    assert not any(each["url"].endswith("/v1/pool") for each in browser.requests())


def test_a_private_query_is_sent_once_with_nine_bytes_and_charged_before_it_goes(site, window):
    browser = window(site.address)
    before_loading(browser, WATCH)
    browser.open()
    read = [browser.read("sport") for _ in range(3)]
    assert spent(browser) == [0, 0, 0, 0]
    browser.choose("interest")
    (query,) = queries(browser)
    assert len(query) == 9
    assert query[:7] == struct.pack("<4sBH", b"VRQ1", 4, 1)
    assert struct.unpack("<H", query[7:])[0] < site.release.manifest["sizes"]["interests"]
    assert browser.js("return window.seen") == [[1, 1]], "the charge was not on disk before the query left"
    assert spent(browser) == [20, 5, 10, 3]  # epsilon 1 of 5 and of 20 for the history, of 10 and of 40 for one click
    journal = browser.element("#journal").get_attribute("textContent")
    assert query.hex(" ") in journal
    assert "(1, 0)-DP per history (replace-one), per message, trusting: nobody, proven" in journal
    assert "9 bytes" in browser.element("#sum").text
    # More clicks, and a reload: the same bytes, free; a query that followed the clicks would announce them.
    browser.read("science")
    assert len(queries(browser)) == 1
    browser.open()
    assert queries(browser) == [query, query]
    assert spent(browser) == [20, 5, 10, 3]
    everything = json.dumps(browser.requests())
    assert not any(title in everything for title in read)
    # Forgetting forgets what was read, and not what it cost.
    browser.element("#forget").click()
    browser.shown(browser.element("#sure-yes").click)
    assert spent(browser) == [20, 5, 10, 3]
    browser.open()
    assert queries(browser) == [query, query, query]


@pytest.mark.parametrize(("mode", "kind"), [("attention", 1), ("pooled", 2)])
def test_other_private_queries_have_noise_and_one_length(site, window, mode, kind):
    offer = next(each for each in site.release.manifest["offers"] if each["mode"] == mode)
    told = []
    for profile in ("one", "another"):
        browser = window(site.address, profile=profile)
        before_loading(browser, WATCH)
        before_loading(browser, GENERATORS)
        browser.open()
        browser.read("sport")
        browser.choose(mode)
        (query,) = queries(browser)
        assert browser.js("return window.words") >= offer["size"]
        assert query[:7] == struct.pack("<4sBH", b"VRQ1", kind, offer["size"])
        assert len(query) == 7 + 4 * offer["size"]
        assert browser.js("return window.seen") == [[5, 5] if mode == "attention" else [0, 5]]
        told.append(struct.unpack(f"<{offer['size']}f", query[7:]))
        browser.driver.quit()
    # The same history, other noise: no number is the same (each would be with a chance of about one in 2^20).
    assert all(a != b for a, b in zip(*told, strict=True))
    if mode == "attention":  # and neither is attention: that has no negative numbers, and adds up to 1
        assert all(abs(sum(numbers) - 1.0) > 1e-3 for numbers in told)


def test_asking_anew_costs_again_until_the_budget_is_gone_and_then_nothing_is_told(site, visit):
    browser = visit(site.address, "sport")
    browser.choose("interest")
    for number in range(2, 6):
        browser.element("#again").click()
        browser.shown(browser.element("#sure-yes").click)
        assert len(queries(browser)) == number
        assert spent(browser)[0] == 20 * number
    browser.element("#again").click()
    browser.shown(browser.element("#sure-yes").click)
    assert len(queries(browser)) == 5  # the sixth does not fit, and nothing of it left
    assert spent(browser)[0] == 100
    assert "budget of this period is spent" in browser.element("#notice").text
    assert browser.element("#status").text == "The same list for everybody."
    assert len(browser.categories()) == 10 and len(set(browser.categories())) > 1
    browser.choose("attention")
    assert len(queries(browser)) == 5
    assert "budget of this period is spent" in browser.element("#notice").text
    browser.open()
    assert spent(browser)[0] == 100


def test_asking_without_protection_is_asked_about_and_never_forgotten(site, visit):
    browser = visit(site.address)
    browser.element("input[value=plain]").click()
    assert browser.element("#promise").text.startswith("no privacy guarantee")
    browser.element("#again").click()
    browser.element("#sure button[value=no]").click()
    assert queries(browser) == []
    browser.element("#again").click()
    browser.shown(browser.element("#sure-yes").click)
    assert len(queries(browser)) == 1
    assert browser.element("#accounts").get_attribute("textContent").count("no privacy guarantee") == 4
    assert "1 message without protection of one history (replace-one)" in browser.element("#accounts").text


def test_not_personal_is_the_same_whatever_was_read(site, window, visit):
    browser = visit(site.address)
    browser.choose("not-personal")
    before = browser.categories()
    browser.read(before[-1])
    titles = [each.text for each in browser.driver.find_elements("css selector", "#stories .headline")]
    other = window(site.address, profile="other")
    other.open()
    other.choose("not-personal")
    everybody = [each.text for each in other.driver.find_elements("css selector", "#stories .headline")]
    assert [title for title in titles if title in everybody] == [title for title in everybody if title in titles]
    assert len(set(titles) & set(everybody)) >= len(everybody) - 1
    bodies = [each["postData"] for each in browser.requests() if each["method"] == "POST"]
    assert bodies == ['{"k":100}']


def test_the_last_news_are_there_when_the_server_is_not(site, visit):
    browser = visit(site.address, "sport")
    blocked(browser, "*/v1/*")
    browser.shown(browser.element("#refresh").click)
    assert "server is away" in browser.element("#notice").text
    assert browser.categories().count("sport") >= 8  # ranked here, as before
    browser.open()  # also in a new page: the release was checked before
    assert "server is away" in browser.element("#notice").text
    assert browser.categories().count("sport") >= 8
    blocked(browser)
    browser.shown(browser.element("#refresh").click)
    assert not browser.element("#notice").is_displayed()


def test_a_release_that_was_altered_or_is_older_is_not_used(site, window):
    altered = envelope_of(site)
    altered["manifest"] = altered["manifest"].replace('"epsilon":1.0', '"epsilon":0.1')
    browser = window(site.address, profile="altered")
    serves(browser, altered)
    refused(browser, "signature", "nothing of it is used")
    browser = window(site.address, profile="file")
    before_loading(browser, ALTERED % "encoder")
    refused(browser, "ncoder.safetensors of the release was altered")
    browser = window(site.address, profile="older")
    serves(browser, envelope_of(site, version=7))
    # The news are of version 1, so that nothing is shown; but version 7 was signed, and seen.
    browser.driver.get(browser.address)
    browser.until("return !document.getElementById('banner').hidden")
    serves(browser, envelope_of(site))
    refused(browser, "went back to version 1", "version 7 was here before")


def test_a_stranger_is_trusted_by_nobody_but_the_person(site, visit):
    browser = visit(site.address)
    browser.wait_for(
        "const db = await new Promise(y => { const r = indexedDB.open('veilrec'); r.onsuccess = () => y(r.result); });"
        "await new Promise(y => { const t = db.transaction('trust', 'readwrite');"
        " t.objectStore('trust').put({key: 'ab'.repeat(32), newest: {}}, 'trust'); t.oncomplete = y; }); db.close();"
    )
    refused(browser, "is signed by", site.key.public.hex()[:16], "ab" * 8)
    browser.element("#banner button").click()
    browser.element("#sure button[value=no]").click()
    assert browser.driver.find_elements("css selector", ".story") == []
    browser.element("#banner button").click()
    browser.element("#sure-yes").click()
    browser.until("return document.documentElement.dataset.ready >= 1")


def test_an_unprotected_release_says_so_and_an_offer_with_less_noise_than_it_claims_is_not_offered(site, window):
    offers = [dict(each) for each in site.release.manifest["offers"]]
    for offer in offers:
        if offer["mode"] in ("attention", "pooled"):
            offer["epsilon"] = 1.0  # for the noise of epsilon 5
    browser = window(site.address)
    why = ["its noise was drawn from a known seed"]
    serves(browser, envelope_of(site, protected=False, why_unprotected=why, offers=offers))
    browser.open()
    assert browser.element("#banner").text == "This model is not protected: its noise was drawn from a known seed"
    modes = [each.get_attribute("value") for each in browser.driver.find_elements("css selector", "#modes input")]
    assert modes == ["none-sent", "interest", "plain", "not-personal"]


def retrained(folder, key):
    """Put a version with other weights into the place of a release, as training it again would."""
    from safetensors.numpy import load_file, save_file

    manifest = json.loads((folder / "manifest.json").read_text())
    for name, arrays in (("encoder.safetensors", None), ("serving.safetensors", ("nobody",))):
        found = load_file(folder / name)
        save_file(
            {key: found[key] * 1.01 if arrays is None or key in arrays else found[key] for key in found}, folder / name
        )
        manifest["files"][name] = describe_file(folder / name)
    sign_release(folder, manifest | {"version": manifest["version"] + 1}, key)


def reloaded(address, server, version):
    """Let the server take what lies in its folder, and wait until it answers with it."""
    server.send_signal(signal.SIGHUP)
    end = time.monotonic() + 30.0
    while b'"version\\":%d' % version not in urllib.request.urlopen(f"{address}/v1/release").read():  # noqa: S310
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_newer_release_is_a_new_period_and_the_history_goes_on(site, window, tmp_path):
    folder = tmp_path / "release"
    shutil.copytree(site.release.folder, folder)
    with serving(folder, tmp_path / "log") as (address, server):
        browser = window(address)
        browser.open()
        browser.read("sport")
        browser.choose("interest")
        assert spent(browser) == [20, 5, 10, 3]
        retrained(folder, site.key)
        reloaded(address, server, 2)
        # The page that is open notices by the news that come back, and asks once as the new period allows.
        browser.shown(browser.element("#refresh").click)
        assert spent(browser) == [20, 10, 10, 5]
        assert browser.categories().count("sport") >= 8
        assert "version 2" in browser.element("#release").text
        browser.open()
        assert spent(browser) == [20, 10, 10, 5]
        browser.driver.quit()
        browser = window(address)  # whoever comes back another day, with all that this browser has kept
        retrained(folder, site.key)
        reloaded(address, server, 3)
        browser.open()
        assert "version 3" in browser.element("#release").text
        assert not browser.element("#banner").is_displayed()


def test_two_visits_share_one_ledger(site, visit):
    browser = visit(site.address)
    results = browser.wait_for(
        "const m = await import('/web/veilrec.js'); const clients = [await m.Client.open(), await m.Client.open()];"
        "await Promise.all(clients.map(d => d.front('interest', 5, {ask: true})));"
        "return (await clients[0].accounts()).map(a => [a.messages, a.lifetime.spent])"
    )
    assert [count for count, _ in results] == [1, 1]
    first, second = queries(browser)
    assert first == second
