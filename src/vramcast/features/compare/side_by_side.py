"""Predictions and measurements side by side, line by line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from vramcast.base.errors import UsageError
from vramcast.features.compare.results import Peaks, Result

BYTES = "bytes"
SECONDS = "seconds"


@dataclass(frozen=True, slots=True)
class Row:
    group: str
    name: str
    unit: str
    values: tuple[float | None, ...]
    """One for each column; None where that result does not have it."""


@dataclass(frozen=True, slots=True)
class Comparison:
    columns: tuple[Result, ...]
    reference: int
    """The column that the others are compared with: the first measurement, or else the first."""
    rows: tuple[Row, ...]


def compare(results: Sequence[Result]) -> Comparison:
    if len(results) < 2:
        raise UsageError("give at least two files to compare")
    measured = [i for i, result in enumerate(results) if result.kind == "measured"]
    return Comparison(columns=tuple(results), reference=measured[0] if measured else 0, rows=tuple(_rows(results)))


def _rows(results: Sequence[Result]) -> Iterator[Row]:
    yield Row("peak", "allocated", BYTES, tuple(r.peak_allocated_bytes for r in results))
    yield Row("peak", "reserved", BYTES, tuple(r.peak_reserved_bytes for r in results))
    yield Row("peak", "on the device", BYTES, tuple(r.device_bytes for r in results))
    for phase in _names(result.phases for result in results):
        yield from _peak_rows("phase", phase, [result.phases.get(phase) for result in results])
    for i in range(max(len(result.steps) for result in results)):
        peaks = [result.steps[i] if i < len(result.steps) else None for result in results]
        yield from _peak_rows("step", str(i + 1), peaks)
    yield from _table_rows("at the peak", BYTES, [result.parts for result in results])
    # A module is worth a line only where two results know it.
    for row in _table_rows("forward peak", BYTES, [result.module_peaks for result in results]):
        if sum(value is not None for value in row.values) > 1:
            yield row
    yield from _table_rows("time", SECONDS, [result.seconds for result in results])


def _peak_rows(group: str, name: str, peaks: Sequence[Peaks | None]) -> Iterator[Row]:
    yield Row(group, f"{name}, allocated", BYTES, tuple(None if p is None else p.allocated_bytes for p in peaks))
    yield Row(group, f"{name}, reserved", BYTES, tuple(None if p is None else p.reserved_bytes for p in peaks))


def _table_rows(group: str, unit: str, tables: Sequence[Mapping[str, float]]) -> Iterator[Row]:
    for name in _names(tables):
        yield Row(group, name, unit, tuple(table.get(name) for table in tables))


def _names(tables: Iterable[Iterable[str]]) -> list[str]:
    """Every name of any table, in the order of first appearance."""
    return list(dict.fromkeys(name for table in tables for name in table))
