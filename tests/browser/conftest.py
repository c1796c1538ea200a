"""A real browser: the system's chromium, driven by Playwright. `make browser-test` installs and runs this."""

import os
import shutil

import pytest
from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser():
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    assert path, f"One of {', '.join(NAMES)} must be installed, or CHROMIUM must name it."
    with sync_playwright() as playwright:
        # The sandbox does not work for root, as whom containers run; the page is our own file.
        running = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def open_page(browser):
    """Opens a file and checks, at the end, that nothing was logged as an error and nothing else was asked for."""
    opened = []

    def go(path, **options):
        page = browser.new_page(viewport={"width": 1440, "height": 900}, **options)
        troubles = []
        page.on("console", lambda message: troubles.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: troubles.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri())
        opened.append((page, troubles))
        return page

    yield go
    for page, troubles in opened:
        page.close()
        assert troubles == []
