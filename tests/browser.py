"""A headless Chromium for tests of report pages; tests skip, with what to install, where there is none."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
MISSING = next(
    (
        f"{name} is not installed: {how}"
        for name, found, how in (
            ("chromium", CHROMIUM, "make setup-browser"),
            ("chromedriver", DRIVER, "make setup-browser"),
            ("selenium", importlib.util.find_spec("selenium"), "pip install -e '.[dev]', as make does"),
        )
        if not found
    ),
    None,
)
needs_browser = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1200,900"),
)


@contextmanager
def browser(profile: Path) -> Iterator[Any]:
    """A driver with logs of the console and of all network events; `profile` must be an empty folder."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    try:
        yield driver
    finally:
        driver.quit()


def requests_of(driver: Any) -> list[str]:
    """The addresses that the browser has asked for since the last call."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]


def assert_fits(driver: Any) -> None:
    """Nothing of the page that is shown is wider than a phone, or than A4 when printed, where nothing scrolls."""
    for media, width in (("screen", 390), ("print", 703)):
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media})
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": media == "screen"}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.execute_script("dispatchEvent(new Event(arguments[0]))", "beforeprint" if media == "print" else "afterprint")
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width, media
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
