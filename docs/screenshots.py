"""Pictures of a report for the docs: the overview in light, one prompt in dark.

    python docs/screenshots.py report.html docs

Needs what `make browser-test` installs.
"""

import os
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright


def overview(page: Page, out: Path) -> None:
    """The run and all prompts."""
    height = page.evaluate("document.getElementById('one').offsetTop - 14")
    page.set_viewport_size({"width": 1440, "height": height})
    page.screenshot(path=out)


def one_prompt(page: Page, out: Path) -> None:
    """One prompt against another, with its worst node chosen."""
    page.set_viewport_size({"width": 1440, "height": 1200})
    page.select_option("#against", index=6)
    page.locator("#tab-node").click()
    page.locator("#terms tbody tr").nth(5).click()
    page.mouse.move(0, 0)
    height = page.evaluate("document.getElementById('foot').offsetTop - document.getElementById('one').offsetTop + 56")
    page.set_viewport_size({"width": 1440, "height": height})
    page.evaluate("scrollTo(0, document.getElementById('one').offsetTop - 56)")
    page.screenshot(path=out)


def main() -> None:
    """Opens the report twice."""
    report, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    with sync_playwright() as playwright:
        chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme, take, name in (
            ("light", overview, "report-overview.png"),
            ("dark", one_prompt, "report-prompt.png"),
        ):
            page = browser.new_page(color_scheme=scheme)
            page.goto(report.as_uri())
            page.get_by_role("radio", name="Well-posed").click()
            take(page, folder / name)
            Image.open(folder / name).convert("RGB").quantize(160).save(folder / name, optimize=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
