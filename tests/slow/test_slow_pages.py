"""What takes too long for CI: `make slow-test`. A page that runs through gets today's date in its marks."""

import re
from datetime import UTC, datetime

import pytest

from support.doc_pages import PAGES, ROOT, SLOW, blocks_of, run_page

SLOW_PAGES = [page for page in PAGES if any(block.is_slow for block in blocks_of(page))]


@pytest.mark.parametrize("page", SLOW_PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_whole_page_runs(page, tmp_path):
    run_page(page, tmp_path, slow=True)
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    lines = page.read_text(encoding="utf-8").split("\n")
    dated = [re.sub(r"last run [\w-]+", f"last run {today}", line) if SLOW.match(line) else line for line in lines]
    page.write_text("\n".join(dated), encoding="utf-8")
