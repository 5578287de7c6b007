"""JSON lines: one object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from vramcast.features.diagnose.logs.clocks import clock_of
from vramcast.features.diagnose.logs.readers.pairs import sample_of
from vramcast.features.diagnose.logs.sample import Sample
from vramcast.features.diagnose.logs.vocabulary import number

NAME = "JSON lines"
READS = "step, times, throughput and phases under any usual name, nested one level; timestamp, _timestamp, ts, _runtime"

_CLOCKS = ("_timestamp", "timestamp", "ts", "_runtime", "wall_time", "created", "asctime")


def parse(line: str) -> Sample | None:
    line = line.lstrip()
    if not line.startswith("{") or '"' not in line:
        return None
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return from_document(document) if isinstance(document, dict) else None


def from_document(document: dict[str, Any]) -> Sample | None:
    sample = sample_of(_pairs(document))
    if sample is None:
        return None
    for key in _CLOCKS:
        value = document.get(key)
        if isinstance(value, str):
            clock = clock_of(value)
            if clock is not None:
                sample.clock_seconds, sample.clock_resolution = clock
                break
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e17:
            # Whole milliseconds are as common as seconds.
            sample.clock_seconds = value / 1000 if value > 1e11 else float(value)
            sample.clock_resolution = 1e-3
            break
    return sample


def _pairs(document: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float, str]]:
    for key, value in document.items():
        if isinstance(value, dict) and not prefix:
            yield from _pairs(value, f"{key}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            try:
                yield prefix + str(key), float(value), ""
            except OverflowError:
                continue
        elif isinstance(value, str):
            figure = number(value)
            if figure is not None:
                yield prefix + str(key), figure, ""
