"""The HTML report: one page from the records alone, without model, torch or network.

Data flow: `reader` reads every record that it can; `circuits` rebuilds the circuits and lays them out; `runs` groups
records by configuration; `sentences` describes each run in plain words and warns; `details` keeps what `--details`
adds; `build` collects everything in one JSON object, which `packing` keeps small, and puts it into the page. The page's
own code is in `assets`.
"""

from eics.reporting.page.build import build_page, report_data, write_report
from eics.reporting.page.reader import Readable, read_readable
from eics.reporting.page.runs import Origin

__all__ = ["Origin", "Readable", "build_page", "read_readable", "report_data", "write_report"]
