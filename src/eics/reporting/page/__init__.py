"""The report: one page to look at, from the records alone. No model, no torch, no network.

`reader` reads what can be read, `circuits` puts the circuits together and `graph` places them, `runs` sorts records by
configuration, `sentences` says in plain words what was done and what to beware of, `data` puts everything into one
object (`packing` keeps it small), `page` puts that into the page. The page's own code is in `assets`.
"""

from eics.reporting.page.build import build_page, write_report
from eics.reporting.page.data import report_data
from eics.reporting.page.reader import Readable, read_readable

__all__ = ["Readable", "build_page", "read_readable", "report_data", "write_report"]
