"""The traces of one run on disk, JSON lines after a header: safe as they are made, continued if it was interrupted."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eics.data.files import RowFile, count_rows, read_rows, to_lines, write_bytes
from eics.data.outputs import STREAMED
from eics.data.resume import check_same, differs
from eics.errors import OptionError, RecordError
from eics.models.base import Model
from eics.models.prompts import Prompt, tokens_or_none
from eics.studies.tracing.result import FORMAT, VERSION, Header, Trace


def check_trace_path(path: Path) -> None:
    """Refuses, before any work, a file that traces cannot be written to."""
    if path.suffix != STREAMED or not path.parent.is_dir():
        raise OptionError.of("out", f"a {STREAMED} file in a folder that exists", str(path))


class TraceFile:
    """The file of a run's traces, appended to text by text. Nothing is touched before the first trace is there."""

    def __init__(self, path: Path, header: Header, *, resume: bool = False) -> None:
        """With `resume`, reads what an earlier run of the same header has left; any other is refused by name."""
        check_trace_path(path)
        self.path, self.header, self._resume = path, header, resume
        self.earlier = self._read() if resume and path.exists() else []
        self._ids = [trace.id for trace in self.earlier]
        self._rows: RowFile | None = None

    @property
    def safe(self) -> dict[Path, int]:
        """How many traces are on disk, by file; none before this run has touched it."""
        if self._rows is None and not self._resume:
            return {}
        return {self.path: max(0, count_rows(self.path) - 1)}

    def append(self, trace: Trace) -> None:
        """Adds a trace; it is in the file when this returns."""
        if self._rows is None:
            self._replace([*self.earlier, trace])
            self._rows = RowFile(self.path, resume=True)
        else:
            self._rows.append([trace.to_record()])
        self._ids.append(trace.id)

    def finish(self, traces: Sequence[Trace]) -> None:
        """Ends a complete run: its traces in input order; earlier ones of other texts follow them."""
        ids = {trace.id for trace in traces}
        ordered = [*traces, *(trace for trace in self.earlier if trace.id not in ids)]
        if self._rows is None or self._ids != [trace.id for trace in ordered]:
            self._replace(ordered)
        else:
            self._rows.sync()

    def check(self, prompts: Iterable[Prompt], model: Model) -> None:
        """Refuses a text that was another one, or had other tokens, when its trace was made."""
        by_id = {prompt.id: prompt for prompt in prompts}
        for trace in self.earlier:
            if trace.id not in by_id:
                continue
            prompt = by_id[trace.id]
            given, ours = prompt.metadata["prompt"], tokens_or_none(model, prompt)
            theirs = list(trace.token_ids[: trace.generated])
            if given is not None and trace.text is not None and not trace.text.startswith(given):
                raise differs(f"text of {trace.id!r}", trace.text, given, str(self.path))
            if not trace.failed and theirs != ours:
                raise differs(f"tokens of {trace.id!r}", theirs, ours, str(self.path))

    def _replace(self, traces: Iterable[Trace]) -> None:
        write_bytes(self.path, to_lines([self.header.to_record(), *(trace.to_record() for trace in traces)]))

    def _read(self) -> list[Trace]:
        rows = list(read_rows(self.path, torn=True))
        if not rows:
            return []
        _check_format(rows[0], self.path)
        ours = self.header.to_record()
        compared = ("circuit", "level", "calibration", "options")
        check_same(rows[0], {name: ours[name] for name in (*compared, "model", "fingerprint")}, str(self.path))
        return [Trace.from_record(self.header, row) for row in rows[1:]]


def _check_format(row: Mapping[str, Any], path: Path) -> None:
    if (row.get("format"), row.get("version")) != (FORMAT, VERSION):
        raise RecordError(
            f"--resume must continue a file that `eics trace` wrote. The first line of {str(path)!r} has format "
            f"{row.get('format')!r}, version {row.get('version')!r}: use --overwrite, or another --out."
        )
