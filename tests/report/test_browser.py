"""The report in a real browser: no errors or requests, pictures play, and names stay text."""

from __future__ import annotations

import json
import os
import shutil
import time

import numpy as np
import pytest

from thalweg.energy import FreeEnergy
from thalweg.flow import simulate
from thalweg.kernel import MarkovKernel
from thalweg.learn import FreeEnergyRegressor
from thalweg.report import fit_page

HOSTILE = '<img src=x onerror="window.hacked=1"></script><script>window.hacked=1</script>'

pytestmark = [
    pytest.mark.skipif(
        not (shutil.which("chromium") and shutil.which("chromedriver")),
        reason="needs Debian's chromium and chromium-driver",
    ),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    folder = tmp_path_factory.mktemp("profile")
    for flag in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--window-size=1000,1400",
        f"--user-data-dir={folder}",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    rng = np.random.default_rng(0)
    kernel = MarkovKernel.from_weights(
        np.ones((5, 5)) - np.eye(5), names=["a", "b", HOSTILE, "d", "e"]
    )
    energy = FreeEnergy(np.linspace(0, 1, 5), 0.3)
    start = np.array([0.05, 0.05, 0.1, 0.2, 0.6])
    seen = simulate(kernel, energy, start, np.linspace(0, 3, 6), 2000, tracked=False, rng=rng)
    model = FreeEnergyRegressor().fit(kernel, seen)
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(fit_page(model, snapshots=seen, title=HOSTILE), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def loaded(browser, address):
    browser.get(address)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        drawn = browser.execute_script("return document.querySelectorAll('figure svg').length")
        if drawn >= 4:
            break
        time.sleep(0.2)
    return browser


def test_it_loads_without_console_errors(loaded):
    bad = [entry for entry in loaded.get_log("browser") if entry["level"] == "SEVERE"]
    assert not bad


def test_it_asks_no_host_for_anything(loaded, address):
    requested = []
    for entry in loaded.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            requested.append(message["params"]["request"]["url"])
    assert address in requested
    # The browser's own pages (an empty tab) are its business.
    harmless = ("file:", "data:", "blob:", "chrome:", "chrome-untrusted:")
    strange = [url for url in requested if not url.startswith(harmless)]
    assert not strange


def test_a_hostile_name_does_not_run(loaded):
    assert loaded.execute_script("return window.hacked") is None
    assert "onerror" in loaded.title


def _colors(browser):
    return browser.execute_script(
        "return Array.from(document.querySelectorAll('figure[data-name=population-in-time] "
        ".nodes circle')).map(e => e.getAttribute('fill'))"
    )


def _wait(condition):
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert condition()


def test_the_slider_moves_the_picture_from_the_keyboard(loaded):
    from selenium.webdriver.common.keys import Keys

    before = _colors(loaded)
    assert len(before) == 5
    slider = loaded.find_element("css selector", ".film input")
    slider.send_keys(Keys.END)
    _wait(lambda: _colors(loaded) != before)
    assert slider.get_attribute("aria-valuetext").startswith("time ")
    slider.send_keys(Keys.HOME)
    _wait(lambda: _colors(loaded) == before)


def test_the_play_button_runs_from_the_keyboard(loaded):
    from selenium.webdriver.common.keys import Keys

    first = _colors(loaded)
    button = loaded.find_element("css selector", ".film .play")
    button.send_keys(Keys.ENTER)
    _wait(lambda: _colors(loaded) != first)
    button.send_keys(Keys.ENTER)


def test_everything_that_acts_can_be_reached_and_is_named(loaded):
    nameless = loaded.execute_script(
        "return Array.from(document.querySelectorAll('button, input, svg')).filter(e =>"
        "!(e.getAttribute('aria-label') || e.textContent.trim())).length"
    )
    assert nameless == 0
    hidden = loaded.execute_script(
        "return Array.from(document.querySelectorAll('button, input')).filter(e => e.tabIndex < 0)"
        ".length"
    )
    assert hidden == 0


def test_the_tab_key_reaches_everything_in_order_and_shows_where_it_is(loaded):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    loaded.execute_script("const h = document.querySelector('h1'); h.tabIndex = -1; h.focus()")
    wanted = loaded.execute_script(
        "return [...document.querySelectorAll('button, input, .scroll')]"
        ".filter(e => e.offsetParent).map((e, i) => "
        "{ e.dataset.place = i; return i; })"
    )
    reached = []
    for _ in wanted:
        ActionChains(loaded).send_keys(Keys.TAB).perform()
        place, outline = loaded.execute_script(
            "const e = document.activeElement; "
            "return [+e.dataset.place, getComputedStyle(e).outlineStyle]"
        )
        assert outline != "none"
        reached.append(place)
    assert reached == wanted


def test_the_table_sorts_and_filters(loaded):
    table = loaded.execute_script(
        "return [...document.querySelectorAll('.sortable')].find(t => "
        "t.caption.textContent.startsWith('Every state'))"
    )

    def column():
        return loaded.execute_script(
            "return [...arguments[0].tBodies[0].rows].filter(r => !r.hidden)"
            ".map(r => parseFloat(r.cells[1].textContent))",
            table,
        )

    from selenium.webdriver.common.keys import Keys

    head = table.find_elements("css selector", "thead button")[1]
    head.send_keys(Keys.ENTER)
    assert column() == sorted(column())
    head.send_keys(Keys.SPACE)
    assert column() == sorted(column(), reverse=True)
    box = loaded.execute_script(
        "return arguments[0].parentNode.parentNode.querySelector('input[type=search]')", table
    )
    box.send_keys("onerror")
    _wait(lambda: len(column()) == 1)
    box.clear()


def test_pictures_are_saved_complete(loaded):
    # What the buttons save: a drawing on its own, with the colours of the light scheme.
    text = loaded.execute_script(
        "return new XMLSerializer().serializeToString(document.querySelector('figure svg'))"
    )
    assert text.startswith("<svg")
    assert "var(--ink, #1c2128)" in text
    data = loaded.execute_script(
        "return JSON.parse(document.querySelector('figure script[type=\"text/csv\"]').textContent)"
    )
    assert data.splitlines()[0] == "state,V,stderr"
    assert len(data.splitlines()) == 6


def test_it_is_small(address):
    from urllib.parse import urlparse

    assert os.path.getsize(urlparse(address).path) < 300_000


def test_it_fits_a_phone(loaded, address):
    from selenium.webdriver.common.keys import Keys

    loaded.set_window_size(500, 900)
    loaded.get(address)
    time.sleep(1.0)
    wide, screen = loaded.execute_script(
        "return [document.documentElement.scrollWidth, window.innerWidth]"
    )
    assert wide <= screen + 1
    across = (
        "return [...document.querySelectorAll('.drawing')].map(d => d.scrollWidth - d.clientWidth)"
    )
    assert max(loaded.execute_script(across)) <= 1
    button = loaded.find_element("css selector", "button.enlarge")
    button.send_keys(Keys.ENTER)
    assert button.get_attribute("aria-pressed") == "true"
    assert loaded.execute_script(across)[0] > 100
