"""The report in a real browser: it loads cleanly and alone, it moves, and names stay text."""

from __future__ import annotations

import json
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
        drawn = browser.execute_script("return document.querySelectorAll('.main-svg').length")
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
        "return Array.from(document.querySelectorAll('.js-plotly-plot')[1]"
        ".querySelectorAll('.scatterlayer .points path')).map(e => e.style.fill)"
    )


def test_the_slider_moves_the_picture(loaded):
    from selenium.webdriver.common.action_chains import ActionChains

    before = _colors(loaded)
    assert len(before) == 5
    rail = loaded.find_element("css selector", ".slider-rail-touch-rect")
    loaded.execute_script("arguments[0].scrollIntoView({block: 'center'})", rail)
    width = rail.rect["width"]
    ActionChains(loaded).move_to_element_with_offset(rail, width / 2 - 4, 0).click().perform()
    deadline = time.monotonic() + 20
    while _colors(loaded) == before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _colors(loaded) != before


def test_the_play_button_runs(loaded):
    before = loaded.find_element("css selector", ".slider-label").text
    button = loaded.find_element("css selector", ".updatemenu-button")
    loaded.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    first = _colors(loaded)
    button.click()
    deadline = time.monotonic() + 20
    while _colors(loaded) == first and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _colors(loaded) != first
    assert before


def test_it_fits_a_phone(loaded, address):
    loaded.set_window_size(500, 900)
    loaded.get(address)
    time.sleep(1.0)
    wide, screen = loaded.execute_script(
        "return [document.documentElement.scrollWidth, window.innerWidth]"
    )
    assert wide <= screen + 1
