"""Screenshots of pages for the docs: reports from the records that `make demo` writes, a comparison.

    python docs/screenshots.py demo/report.html docs
    python docs/screenshots.py demo/calibrated/report.html docs
    python docs/screenshots.py changed/compare.html docs        # from docs/compare-models.md

Needs the browser that `make browser-test` installs. A page gives the pictures of the prompts that it has. The view of
each picture is a link, as a reader would share it.
"""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Page, sync_playwright

BAR = 56  # pixels of the sticky bar at the top
EIFFEL = {"run": "Well-posed", "prompt": "eiffel"}
VIETNAM = {"run": "Calibrated", "prompt": "Vietnam capital-3", "node": "m7"}
WITH_SPIRE = {"compare-run": "Well-posed", "compare-prompt": "spire"}


@dataclass(frozen=True)
class Picture:
    """A part of the page, from the top of one element to the bottom of another, as a link shows it."""

    name: str
    view: dict[str, str]
    first: str
    last: str
    scheme: str = "light"
    width: int = 1440
    height: int | None = None  # pixels at most; everything if None


PICTURES = (
    Picture("report-overview.png", EIFFEL, "#mixed", "#all"),
    Picture("report-prompt.png", EIFFEL | {"node": "a24.h4"}, "#one", ".columns.one", "dark", height=1200),
    Picture("report-against.png", EIFFEL | WITH_SPIRE | {"edge": "a23.h4->a24.h4"}, ".columns.half", ".columns.half"),
    Picture("report-differ.png", EIFFEL | WITH_SPIRE, "#versus", "#versus", height=1150),
    Picture("report-details.png", EIFFEL | {"node": "a23.h4"}, ".columns.details", ".columns.details", height=760),
    Picture("report-phone.png", EIFFEL | {"node": "a23.h4"}, "#one", ".columns.one", width=390, height=1600),
    Picture("report-expected.png", VIETNAM, ".columns.one", ".columns.one"),
    Picture("compare-models.png", {"node": "m2"}, "#found", "#movers"),
    Picture("report-slide.png", EIFFEL | {"slides": "1"}, "body", "body", width=1920, height=1080),
)


def show(page: Page, picture: Picture) -> bool:
    """Scrolls and resizes the window to show the picture's part of the page; False if the page lacks it."""
    prompt = picture.view.get("prompt")
    if prompt is not None and not page.locator("#all tbody tr", has_text=prompt).count():
        return False
    if not (page.locator(picture.first).count() and page.locator(picture.last).count()):
        return False
    edge = "([selector, side]) => document.querySelector(selector).getBoundingClientRect()[side] + scrollY"
    top = max(0, page.evaluate(edge, [picture.first, "top"]) - BAR - 10)
    bottom = page.evaluate(edge, [picture.last, "bottom"]) + 14
    height = min(round(bottom - top), picture.height or round(bottom - top))
    page.set_viewport_size({"width": picture.width, "height": height})
    page.mouse.move(0, 0)
    page.evaluate("document.activeElement?.blur()")
    page.evaluate("top => scrollTo(0, top)", top)
    return True


def main() -> None:
    """Takes every screenshot of the report."""
    report, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    with sync_playwright() as playwright:
        chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for picture in PICTURES:
            size = {"width": picture.width, "height": picture.height or 900}
            page = browser.new_page(color_scheme=picture.scheme, viewport=size)
            page.goto(f"{report.as_uri()}#{urlencode(picture.view)}")
            if show(page, picture):
                page.screenshot(path=folder / picture.name)
                image = Image.open(folder / picture.name).convert("RGB")
                image.quantize(256).save(folder / picture.name, optimize=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
