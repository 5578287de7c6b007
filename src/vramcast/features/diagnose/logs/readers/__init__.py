"""One module a format. A line reader has a NAME, READS (what it takes from the log), and `parse(line)`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vramcast.features.diagnose.logs.sample import Sample

# In this order: the first that can read a line does. Later ones are less particular.
LINE_READERS = (
    "json_lines", "trainer_lines", "tqdm_bars", "torchtitan_lines", "step_lines", "lightning_profile", "stage_timings",
    "key_values",
)  # fmt: skip
# These read a whole file, not lines of one.
FILE_READERS = ("csv_file", "trainer_state", "profiler_trace")


@dataclass(frozen=True, slots=True)
class LineReader:
    name: str
    reads: str
    parse: Callable[[str], Sample | None]


def line_readers() -> Iterator[LineReader]:
    for name in LINE_READERS:
        module = importlib.import_module(f"vramcast.features.diagnose.logs.readers.{name}")
        yield LineReader(module.NAME, module.READS, module.parse)
