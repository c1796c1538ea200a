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
        # The sandbox does not work for root, the usual user in containers; the page is our own file.
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser):
    """Opens a file, and checks at the end that no error was logged and nothing else was requested."""
    opened = []

    def go(path, after="", **options):
        page = browser.new_page(**{"viewport": {"width": 1440, "height": 900}} | options)
        problems = []
        page.on("console", lambda message: problems.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: problems.append(request.url) if not _inside(request.url, path) else None)
        page.goto(path.as_uri() + after)
        opened.append((page, problems))
        return page

    yield go
    for page, problems in opened:
        page.close()
        assert problems == []


def _inside(url, path):
    """Whether an address is the page itself, or what the page makes in memory when it saves a picture."""
    return url.split("#")[0].split("?")[0] == path.as_uri() or url.startswith(("data:image/svg+xml", "blob:"))
