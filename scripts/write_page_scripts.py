"""Writes the script of every HTML page to a folder of its own, for the linter.

python scripts/write_page_scripts.py build/pages
"""

import sys
from pathlib import Path

from eics.reporting.page.shell import PAGES, script

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
for name in PAGES:
    (folder / f"{name}.js").write_text(script(name), encoding="utf-8")
