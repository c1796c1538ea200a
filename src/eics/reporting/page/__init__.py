"""The HTML report: one page from the records alone, without model, torch or network.

Data flow: `reader` reads every record that it can; `circuits` rebuilds the circuits and lays them out; `runs` groups
records by configuration; `sentences` describes each run in plain words and warns; `details` keeps what `--details`
adds; `build` collects everything in one JSON object, which `packing` keeps small, and `shell` puts it into the page.

The pages of comparisons and traces are made from their documents: `fields` checks every field, `comparison` (with
`two_models`, `two_sets` and `parts`) and `trace` collect what the page shows. The code of all pages is in `assets`.
"""

from eics.reporting.page.build import build_page, report_data, write_report
from eics.reporting.page.comparison import write_comparison_page
from eics.reporting.page.reader import Readable, read_readable
from eics.reporting.page.runs import Origin
from eics.reporting.page.trace import write_trace_page

__all__ = [
    "Origin",
    "Readable",
    "build_page",
    "read_readable",
    "report_data",
    "write_comparison_page",
    "write_report",
    "write_trace_page",
]
