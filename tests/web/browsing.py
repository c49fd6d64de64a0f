"""A real browser for the tests of the page: Debian's chromium, driven by Selenium, with a profile of its own."""

import json
import os
import shutil
import time
from contextlib import contextmanager

REQUIRED = os.environ.get("VEILREC_BROWSER") == "required"
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-device-scale-factor=1",
)
_PATIENCE = 30.0
_STORED = """
const done = (request) => new Promise((resolve) => (request.onsuccess = () => resolve(request.result)));
const database = await done(indexedDB.open("veilrec"));
const records = await done(database.transaction(given[0]).objectStore(given[0]).getAll());
database.close();
const letters = (value) => (ArrayBuffer.isView(value) || value instanceof ArrayBuffer)
  ? new TextDecoder("latin1").decode(value) : value;
return records.map((record) => record instanceof CryptoKey ? {extractable: record.extractable}
  : Object.fromEntries(Object.entries(record).map(([key, value]) => [key, letters(value)])));
"""


def missing():
    """Why there is no browser to test with; None if there is one."""
    try:
        import selenium  # noqa: F401
    except ModuleNotFoundError:
        return "selenium is not installed: pip install 'veilrec[dev]'"
    if _chromium() is None or shutil.which("chromedriver") is None:
        return "there is no chromium with its driver: apt-get install chromium chromium-driver"
    return None


def _chromium():
    return next((found for name in _CHROMIUM if (found := shutil.which(name))), None)


class Browser:
    """One window, and all that it has sent."""

    def __init__(self, driver, address):
        self.driver, self.address = driver, address
        self.sent = []  # every request: url, headers, body

    def open(self, path="/"):
        """Load the page, and wait until it shows stories."""
        self.driver.get(self.address + path)
        self.until("return Number(document.documentElement.dataset.ready ?? 0) >= 1")

    def js(self, script, *arguments):
        """What a script in the page returns."""
        return self.driver.execute_script(script, *arguments)

    def wait_for(self, script, *arguments):
        """What an asynchronous script in the page returns; it throws where the script does."""
        wrapped = (
            "const done = arguments[arguments.length - 1], given = arguments;"
            f"(async () => {{ {script} }})().then(value => done([true, value]), error => done([false, String(error)]))"
        )
        good, value = self.driver.execute_async_script(wrapped, *arguments)
        if not good:
            raise AssertionError(value)
        return value

    def until(self, script, *arguments):
        """Wait for a script to return something true."""
        end = time.monotonic() + _PATIENCE
        while True:
            value = self.js(script, *arguments)
            if value:
                return value
            if time.monotonic() > end:
                state = self.js("return document.body.innerText.slice(0, 1500)")
                log = self.driver.get_log("browser")
                raise AssertionError(f"after {_PATIENCE} s still not: {script}\n{state}\n{log}")
            time.sleep(0.02)

    def element(self, css):
        """The first element of a selector."""
        from selenium.webdriver.common.by import By

        return self.driver.find_element(By.CSS_SELECTOR, css)

    def shown(self, act):
        """Do something, and wait until the list was shown anew."""
        before = self.js("return Number(document.documentElement.dataset.ready ?? 0)")
        act()
        self.until("return Number(document.documentElement.dataset.ready ?? 0) > arguments[0]", before)

    def rest(self):
        """The pointer away from everything."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).move_by_offset(0, 0).perform()
        self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": 3, "y": 90})
        time.sleep(0.5)  # what fades has faded

    def categories(self, count=10):
        """Of the first stories."""
        found = self.js("return [...document.querySelectorAll('#stories .story')].map(s => s.dataset.category)")
        return found[:count]

    def read(self, category):
        """Open the first story of a category and go back; its title."""
        headline = self.element(f".story[data-category='{category}'] .headline")
        title = str(headline.text)
        self.js("arguments[0].scrollIntoView({block: 'center'})", headline)
        headline.click()
        self.until("return document.getElementById('reader').open")
        self.shown(self.element("#close").click)
        return title

    def choose(self, mode):
        """Choose a mode; those that send something are confirmed by their button."""
        radio = self.element(f"input[value='{mode}']")
        self.js("arguments[0].scrollIntoView({block: 'center'})", radio)
        if mode in ("none-sent", "not-personal"):
            self.shown(radio.click)
            return
        radio.click()
        self.shown(self.element("#again").click)

    def stored(self, name):
        """All that lies in one of the browser's stores, bytes as Latin letters."""
        return self.wait_for(_STORED, name)

    def requests(self):
        """Every request since the window was opened: method, url, headers and body."""
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                request = message["params"]["request"]
                if not request["url"].startswith(("data:", "chrome")):
                    self.sent.append(request | {"id": message["params"]["requestId"]})
            elif message["method"] == "Network.requestWillBeSentExtraInfo":
                self.sent.append({"url": "", "method": "", "headers": message["params"]["headers"], "id": ""})
        return self.sent


@contextmanager
def browsing(address, profile, *, width=1220, height=1400, dark=False, flags=()):
    """A window with a profile folder of its own; a second one with the same folder goes on with what it kept."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(_chromium())
    for flag in (*_FLAGS, *flags, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        driver.set_script_timeout(120)
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        if dark:
            features = [{"name": "prefers-color-scheme", "value": "dark"}]
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        yield Browser(driver, address)
    finally:
        driver.quit()


def files_of(release, *names):
    """Where a page gets some arrays of a release."""
    listed = {f"{name}.safetensors": release.manifest["files"][f"{name}.safetensors"]["sha256"] for name in names}
    return {f"/v1/release/files/{digest}/{name}" for name, digest in listed.items()}
