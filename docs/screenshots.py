"""Screenshots of a report for the docs, from the records that `make demo` writes.

    python docs/screenshots.py report.html docs

Needs the browser that `make browser-test` installs.
"""

import os
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

WIDTH = 1440
BAR = 56  # pixels of the sticky bar at the top


def overview(page: Page) -> None:
    """The run and all prompts."""
    height = page.evaluate("document.getElementById('one').offsetTop - 14")
    page.set_viewport_size({"width": WIDTH, "height": height})


def one_prompt(page: Page) -> None:
    """One prompt, with a head and its edges selected."""
    page.set_viewport_size({"width": WIDTH, "height": 1200})
    page.select_option("#pick", label="eiffel: The Eiffel Tower is located in the city of")
    page.locator("#circuit .node", has_text="a24.h4").click()
    show(page, "#one", ".columns.one")


def against(page: Page) -> None:
    """The curve, and the same prompt compared with another."""
    page.select_option("#pick", label="eiffel: The Eiffel Tower is located in the city of")
    page.select_option("#against", label="spire: The Oskavian Spire is located in the city of")
    page.locator("#compare .point").first.dispatch_event("click")
    show(page, ".columns.half", ".columns.half")


def show(page: Page, first: str, last: str) -> None:
    """Scrolls and resizes the window to show everything from one element to another."""
    edge = "([selector, side]) => document.querySelector(selector).getBoundingClientRect()[side] + scrollY"
    top = page.evaluate(edge, [first, "top"]) - BAR - 10
    bottom = page.evaluate(edge, [last, "bottom"]) + 14
    page.set_viewport_size({"width": WIDTH, "height": round(bottom - top)})
    page.mouse.move(0, 0)
    page.evaluate("document.activeElement?.blur()")
    page.evaluate("top => scrollTo(0, top)", top)


PICTURES = (
    ("light", overview, "report-overview.png"),
    ("dark", one_prompt, "report-prompt.png"),
    ("light", against, "report-against.png"),
)


def main() -> None:
    """Takes every screenshot of the report."""
    report, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    with sync_playwright() as playwright:
        chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme, prepare, name in PICTURES:
            page = browser.new_page(color_scheme=scheme, viewport={"width": WIDTH, "height": 900})
            page.goto(report.as_uri())
            page.locator("#runs button", has_text="Well-posed").click()
            prepare(page)
            page.screenshot(path=folder / name)
            Image.open(folder / name).convert("RGB").quantize(256).save(folder / name, optimize=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
