"""Tables with commas: Lightning's CSVLogger (metrics.csv) and others whose first line names the columns."""

from __future__ import annotations

from collections.abc import Callable

from vramcast.features.diagnose.logs.clocks import clock_of
from vramcast.features.diagnose.logs.readers.pairs import sample_of
from vramcast.features.diagnose.logs.sample import Sample
from vramcast.features.diagnose.logs.vocabulary import STEP_KEYS, number, read

NAME = "CSV"
READS = "columns under any usual name; Lightning's ThroughputMonitor writes train/device/batches_per_sec and others"


def columns(first_line: str) -> list[str] | None:
    """The headings, if that is what the first line of the file is."""
    names = [name.strip().strip('"') for name in first_line.split(",")]
    if len(names) < 2 or any(number(name) is not None or not name or len(name) > 80 for name in names):
        return None
    known = [name for name in names if name.lower() in (*STEP_KEYS, "epoch") or read(name, 1.0) is not None]
    return names if known else None


def reader(names: list[str]) -> Callable[[str], Sample | None]:
    clocks = [i for i, name in enumerate(names) if name.lower() in ("timestamp", "time", "date", "datetime")]

    def parse(line: str) -> Sample | None:
        cells = line.split(",")
        if len(cells) != len(names):
            return None
        pairs = [(name, value, "") for name, cell in zip(names, cells, strict=True)
                 if cell and (value := number(cell.strip('" '))) is not None]  # fmt: skip
        sample = sample_of(pairs)
        if sample is None:
            return None
        for i in clocks:
            clock = clock_of(cells[i].strip('" '))
            if clock is not None:
                sample.clock_seconds, sample.clock_resolution = clock
        return sample

    return parse
